"""The gate over real acknowledgement state: written state stays within the limit."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from pulsar_nack import Position
from pulsar_nack.cursor import BatchSet, DispatchGate, Reserve, adds_range, worst_growth
from pulsar_nack.cursor._acks import AckState
from pulsar_nack.cursor.format._ledger import LedgerAcks
from pulsar_nack.index import EntryRanges
from tests.tiers import seeds

pytest.importorskip("google.protobuf")

from pulsar_nack.cursor.format._ledger import encode_ledger
from pulsar_nack.cursor.format._marker import Marker, encode_marker

from .states import contents

LEDGERS = {1: 3_000, 2: 40, 3: 1, 4: 30_000, 2**62: 500}
ORDER = [Position(ledger, entry) for ledger, entries in LEDGERS.items() for entry in range(entries)]


def written(state: AckState) -> int:
    """Return how many bytes writing the whole state takes."""
    ledgers = sum(len(record) for each, acks in state.table.states.items() for record in encode_ledger(each, acks))
    references = {ledger: (2**40 + ledger % 1_000,) for ledger in state.table.states}
    return ledgers + sum(map(len, encode_marker(Marker(2**62, contents(state.mark_delete_position), references))))


@pytest.mark.parametrize("dense", [100, 1_000, 4_000, 16_000])
@pytest.mark.parametrize("step", [2, 3, 8])
def test_a_far_entry_of_a_dense_ledger(dense: int, step: int) -> None:
    """K48: an ack far beyond a ledger that is stored as bits costs many; the reserve knows how many."""
    acked = EntryRanges.from_ranges((entry, entry) for entry in range(0, dense, step))
    before = sum(map(len, encode_ledger(1, LedgerAcks(acked))))
    for far in (dense, dense + 100, dense + 3_000, 49_999, 200_000):
        reserve = Reserve({1: acked}.get)
        reserve.add(Position(1, far))
        after = acked.copy()
        after.add(far)
        assert sum(map(len, encode_ledger(1, LedgerAcks(after)))) - before <= reserve.bytes


@pytest.mark.parametrize("size", [2, 64, 65, 1_000, 5_000])
def test_batches(size: int) -> None:
    """K48: parts of batches, each in another ledger, take no more than the reserve has for them."""
    positions = [Position(2**62 + number, 2**62) for number in range(30)]
    state, reserve = AckState(None, (0, 0)), Reserve()
    empty = written(state)
    for number, position in enumerate(positions):
        reserve.add(position, size)
        state.acknowledge([position], {position: BatchSet.acked(size, [number % size])})
        assert written(state) - empty <= reserve.bytes
    assert reserve.bytes == 30 * (worst_growth(size) + 64)


class Reader:
    """Reads a topic in order; some messages are delayed, and due at any time."""

    def __init__(self, seed: int, limit: int) -> None:
        self.random = random.Random(seed)
        self.state = AckState(LEDGERS, (1, -1))
        self.reserve = Reserve(lambda ledger: acks.ranges if (acks := self.state.table.states.get(ledger)) else None)
        self.gate = DispatchGate(limit, lambda: written(self.state), lambda: self.reserve.bytes)
        self.delayed_share = self.random.choice([0, 0, 0.3, 0.5])
        self.skips = self.random.choice([0, 0, 3, 3_000])
        self.next = 0
        self.old: set[Position] = set()

    def read(self, wanted: int) -> int:
        """Dispatch new messages; return how many."""
        sent = 0
        while sent < wanted and self.next < len(ORDER):
            position = ORDER[self.next]
            if self.random.random() < self.delayed_share:
                self.old.add(position)
                self.next += 1
                continue
            for skipped in range(self.next, min(self.next + self.random.randint(0, self.skips), len(ORDER) - 1)):
                self.old.add(ORDER[skipped])
                self.next += 1
            position = ORDER[self.next]
            if not self.gate.admit_new(1, adds_range=position != self.lowest):
                return sent
            self.reserve.add(position)
            self.next += 1
            sent += 1
        return sent

    @property
    def lowest(self) -> Position:
        """Return the lowest unacknowledged message."""
        return next((each for each in ORDER if each > self.state.mark_delete_position), ORDER[-1])

    def replay(self, some: list[Position]) -> int:
        """Dispatch some due messages, lowest first; return how many."""
        sent = 0
        for position in sorted(some):
            is_new = adds_range(position, lowest=self.lowest, is_acked=self.state.is_acked)
            is_below = position < self.state.highest_acked
            if self.gate.admit_due(1, is_below=is_below, adds_range=is_new):
                self.reserve.add(position)
                self.old.discard(position)
                sent += 1
        return sent

    def ack(self, positions: list[Position]) -> None:
        for position in positions:
            self.reserve.discard(position)
        self.state.acknowledge(positions)
        self.gate.changed()


@pytest.mark.parametrize("chosen", seeds([[3], range(25)]), ids=["one", "all"])
def test_never_beyond_the_limit(chosen: Sequence[int]) -> None:
    """K48: with holes, delays and gaps, in any order of acknowledging, written state never exceeds the limit."""
    paused = 0
    for seed in chosen:
        limit = random.Random(seed).choice([1_024, 2_000, 6_000])
        reader = Reader(seed, limit)
        for _ in range(60):
            step(reader)
            assert written(reader.state) <= limit
        paused += reader.gate.statistics().times_paused
        assert reader.next > 50
    assert paused > len(chosen)


def step(reader: Reader) -> None:
    """Read, acknowledge some messages in flight, return some to the queue, and let some become due."""
    choose = reader.random
    reader.read(choose.randint(1, 40))
    flying = sorted(reader.reserve)
    choose.shuffle(flying)
    share = choose.randint(0, len(flying))
    reader.ack(flying[:share])
    for position in flying[share : share + 5]:
        reader.reserve.discard(position)
        reader.old.add(position)
    reader.gate.changed()
    if reader.old and choose.random() < 0.3:
        reader.replay(choose.sample(sorted(reader.old), min(20, len(reader.old))))
