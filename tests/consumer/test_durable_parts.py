"""The parts of durable state: records, memory, which logs count, compaction."""

from __future__ import annotations

import asyncio
import errno
import sys
import tracemalloc
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack import MessageId
from pulsar_nack.consumer._id_relations import is_same_topic
from pulsar_nack.consumer.durable import DurableNacks
from pulsar_nack.consumer.durable import _generations as generations
from pulsar_nack.consumer.durable import _records as records
from pulsar_nack.consumer.durable._acked import SLICES, AckedMessages
from pulsar_nack.consumer.durable._journal import Journal
from pulsar_nack.consumer.durable._records import BatchAcks, Change, PendingPage, RangeAcks, RecordKind
from pulsar_nack.consumer.durable._state import DurableState, PendingMessages
from pulsar_nack.errors import LogCorruptedError, LogStorageError, LogVersionError
from pulsar_nack.ledger import LocalLogStore, LogStore
from pulsar_nack.ledger.faults import FaultyFiles
from pulsar_nack.ledger.memory import MemoryFiles
from pulsar_nack.testing import ManualClock
from tests.consumer.durable_runs import entries_of
from tests.tiers import examples, size

INT64 = st.integers(0, 2**63 - 1)
FOLDER = Path("/state")


def ids(**bounds: int) -> st.SearchStrategy[MessageId]:
    """Message ids, of a few or of all ledgers and entries."""
    numbers = st.integers(0, bounds["most"]) if bounds else INT64
    return st.builds(
        MessageId,
        st.integers(1, 3) if bounds else INT64,
        numbers,
        st.integers(-1, 1) if bounds else st.integers(-1, 2**31 - 1),
        st.integers(-1, 2) if bounds else st.integers(-1, 2**31 - 1),
        topic=st.sampled_from([None, "a", "persistent://public/default/ü"]),
    )


@asynccontextmanager
async def opened(
    files: MemoryFiles | FaultyFiles, clock: ManualClock | None = None, **options: Any
) -> AsyncIterator[tuple[DurableNacks, LocalLogStore]]:
    """Running durable state, and its store."""
    options = {"memory_ms": 60_000, "ttl_ms": 7 * 86_400_000, "clock": clock or ManualClock(1_000), **options}
    async with await LocalLogStore.open(FOLDER, files=files) as store:
        durable = await DurableNacks(**options).open(store)
        running = asyncio.create_task(durable.run())
        try:
            yield durable, store
            await durable.finish()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await durable.aclose()


# --- records ---------------------------------------------------------------------------------------------------------


@given(ids(), INT64, INT64, st.integers(-1, 2**40), st.sampled_from(list(RecordKind)[:6]))
def test_changes_are_read_as_written(message_id: MessageId, at: int, time: int, count: int, kind: RecordKind) -> None:
    """U9: every field of a change is equal when read, also topic and count -1; a count beyond 32 bits is cut."""
    read = records.decode_record(Change(kind, message_id, at, time, count).encode())
    assert isinstance(read, Change)
    assert read == (kind, message_id, at, time, min(count, 2**32 - 2))
    assert read.id.topic == message_id.topic


@given(
    st.lists(st.tuples(INT64, st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**32 - 1))),
    st.sampled_from([None, "t"]),
)
def test_pages_are_read_as_written(rows: list[tuple[int, int, int]], topic: str | None) -> None:
    """U9: a page's columns are equal when read, on machines of either byte order."""
    columns = [array(code, [row[at] for row in rows]) for at, code in enumerate("QqI")]
    page = PendingPage(3, -1, 17, topic, *columns)
    assert records.decode_record(page.encode()) == page


@given(st.integers(1, 300), st.data())
def test_acks_of_a_batch_are_read_as_written(size: int, data: st.DataObject) -> None:
    """U3: a batch's acknowledged members are equal when read."""
    entry = BatchAcks(MessageId(1, 2, batch_size=size, topic="t"), 5, data.draw(st.integers(0, 2**size - 1)))
    read = records.decode_record(entry.encode())
    assert read == entry
    assert isinstance(read, BatchAcks)
    assert (read.id.batch_size, read.id.topic) == (size, "t")


def test_numbers_lie_in_the_same_order_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """U9: a little-endian machine writes the same bytes as a big-endian one, which swaps columns."""
    column = array("Q", [1, 2])
    monkeypatch.setattr(sys, "byteorder", "big")
    assert records._column_bytes(column) == array("Q", [1 << 56, 2 << 56]).tobytes()
    assert list(column) == [1, 2]


@pytest.mark.parametrize("data", [b"", b"\x11", b"\x1f" + bytes(80), b"\x17" + b"\x01" * 60, b"\x18\x00"])
def test_unreadable_records_are_refused(data: bytes) -> None:
    """U22: foreign bytes are refused."""
    with pytest.raises(records.UnreadableRecordError):
        records.decode_record(data)


@pytest.mark.parametrize(
    "data",
    [
        RangeAcks(MessageId(1, 0), 5, [(0, 1 << 31), (1 << 32, 1 << 40)]).encode(),
        BatchAcks(MessageId(1, 2, batch_size=1 << 21), 5, 1).encode(),
        BatchAcks(MessageId(1, 2, batch_size=9), 5, 1 << 12).encode(),
    ],
    ids=["too many entries", "too large a batch", "more members than the batch has"],
)
def test_records_of_more_than_a_broker_has_are_refused(data: bytes) -> None:
    """A short record that would fill the memory of its reader, or that could not be written again, is refused."""
    with pytest.raises(records.UnreadableRecordError, match=r"no broker has|more than 4294967296 entries"):
        records.decode_record(data)


# --- memory ----------------------------------------------------------------------------------------------------------


def covers(mark: MessageId, message_id: MessageId, topic: str | None) -> bool:
    """Return whether a cumulative acknowledgement of ``mark`` covers a message, in plain words."""
    if message_id.partition != mark.partition or not (topic is None or mark.topic is None or topic == mark.topic):
        return False
    last = float("inf") if mark.batch_index < 0 else mark.batch_index
    return (message_id.ledger, message_id.entry, message_id.batch_index) <= (mark.ledger, mark.entry, last)


@examples(100)
@given(st.data())
def test_pending_messages_are_a_map(data: st.DataObject) -> None:
    """U9: puts, drops of members and of entries, cumulative drops, drops by age and pages do what a dict would."""
    pending, model = PendingMessages(), dict[MessageId, tuple[int, int]]()
    some = ids(most=600).map(lambda each: each._replace(topic=None))
    for _ in range(data.draw(st.integers(0, 40))):
        kind = data.draw(st.sampled_from(["put", "put", "put", "put", "drop", "through", "before", "reload"]))
        message_id, time = data.draw(some), data.draw(st.integers(0, 50))
        if kind == "put":
            pending.put(message_id, time, 2)
            model[message_id] = (time, 2)
        elif kind == "drop":
            pending.drop(message_id)
            is_whole = message_id.batch_index < 0
            model = {k: v for k, v in model.items() if (k[:3] != message_id[:3] if is_whole else k != message_id)}
        elif kind == "through":
            pending.drop_up_to(message_id)
            model = {k: v for k, v in model.items() if not covers(message_id, k, None)}
        elif kind == "before":
            list(pending.drop_before(time))
            model = {k: v for k, v in model.items() if v[0] >= time}
        else:
            copy = PendingMessages()
            for page in pending.pages():
                read = records.decode_record(page.encode())
                assert isinstance(read, PendingPage)
                copy.load(read)
            pending = copy
        pending._check()
        assert len(pending) == len(model)
        assert all(pending.find(each) == found for each, found in model.items())
        assert pending.find(message_id) == model.get(message_id)


def test_topics_are_kept_apart() -> None:
    """U35: a cumulative acknowledgement of one topic leaves another topic's messages of lower ledgers alone."""
    pending = PendingMessages()
    pending.put(MessageId(1, 1, topic="a"), 5, 0)
    pending.put(MessageId(2, 1, topic="b"), 5, 0)
    pending.put(MessageId(3, 1), 5, 0)
    pending.put(MessageId(3, 2, topic="b"), 5, 0)
    pending.drop_up_to(MessageId(3, 9, topic="b"))
    assert pending.find(MessageId(1, 1)) == (5, 0)
    assert len(pending) == 1


@pytest.mark.slow
def test_large_batches_are_written_in_parts() -> None:
    """U9: a page with more messages than a record may hold is written in several, and equal when read."""
    pending, copy = PendingMessages(), PendingMessages()
    for index in range(150_000):
        pending.put(MessageId(1, 7, batch_index=index), index, 1)
    parts = [page.encode() for page in pending.pages()]
    assert len(parts) == 3
    assert max(map(len, parts)) < 2 << 20
    pages = [page for part in parts if isinstance(page := records.decode_record(part), PendingPage)]
    for page in pages:
        copy.load(page)
    copy._check()
    assert copy.find(MessageId(1, 7, batch_index=149_999)) == (149_999, 1)
    with pytest.raises(ValueError, match="already"):
        copy.load(pages[-1])


@pytest.mark.parametrize(("step", "most"), [(1, 32), (10, 60)])
def test_memory_is_small(step: int, most: int) -> None:
    """U9: a pending message takes some 25 bytes if they are dense, and 50 if one in ten is nacked."""
    some = [MessageId(5, entry) for entry in range(0, size(50_000, fast=20_000) * step, step)]
    tracemalloc.start()
    try:
        pending = PendingMessages()
        for message_id in some:
            pending.put(message_id, 1_800_000_000_000, 3)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken / len(some) < most


def test_acks_are_remembered_for_a_time() -> None:
    """U10: acknowledgements are remembered for a time, up to an 8th longer; time without connection does not count."""
    acks = AckedMessages(800)
    acks.add(MessageId(1, 1, topic="t"), 5_000)
    acks.skip_time(5_000, 10_005_000)
    acks.add(MessageId(1, 2), 10_005_099)
    acks.add(MessageId(1, 4), 10_005_100)
    assert [item.ranges for item in acks.records() if isinstance(item, RangeAcks)] == [[(1, 2)], [(4, 4)]]
    assert next(acks.records()).id.topic == "t"
    assert acks.is_acked(MessageId(1, 1), 10_005_899)
    assert not acks.is_acked(MessageId(1, 1), 10_005_900)
    assert acks.is_acked(MessageId(1, 4), 10_005_900)
    acks._check()
    acks.drop_old(10_020_000, 5)
    assert (len(acks), acks.bytes, acks.entries) == (0, 0, 0)


@pytest.mark.parametrize("late_ms", [0, 1])
def test_a_slice_goes_as_a_whole(late_ms: int) -> None:
    """K51: a slice's acknowledgements are forgotten together, when the youngest is old enough."""
    acks = AckedMessages(60_000)
    for at_ms in range(0, 60_000, 250):
        acks.add(MessageId(1, at_ms // 250), at_ms)
    assert len(acks) == SLICES
    acks.drop_old(7_250 + 60_000 + late_ms, 10**9)
    assert acks.is_acked(MessageId(1, 0), 67_250 + late_ms) is not bool(late_ms)
    assert len(acks) == SLICES - late_ms
    acks._check()


def test_a_batch_is_remembered_until_it_is_done() -> None:
    """U3: members are remembered until all are acknowledged, then the entry; a redelivered one is forgotten."""
    acks = AckedMessages(1_000)
    member = MessageId(1, 1, batch_index=0, batch_size=3)
    acks.add(member, 100)
    acks.add(member._replace(batch_index=2), 100)
    assert list(acks.records()) == [(MessageId(1, 1), 100, 0b101)]
    acks.forget(member)
    assert [item.acked for item in acks.records() if isinstance(item, BatchAcks)] == [0b100]
    acks.forget(member._replace(batch_index=2))
    assert len(acks) == 0
    for index in range(3):
        acks.add(member._replace(batch_index=index), 200)
    assert list(acks.records()) == [RangeAcks(MessageId(1, 0), 200, [(1, 1)])]
    acks.add(member, 200)
    assert acks.entries == 1
    acks.add(MessageId(1, 2, batch_index=0, batch_size=2), 200)
    acks.drop_old(1_500, 4_000)
    assert [item.id for item in acks.records()] == [MessageId(1, 2)]
    acks.drop_old(5_000, 4_000)
    assert len(acks) == 0


def test_members_that_contradict_their_batch_can_be_written() -> None:
    """A member out of range, or of a batch of another size than before, does not prevent compaction."""
    state = DurableState(1_000, 1_000)
    member = MessageId(1, 1, batch_index=1, batch_size=3)
    ids = [
        member,
        member._replace(batch_index=9),
        member._replace(batch_index=19, batch_size=20),
        MessageId(1, 2, batch_index=2**31 - 1, batch_size=2**31 - 1),
        MessageId(1, 3, batch_index=1 << 24, batch_size=5),
    ]
    for message_id in ids:
        state.apply(Change(RecordKind.ACKED, message_id, 5, 5))
    written = [records.decode_record(data) for data in state.snapshot(5) if data is not None]
    assert [item for item in written if isinstance(item, BatchAcks)] == [(MessageId(1, 1), 5, 1 << 19 | 0b10)]
    assert [item.id.batch_size for item in written if isinstance(item, BatchAcks)] == [20]


def test_cumulative_acks_end_batches() -> None:
    """U35: acknowledgements before a cumulative one are replaced by its mark."""
    acks = AckedMessages(1_000)
    for entry in range(3):
        acks.add(MessageId(1, entry, batch_index=0, batch_size=2, topic="t"), 100)
    acks.add_up_to(MessageId(1, 1, topic="t"), 150)
    acks.add_up_to(MessageId(0, 0, topic="u"), 150)
    found = list(acks.records())
    assert [item.id for item in found] == [MessageId(1, 2), MessageId(1, 1), MessageId(0, 0)]
    assert is_same_topic(found[0].id, MessageId(1, 1, topic="t"))
    acks._check()


@examples(60)
@given(st.data())
def test_a_picture_may_be_drawn_while_changes_go_on(data: st.DataObject) -> None:
    """U9: a snapshot taken piece by piece between changes, with later changes, gives the same as all changes."""
    state = DurableState(10**9, 10**9)
    some = ids(most=4).map(lambda each: each._replace(topic=None, batch_size=3 if each.batch_index >= 0 else 0))
    kinds = st.sampled_from([RecordKind.NACKED, RecordKind.NACKED, RecordKind.DELIVERED, RecordKind.ACKED])
    made = 0

    def change() -> Change:
        nonlocal made
        made += 1
        return Change(data.draw(kinds), data.draw(some), made, made, made)

    for _ in range(data.draw(st.integers(0, 30))):
        state.apply(change())
    picture, later = [], []
    for piece in state.snapshot(made):
        picture += [] if piece is None else [piece]
        if data.draw(st.booleans()):
            later.append(change())
            state.apply(later[-1])
    copy = DurableState(10**9, 10**9)
    for piece in picture:
        copy.apply(records.decode_record(piece))
    for each in later:
        copy.apply(each)
    copy.pending._check()
    copy.acked._check()
    state.acked._check()
    assert sorted(map(str, copy.pending.pages())) == sorted(map(str, state.pending.pages()))
    assert acked(copy) == acked(state)


def acked(state: DurableState) -> set[str]:
    """Return what has to be acknowledged again, with the members of batches; a range entry by entry."""
    found = set()
    for item in state.acknowledged():
        if isinstance(item, RangeAcks):
            found |= {str(entry) for entry in entries_of(item)}
        else:
            found.add(f"{item.id} {item.acked if isinstance(item, BatchAcks) else ''}")
    return found


# --- logs ------------------------------------------------------------------------------------------------------------


async def test_logs_stay_short() -> None:
    """U9: many changes of few messages take space in proportion to the pending ones; the rest is compacted away."""
    files = MemoryFiles()
    async with opened(files, compact_bytes=20_000) as (durable, store):
        for turn in range(300):
            changes = [durable.nacked(MessageId(1, entry), 60_000, turn) for entry in range(10)]
            changes += [durable.delivered(MessageId(2, turn), 0), durable.acked(MessageId(2, turn))]
            assert set(await asyncio.gather(*changes)) == {None}
        for _ in range(100):
            await asyncio.sleep(0.002)
        assert durable.journal.compactions > 5
        assert durable.journal.bytes < 80_000
        assert len(await store.names()) <= 4
        assert len(durable.state.pending) == 10
    async with opened(files) as (durable, _):
        assert durable.state.pending.find(MessageId(1, 3)) == (61_000, 299)


async def test_what_does_not_come_is_forgotten_in_the_end() -> None:
    """U9: compaction drops messages that did not come for ``durable_ttl`` after their deadline, and no others."""
    files, clock = MemoryFiles(), ManualClock(1_000)
    async with opened(files, clock, ttl_ms=100_000, compact_bytes=3_000) as (durable, _):
        for entry in range(20):
            await durable.nacked(MessageId(1, entry), 10_000 if entry < 10 else 500_000, 1)
        clock.advance(111_001)
        while durable.journal.compactions < 1 or len(durable.state.pending) != 11:
            await durable.delivered(MessageId(2, 0), 0)
    async with opened(files, clock) as (durable, _):
        assert durable.state.pending.find(MessageId(1, 0)) is None
        assert durable.state.pending.find(MessageId(1, 10)) == (501_000, 1)


async def test_compaction_never_deletes_what_somebody_else_made() -> None:
    """U22: a foreign log with the next number, as after a takeover, stops compaction, not writing."""
    files = MemoryFiles()
    async with opened(files, compact_bytes=1_000) as (durable, store):
        async with await store.create(generations.log_name(2)) as other:
            await other.append(b"theirs")
        for turn in range(50):
            assert await durable.nacked(MessageId(1, turn), 60_000, turn) is None
        assert (durable.journal.compactions, durable.journal.failures) == (0, 1)
        async with await store.open_log(generations.log_name(2)) as other:
            assert await other.read(0, 0) == [b"theirs"]


class KeepsAll(LocalLogStore):
    """A store that refuses to delete."""

    async def delete(self, name: str) -> None:
        """Refuse."""
        raise LogStorageError(name, "delete it", "no rights")


async def test_logs_that_cannot_be_deleted_do_no_harm() -> None:
    """U22: without the right to delete, compaction continues as often as it should, and old logs do not count."""
    files = MemoryFiles()
    options: dict[str, Any] = {"memory_ms": 0, "ttl_ms": 10**9, "clock": ManualClock(1_000)}
    for life in range(3):
        async with await KeepsAll.open(FOLDER, files=files) as store:
            durable = await DurableNacks(compact_bytes=10_000, **options).open(store)
            assert durable.state.pending.find(MessageId(1, 1)) == ((61_000, 599) if life else None)
            running = asyncio.create_task(durable.run())
            for turn in range(600):
                assert await durable.nacked(MessageId(1, 1), 60_000, turn) is None
            await asyncio.sleep(0.05)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert 2 <= durable.journal.compactions <= 7
            await durable.aclose()
    async with opened(files) as (durable, store):
        assert len(await store.names()) <= 3


async def test_a_log_that_the_opening_could_not_delete() -> None:
    """The next log, which was made before a crash and could not be deleted after it, does not prevent compaction."""
    files = FaultyFiles(MemoryFiles())
    async with opened(files) as (_, store):
        await (await store.create(generations.log_name(2))).aclose()
    files.fail(errno.EIO, "rename")
    async with opened(files, compact_bytes=1_000) as (durable, store):
        assert generations.log_name(2) in await store.names()
        for turn in range(50):
            assert await durable.nacked(MessageId(1, turn), 60_000, turn) is None
        assert durable.journal.compactions > 0
        assert durable.journal.failures == 0


def journal_of(store: LogStore) -> Journal:
    """Return a journal that is not open."""
    return Journal(store, DurableState(1, 1), ManualClock(1_000))


async def test_epoch_time_never_goes_back() -> None:
    """U9: a wall clock that is set back continues from its old time; one that is set forward is followed."""
    files, wall = MemoryFiles(), ManualClock(2_000_000)
    async with opened(files, wall) as (durable, _):
        assert durable.journal.now_ms() == 2_000_000
    wall = ManualClock(1_000_000)
    async with opened(files, wall) as (durable, _):
        assert durable.journal.now_ms() == 2_000_000
        wall.advance(5)
        assert durable.journal.now_ms() == 2_000_005
        wall.advance(10_000_000)
        assert durable.journal.now_ms() == 12_000_005


async def test_missing_and_foreign_logs_are_refused() -> None:
    """U22: a missing log, an unsealed one before others, or a later version: an error names it."""
    for broken, error, match in (
        ("missing", LogCorruptedError, "nacks-0000000001: .* is missing"),
        ("unsealed", LogCorruptedError, "nacks-0000000001: .* has no seal, and yet nacks-0000000002 has records"),
        ("newer", LogVersionError, "record 0 has version 2"),
        ("nonsense", LogCorruptedError, "record 0 is damaged"),
    ):
        async with await LocalLogStore.open(FOLDER, files=MemoryFiles()) as store:
            if broken != "missing":
                async with await store.create(generations.log_name(1)) as log:
                    await log.append({"newer": b"\x21", "nonsense": b"\x11"}.get(broken, b""))
            if broken in {"missing", "unsealed"}:
                async with await store.create(generations.log_name(2)) as log:
                    await log.append(b"x")
            before = await store.names()
            with pytest.raises(error, match=match):
                await journal_of(store).open()
            assert await store.names() == before


async def test_a_base_without_its_log_is_refused() -> None:
    """U22: a sealed base whose successor is missing is damage; an unsealed one does not count."""
    async with await LocalLogStore.open(FOLDER, files=MemoryFiles()) as store:
        async with await store.create(generations.base_name(1)) as base:
            await base.seal()
        part = await store.take_ownership(generations.STATE)
        with pytest.raises(LogCorruptedError, match="nacks-0000000002"):
            await journal_of(part).open()
        await part.aclose()
        await store.delete(generations.base_name(1))
        async with await store.create(generations.base_name(1)):
            pass
        journal = journal_of(store)
        await journal.open()
        assert (journal._number, await store.names()) == (1, ["nacks-0000000001"])
        await journal._log.aclose()


@pytest.mark.slow
async def test_recovery_is_fast() -> None:
    """U9: 300 000 compacted pending messages are recovered in a moment, and the loop stays free."""
    files = MemoryFiles()
    async with opened(files, compact_bytes=1 << 20) as (durable, _):
        for ledger in range(30):
            changes = [durable.nacked(MessageId(ledger, entry, topic="t"), 60_000, 1) for entry in range(10_000)]
            await asyncio.gather(*changes)
        assert durable.journal.compactions > 1
    loop = asyncio.get_running_loop()
    longest, last = 0.0, loop.time()

    async def watch() -> None:
        nonlocal longest, last
        while True:
            await asyncio.sleep(0)
            longest, last = max(longest, loop.time() - last), loop.time()

    watching = asyncio.create_task(watch())
    began = loop.time()
    async with opened(files) as (durable, _):
        assert loop.time() - began < 20
        assert len(durable.state.pending) == 300_000
    watching.cancel()
    assert longest < 1.0
