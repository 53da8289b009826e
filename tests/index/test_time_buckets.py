"""The time-bucket index against a simple reference; small limits force its rare paths."""

from __future__ import annotations

import random
from array import array
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pyroaring import BitMap, BitMap64

from pulsar_nack import InvalidArgumentError, MessageId
from pulsar_nack.index import NEVER, TimeBuckets, as_entries
from pulsar_nack.index import _chunks as chunks_module
from pulsar_nack.index import _distant as distant_module
from pulsar_nack.index import _inserter as inserter_module
from pulsar_nack.index import _pending as pending_module
from pulsar_nack.index import _sealer as sealer_module
from pulsar_nack.index import _store as store_module
from pulsar_nack.index._chunks import unseal
from tests.for_each import for_each
from tests.tiers import examples, size

SMALL: dict[tuple[Any, str], int] = {
    (sealer_module, "FOLD"): 2,
    (sealer_module, "_FOLD_EARLY"): 2,
    (sealer_module, "_FOLD_PLAIN"): 2,
    (sealer_module, "_MANY_OPEN"): 1,
    (store_module, "_MAX_OPEN"): 2,
    (sealer_module, "_WORTH_CLOSING"): 1,
    (sealer_module, "_SPLIT_AT"): 2,
    (distant_module, "_LARGE"): 4,
    (distant_module, "_THIN"): 2,
    (store_module, "_FEW_PARTS"): 1,
    (inserter_module, "_WINDOW"): 10,
    (sealer_module, "_SWEEP_AT"): 3,
    (inserter_module, "_SEAL_FROM"): 4,
    (sealer_module, "_STEPS"): 1,
    (inserter_module, "_MAX_APPENDS"): 2,
    (pending_module, "_FEW_ADDED"): 1,
    (pending_module, "_FEW_EACH"): 1_000,
}
"""Limits that force the rare paths: a few ids already fold, sweep, make groups and split them."""


@pytest.fixture(params=["usual limits", "small limits"])
def limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with the real limits, and with limits that force the rare paths."""
    if request.param == "small limits":
        for (module, name), value in SMALL.items():
            monkeypatch.setattr(module, name, value)


def check(buckets: TimeBuckets) -> None:
    """Assert the invariants in the module docstrings of the index."""
    store, pending, earliest = buckets._store, buckets._pending, buckets.first
    pending.settle()
    stale, covered = store.stale, store.ranges.covered
    assert len(pending.numbers) == len(buckets)
    assert set(store.starts) == {*store.open, *store.chunks.by_start, *store.draining}
    assert list(store.starts) == sorted(store.starts)
    assert len(covered) == sum(each.high - each.low + 1 for each in store.ranges)
    starts = {*store.starts, *(each.start for each in store.ranges)}
    found: dict[int, list[int]] = {}
    for start in starts:
        for number in store.live_numbers(start):
            found.setdefault(number, []).append(start)
    for group in store.distant.by_base.values():
        assert group.base > buckets.earliest
        for start, numbers in group.by_start():
            for number in stale.live_copies(pending.bitmap_type(numbers), pending.numbers, start):
                found.setdefault(number, []).append(start)
    assert store.distant.count == sum(map(len, store.distant.by_base.values()))
    assert set(found) == set(pending.numbers)
    doubled = {number for number, where in found.items() if len(where) > 1}
    assert doubled <= set(stale.doubled)
    assert not (earliest.is_kept(earliest.start) and earliest.start in store.appends)
    for start, append in store.appends.items():
        assert append.__self__ is store.open[start]  # type: ignore[attr-defined]
    for used in (pending.numbers, covered, stale.numbers):
        for number in used:
            block = pending.block_at.get(number >> 16)
            if block is not None and block is pending.block and buckets._inserter._top <= block.base + 0xFFFF:
                assert number <= buckets._inserter._top
            elif block is not None:
                assert number <= block.top
            else:
                assert used is covered


ENTRIES = st.integers(0, 40)
IDS = st.one_of(
    st.tuples(st.integers(1, 3), ENTRIES).map(lambda fields: MessageId(*fields)),
    st.tuples(
        st.integers(1, 3),
        st.integers(65_530, 65_545),
        st.sampled_from([-1, 0, 3]),
        st.sampled_from([-1, 0, 1, 15, 16, 1023, 70_000]),
    ).map(lambda fields: MessageId(*fields)),
    st.builds(lambda entry: MessageId(9, entry + 2, first_chunk=MessageId(9, entry)), ENTRIES),
)
STARTS = st.one_of(st.integers(0, 12), st.integers(0, 8).map(lambda blocks: blocks * 9_000))


class IndexMachine(RuleBasedStateMachine):
    """Every operation in any order beside a dict of starts."""

    def __init__(self) -> None:
        super().__init__()
        self.buckets = TimeBuckets()
        self.starts: dict[MessageId, int] = {}
        self.now = 0
        self.kept = {key: getattr(*key) for key in SMALL}

    def teardown(self) -> None:
        for (module, name), value in self.kept.items():
            setattr(module, name, value)

    @initialize(small=st.booleans())
    def choose_limits(self, small: bool) -> None:
        for (module, name), little in SMALL.items():
            setattr(module, name, little if small else self.kept[module, name])

    @rule(message_id=IDS, ahead=STARTS)
    def add(self, message_id: MessageId, ahead: int) -> None:
        start = self.now + ahead
        assert self.buckets.put(message_id, start) == (message_id not in self.starts)
        self.starts[message_id] = min(start, self.starts.get(message_id, NEVER))

    @rule(first=ENTRIES, count=st.integers(1, 30), ahead=STARTS)
    def add_in_order(self, first: int, count: int, ahead: int) -> None:
        for entry in range(first, first + count):
            self.add(MessageId(2, entry), ahead)

    @rule(first=st.integers(65_500, 65_540), count=st.integers(1, 80), ahead=STARTS)
    def add_entries(self, first: int, count: int, ahead: int) -> None:
        start = self.now + ahead
        ids = [MessageId(1, entry) for entry in range(first, first + count)]
        fresh = sum(message_id not in self.starts for message_id in ids)
        assert self.buckets.put_entries(1, as_entries(range(first, first + count)), start) == fresh
        for message_id in ids:
            self.starts[message_id] = min(start, self.starts.get(message_id, NEVER))

    @rule(message_id=IDS)
    def discard(self, message_id: MessageId) -> None:
        assert self.buckets.discard(message_id) == (self.starts.pop(message_id, None) is not None)

    @precondition(lambda self: self.starts)
    @rule(data=st.data())
    def discard_one_that_is_pending(self, data: Any) -> None:
        self.discard(data.draw(st.sampled_from(sorted(self.starts))))

    @rule(by=STARTS, limit=st.one_of(st.none(), st.integers(1, 5)))
    def pop(self, by: int, limit: int | None) -> None:
        self.now += by
        due = sorted(start for start in self.starts.values() if start <= self.now)
        got = list(self.buckets.pop(self.now, limit))
        assert len(set(got)) == len(got)
        assert all(message_id.is_chunked == (message_id.ledger == 9) for message_id in got)
        assert [self.starts.pop(message_id) for message_id in got] == due[:limit]

    @rule(by=STARTS)
    def pop_parts(self, by: int) -> None:
        self.now += by
        got = [
            message_id
            for block, numbers in self.buckets.pop_parts(self.now)
            for message_id in block.message_ids(numbers.to_array())
        ]
        due = {message_id for message_id, start in self.starts.items() if start <= self.now}
        assert sorted(got) == sorted(due)
        for message_id in got:
            del self.starts[message_id]

    @rule(steps=st.one_of(st.none(), st.integers(1, 3)))
    def sweep(self, steps: int | None) -> None:
        if len(self.buckets):
            self.buckets._sweeper.sweep(steps)

    @rule()
    def clear(self) -> None:
        assert self.buckets.clear() == len(self.starts)
        self.starts.clear()

    @invariant()
    def agrees(self) -> None:
        assert len(self.buckets) == len(self.starts)
        assert self.buckets.bytes > 0
        assert self.buckets.earliest == min(self.starts.values(), default=NEVER)

    @rule()
    def keeps_what_it_promises(self) -> None:
        check(self.buckets)

    @rule(message_id=IDS)
    def knows_what_is_pending(self, message_id: MessageId) -> None:
        assert (message_id in self.buckets) == (message_id in self.starts)


IndexMachine.TestCase.settings = examples(120, 40, suppress_health_check=[HealthCheck.too_slow])
TestIndex = IndexMachine.TestCase


@pytest.mark.usefixtures("limits")
def test_a_long_random_run_agrees_with_a_dict() -> None:
    """Thousands of operations over few ids give the same ids at the same times as a dict of deadlines."""
    chance = random.Random(393)
    buckets, now = TimeBuckets(), 0
    starts: dict[MessageId, int] = {}
    for step in range(6_000):
        message_id = MessageId(chance.randrange(1, 4), chance.randrange(60), -1, chance.choice([-1, -1, 0, 20]))
        action = chance.random()
        if action < 0.6:
            start = now + chance.randrange(50)
            assert buckets.put(message_id, start) == (message_id not in starts)
            starts[message_id] = min(start, starts.get(message_id, NEVER))
        elif action < 0.85:
            assert buckets.discard(message_id) == (starts.pop(message_id, None) is not None)
        else:
            now += chance.randrange(10)
            due = sorted(start for start in starts.values() if start <= now)
            limit = chance.choice([None, 1, 7])
            assert [starts.pop(popped) for popped in buckets.pop(now, limit)] == due[:limit]
        if step % 100 == 0:
            check(buckets)


def test_ids_in_order_cost_next_to_nothing() -> None:
    """100 000 ids in order in 40 buckets are kept as id ranges: no bytes per id."""
    buckets = TimeBuckets()
    for entry in range(100_000):
        buckets.put(MessageId(5, entry), entry // 2500 * 256)
    assert len(buckets._store.ranges) >= 38
    assert buckets.bytes < 60_000


def test_an_id_from_another_bucket_dissolves_the_id_range_around_it() -> None:
    """A late id inside a sealed range keeps its own deadline and does not change its neighbours'."""
    buckets = TimeBuckets()
    for entry in range(0, 2_000, 2):
        buckets.put(MessageId(5, entry), 100)
    buckets.put(MessageId(5, 5_000), 200)
    buckets.put(MessageId(5, 6_000), 300)
    assert len(buckets._store.ranges) > 0
    buckets.put(MessageId(5, 1_001), 250)
    check(buckets)
    assert list(buckets.pop(100)) == [MessageId(5, entry) for entry in range(0, 2_000, 2)]
    assert list(buckets.pop(250)) == [MessageId(5, 5_000), MessageId(5, 1_001)]


def test_a_bucket_drains_in_order_of_position_under_a_limit() -> None:
    """Inside a bucket ids come by ledger and entry, whatever the order of adding, and also in several calls."""
    buckets = TimeBuckets()
    ids = [MessageId(ledger, entry) for ledger in (3, 1, 2) for entry in range(5)]
    for message_id in ids:
        buckets.put(message_id, 10)
    got: list[MessageId] = []
    while len(buckets):
        got += buckets.pop(10, 4)
    assert got == sorted(ids)


def test_cancelling_the_last_of_the_earliest_bucket_moves_the_earliest_on() -> None:
    """Nothing waits for buckets whose ids were all cancelled."""
    buckets = TimeBuckets()
    for entry in range(30):
        buckets.put(MessageId(1, entry), entry // 10)
    for entry in range(29):
        buckets.discard(MessageId(1, entry))
        assert buckets.earliest == (entry + 1) // 10
    buckets.discard(MessageId(1, 29))
    assert buckets.earliest == NEVER


def test_cancelling_and_adding_again_without_end_keeps_memory_bounded() -> None:
    """An id that is nacked and acked in a loop beside one that waits leaves no growing memory."""
    buckets = TimeBuckets()
    buckets.put(MessageId(1, 1), NEVER - 1)
    for round_ in range(size(30_000, fast=5_000)):
        buckets.put(MessageId(1, 2), round_ + 60_000)
        buckets.discard(MessageId(1, 2))
    check(buckets)
    assert buckets.bytes < size(2_000_000, fast=350_000)
    assert len(buckets) == 1


def test_an_index_that_becomes_empty_is_like_a_new_one() -> None:
    """Whether the last id fires or is cancelled, the figures are those of a new index, and nothing old fires later."""
    buckets = TimeBuckets()
    empty = buckets.bytes
    for round_ in range(300):
        ids = [MessageId(1 + (round_ + number) // 7, number) for number in range(1 + round_ % 3)]
        for message_id in ids:
            assert buckets.put(message_id, round_)
        if round_ % 2:
            assert list(buckets.pop(round_)) == sorted(ids)
        else:
            assert all(map(buckets.discard, ids))
        check(buckets)
        assert (len(buckets), buckets.earliest, buckets.bucket_count, buckets.bytes) == (0, NEVER, 0, empty)


def test_id_blocks_are_released() -> None:
    """Ledgers that come and go leave nothing behind while one id stays pending."""
    buckets = TimeBuckets()
    buckets.put(MessageId(1, 1), NEVER - 1)
    for ledger in range(2, 5_000):
        buckets.put(MessageId(ledger, 7), ledger)
        assert list(buckets.pop(ledger)) == [MessageId(ledger, 7)]
    assert len(buckets._pending.blocks) < 200


def test_more_id_blocks_than_32_bits_can_name() -> None:
    """With more id blocks than fit, numbers change to 64 bits and nothing is lost, doubled or moved."""
    buckets = TimeBuckets()
    buckets._pending.block_limit = 8
    ids = [MessageId(ledger, 1, -1, ledger % 3 - 1) for ledger in range(1, 40)]
    chunked = MessageId(50, 3, first_chunk=MessageId(50, 1))
    for message_id in [*ids[:6], chunked, *ids[6:]]:
        assert buckets.put(message_id, 100 - message_id.ledger)
    assert buckets._pending.is_wide
    assert not buckets.put(ids[20], 5)
    assert buckets.discard(ids[3])
    assert buckets.put_entries(60, as_entries(range(100)), 200) == 100
    check(buckets)
    assert list(buckets.pop(5)) == [ids[20]]
    assert next(iter(buckets.pop(50))).first_chunk == MessageId(50, 1)
    rest = [message_id for message_id in ids if message_id not in {ids[3], ids[20]}]
    assert sorted(buckets.pop(100)) == rest
    assert len(buckets.pop(200)) == 100


@for_each("entries", [range(100), range(0, 200, 2)])
def test_many_entries_at_once_may_widen_numbers(entries: range) -> None:
    """Entries of a ledger that has no room among 32-bit numbers are added as 64-bit numbers."""
    buckets = TimeBuckets()
    buckets._pending.block_limit = 8
    for ledger in range(1, 9):
        buckets.put(MessageId(ledger, 1), 10)
    assert buckets.put_entries(60, as_entries(entries), 20) == 100
    assert buckets._pending.is_wide
    check(buckets)
    assert len(buckets.pop(10)) == 8
    assert list(buckets.pop(20)) == [MessageId(60, entry) for entry in entries]


@for_each("bad", [MessageId(-1, -1), MessageId(3, -1), "1:2", None, (1, 2, -1, -1)])
def test_what_is_not_the_id_of_a_message_is_refused(bad: Any) -> None:
    """An id without a ledger or an entry, or no id at all, is named in the error and nothing changes."""
    buckets = TimeBuckets()
    buckets.put(MessageId(1, 1), 10)
    with pytest.raises(InvalidArgumentError, match="id"):
        buckets.put(bad, 10)
    assert len(buckets) == 1
    check(buckets)


def test_a_topic_that_is_learned_later_is_returned() -> None:
    """An id with a topic keeps it, even if the ledger was first seen without a topic."""
    buckets = TimeBuckets()
    buckets.put(MessageId(1, 1), 10)
    for entry in range(2, 6):
        buckets.put(MessageId(1, entry, topic="persistent://a/b/c"), 10)
    buckets.put(MessageId(1, 9), 10)
    topics = {message_id.entry: message_id.topic for message_id in buckets.pop(10)}
    assert [topics[entry] for entry in range(2, 6)] == ["persistent://a/b/c"] * 4


def test_everything_is_taken_at_once() -> None:
    """All ids are returned by position, chunked ones whole, and the empty index continues to work."""
    buckets = TimeBuckets()
    chunked = MessageId(1, 7, first_chunk=MessageId(1, 5))
    ids = [MessageId(2, 3), chunked, MessageId(1, 9, topic="t"), MessageId(1, 8, -1, 4)]
    for start, message_id in enumerate(ids):
        buckets.put(message_id, start)
    everything = buckets.pop_all()
    assert sorted(everything) == sorted(ids)
    assert next(message_id for message_id in everything if message_id.is_chunked).first_chunk == MessageId(1, 5)
    assert (len(buckets), buckets.earliest) == (0, NEVER)
    assert buckets.put(ids[0], 5)
    assert list(buckets.pop_all()) == [ids[0]]
    assert list(buckets.pop_all()) == []


def test_many_empty_buckets_are_left_behind_in_steps() -> None:
    """Cancelling thousands of buckets never makes one call look at all of them; the last one is still found."""
    buckets = TimeBuckets()
    for entry in range(6_000):
        buckets.put(MessageId(1, entry), entry)
    for entry in range(5_998, 0, -1):
        buckets.discard(MessageId(1, entry))
    buckets.discard(MessageId(1, 0))
    assert buckets.earliest <= 5_999
    taken: list[MessageId] = []
    while len(buckets):
        taken += buckets.pop(buckets.earliest)
    assert taken == [MessageId(1, 5_999)]


@pytest.mark.slow
def test_thin_buckets_lie_in_groups_and_fire_in_time() -> None:
    """Thousands of buckets with a few ids each take few bytes an id, and every id fires with its bucket."""
    chance, buckets = random.Random(6), TimeBuckets()
    starts = {
        MessageId(1 + number // 50_000, number % 50_000): chance.randrange(3_600_000) & -256 for number in range(60_000)
    }
    for message_id, start in starts.items():
        assert buckets.put(message_id, start)
    assert buckets._store.distant.count > 30_000
    assert buckets.bytes < 16 * len(starts)
    cancelled = [message_id for message_id in starts if chance.random() < 0.3]
    for message_id in cancelled:
        assert buckets.discard(message_id)
        del starts[message_id]
    check(buckets)
    for now in range(0, 3_600_000, 300_000):
        due = list(buckets.pop(now))
        assert [starts[message_id] for message_id in due] == sorted(starts[message_id] for message_id in due)
        assert set(due) == {message_id for message_id, start in starts.items() if start <= now}
        for message_id in due:
            del starts[message_id]
    assert list(buckets.pop(NEVER)) == sorted(starts, key=lambda message_id: (starts[message_id], message_id))
    assert not buckets


def test_a_group_that_is_no_longer_thin_is_split() -> None:
    """A group whose buckets are no longer thin is split, long before they are due."""
    chance, buckets = random.Random(7), TimeBuckets()
    for entry in range(2_000):
        buckets.put(MessageId(1, entry), entry << 20)
    for entry in range(100_000):
        buckets.put(MessageId(2, entry), (1_500 << 20) + (chance.randrange(64) << 8))
    assert buckets._store.distant.count < 40_000
    assert buckets._store.chunks.by_start
    assert len(list(buckets.pop((1_500 << 20) + 0x4000))) == 101_501
    check(buckets)


def test_far_buckets_with_many_messages_are_sealed() -> None:
    """Hundreds of messages in each far bucket are sealed, also while thousands of other buckets are open."""
    buckets = TimeBuckets()
    for entry in range(2_000):
        buckets.put(MessageId(1, entry), (2_000 - entry) << 20)
    before = buckets.bytes
    for number in range(200_000):
        buckets.put(MessageId(2, number), (1_500 << 20) + (number >> 1 & -256))
    assert buckets.bytes - before < 600_000
    check(buckets)


def test_ids_out_of_order_and_in_order_by_turns() -> None:
    """Whether ids rise or not, each is new once, known at once, and fires once."""
    chance, buckets, starts = random.Random(8), TimeBuckets(), dict[MessageId, int]()
    for turn in range(40):
        entries = list(range(turn * 500, turn * 500 + 600))
        if turn % 2:
            chance.shuffle(entries)
        for entry in entries:
            message_id = MessageId(1 + entry % 2, entry)
            start = 100 * turn + 100 * chance.randrange(3)
            assert buckets.put(message_id, start) == (message_id not in starts)
            starts[message_id] = min(start, starts.get(message_id, NEVER))
            assert len(buckets) == len(starts)
        assert MessageId(1 + entries[-1] % 2, entries[-1]) in buckets
        assert MessageId(1 + entries[-1] % 2, entries[-1] + 700) not in buckets
    check(buckets)
    assert [starts[message_id] for message_id in buckets.pop(NEVER)] == sorted(starts.values())


def test_due_ids_of_many_blocks_read_by_place() -> None:
    """A few ids of each of many blocks are one run, which reads as ids, positions, slices and single items."""
    buckets = TimeBuckets()
    ids = [MessageId(ledger, 7, -1, -1 if ledger % 3 else 2) for ledger in range(1, 101)]
    ids[50] = MessageId(51, 9, first_chunk=MessageId(51, 8))
    ids[60] = MessageId(61, 9, topic="orders")
    for message_id in ids:
        buckets.put(message_id, 5)
    due = buckets.pop(5)
    assert list(due) == ids == [due[place] for place in range(100)] == due[0:100]
    assert due[60].topic == "orders"
    assert due[50].is_chunked
    assert due.positions() == [(message_id.ledger, message_id.entry) for message_id in ids]


def test_gaps_are_read_as_they_were_written() -> None:
    """Numbers packed as gaps are equal when read, for gaps up to 255 and any width; wider gaps are not packed."""
    chance = random.Random(9)
    for bitmap, typecode, base in ((BitMap, "I", 1 << 31), (BitMap64, "Q", 1 << 40)):
        for most in (2, 128, 255):
            flat = array(typecode, accumulate((chance.randrange(1, most + 1) for _ in range(700)), initial=base))
            packed = chunks_module._gaps(flat)
            assert packed is not None
            assert unseal(packed, bitmap).to_array() == flat
        for beyond in (
            [base, base + 256, base + 257],
            [base, base + 65_537],
            [base + 5, base],
            [base, base + 9, base + 8],
        ):
            assert chunks_module._gaps(array(typecode, beyond)) is None


def test_parts_that_reach_over_each_other_are_joined() -> None:
    """Ids added to one bucket in any order make few chunks, so that the first ids need not decode hundreds."""
    chance, buckets = random.Random(13), TimeBuckets()
    ids = [MessageId(ledger, entry) for ledger in range(size(20, fast=5)) for entry in range(0, 65_536, 13)]
    for message_id in chance.sample(ids, len(ids)):
        buckets.put(message_id, 1_000)
    chunks = buckets._store.chunks.by_start[1_000]
    first = len(ids) * 7 // 10
    assert len(chunks) < 48
    assert buckets._store.chunks._bytes == sum(len(chunk) + chunks_module._OBJECT_BYTES for chunk in chunks)
    check(buckets)
    assert list(buckets.pop(1_000, first)) == ids[:first]
    assert list(buckets.pop(1_000)) == ids[first:]


@pytest.mark.parametrize("typecode", ["I", "Q"])
def test_where_a_sealed_part_begins(typecode: str) -> None:
    """The first number of a sealed chunk is known without decoding, down to the range of its id block."""
    chance, bitmap = random.Random(10), BitMap if typecode == "I" else BitMap64
    kinds = set()
    for base in (0, 70_000, 1 << 31, *((1 << 33, 1 << 39) if typecode == "Q" else ())):
        for spread in (700, 7_000, 300_000, 60_000_000):
            for numbers in (range(base, base + spread), [base + chance.randrange(spread) for _ in range(500)]):
                content = bitmap(array(typecode, numbers[:70_000]))
                chunk = chunks_module.seal(bitmap(content))
                kinds.add(chunk[0])
                assert content.min() & ~0xFFFF <= chunks_module.where_begins(chunk) <= content.min()
    assert len(kinds) == 3
