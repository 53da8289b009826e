"""Acknowledged entries in slices of time, each of them the acknowledged ranges of some ledgers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from ...ids import MessageId
from ...index import EntryRanges
from ._records import MOST_RANGES, RangeAcks, batch_bytes, ranges_bytes

_SHORT: Final = 8

LedgerKey = tuple[int, int]
"""Ledger, partition."""


@dataclass(slots=True)
class _Ledger:
    topic: str | None
    ranges: EntryRanges = field(default_factory=EntryRanges)

    @property
    def bytes(self) -> int:
        return batch_bytes(self.topic, 0) + ranges_bytes(self.ranges.range_count)


@dataclass(slots=True)
class _Slice:
    first_ms: int
    last_ms: int
    ledgers: dict[LedgerKey, _Ledger] = field(default_factory=dict)


class Slices:
    """Whole entries that were acknowledged, oldest first. Each call is O(slices), but where noted.

    :param step_ms: the span of a slice
    """

    def __init__(self, step_ms: int) -> None:
        self.bytes = 0
        """About what writing all of it takes; kept, not counted."""
        self._step_ms = step_ms
        self._slices: deque[_Slice] = deque()

    def __len__(self) -> int:
        """Return how many ledgers there are, in each slice anew."""
        return sum(len(each.ledgers) for each in self._slices)

    @property
    def entries(self) -> int:
        """Return how many entries there are. O(ledgers)."""
        return sum(len(ledger.ranges) for each in self._slices for ledger in each.ledgers.values())

    @property
    def last_ms(self) -> int:
        """Return the time of the youngest acknowledgement, 0 for none."""
        return self._slices[-1].last_ms if self._slices else 0

    @property
    def oldest_ms(self) -> int | None:
        """Return the time of the youngest acknowledgement of the oldest slice, None when there is none."""
        return self._slices[0].last_ms if self._slices else None

    def __contains__(self, message_id: MessageId) -> bool:
        entry, key = message_id.entry, _ledger_key(message_id)
        for each in self._slices:
            ledger = each.ledgers.get(key)
            if ledger is not None and entry in ledger.ranges:
                return True
        return False

    def reach_beyond(self, message_id: MessageId) -> bool:
        """Return whether higher entries of the ledger are acknowledged: this one is a hole."""
        found = (each.ledgers.get(_ledger_key(message_id)) for each in self._slices)
        lasts = (ledger.ranges.last for ledger in found if ledger is not None)
        return any(last is not None and last > message_id.entry for last in lasts)

    def touch(self, message_id: MessageId) -> bool:
        """Return whether adding this one now makes no further range."""
        if not self._slices:
            return False
        ledger = self._slices[-1].ledgers.get(_ledger_key(message_id))
        entry = message_id.entry
        return ledger is not None and (entry - 1 in ledger.ranges or entry + 1 in ledger.ranges)

    def add(self, message_id: MessageId, at_ms: int) -> None:
        """Add an entry; times ascend."""
        ledger = self._newest(message_id, at_ms)
        before = ledger.ranges.range_count
        ledger.ranges.add(message_id.entry)
        self.bytes += ranges_bytes(ledger.ranges.range_count - before)

    def load(self, message_id: MessageId, at_ms: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Add ranges of a ledger. O(ranges)."""
        ledger = self._newest(message_id, at_ms)
        before = ledger.ranges.range_count
        ledger.ranges.add_many(
            entry for first, last in ranges if last - first < _SHORT for entry in range(first, last + 1)
        )
        for first, last in ranges:
            if last - first >= _SHORT:
                ledger.ranges.add_range(first, last)
        self.bytes += ranges_bytes(ledger.ranges.range_count - before)

    def _newest(self, message_id: MessageId, at_ms: int) -> _Ledger:
        """Return what the present slice has of a message's ledger."""
        newest = self._slices[-1] if self._slices else None
        if newest is None or at_ms - newest.first_ms >= self._step_ms:
            newest = _Slice(at_ms, at_ms)
            self._slices.append(newest)
        newest.last_ms = max(newest.last_ms, at_ms)
        key = _ledger_key(message_id)
        ledger = newest.ledgers.get(key)
        if ledger is None:
            ledger = newest.ledgers[key] = _Ledger(message_id.topic)
            self.bytes += ledger.bytes
        return ledger

    def discard(self, message_id: MessageId) -> bool:
        """Take an entry out; return whether it was there."""
        entry, key = message_id.entry, _ledger_key(message_id)
        was_there = False
        for each in self._slices:
            ledger = each.ledgers.get(key)
            if ledger is not None and entry in ledger.ranges:
                before = ledger.ranges.range_count
                ledger.ranges.discard_range(entry, entry)
                self.bytes += ranges_bytes(ledger.ranges.range_count - before)
                was_there = True
        return was_there

    def drop_before(self, at_ms: int) -> None:
        """Drop the slices whose youngest acknowledgement is older. O(ledgers that go)."""
        while self._slices and self._slices[0].last_ms < at_ms:
            self.bytes -= sum(ledger.bytes for ledger in self._slices.popleft().ledgers.values())

    def clear(self) -> None:
        """Drop all."""
        self._slices.clear()
        self.bytes = 0

    def items(self, away_ms: int) -> Iterator[RangeAcks]:
        """Go through all as records of some thousand ranges, ``away_ms`` later; it may change meanwhile."""
        for each in list(self._slices):
            for (number, partition), ledger in list(each.ledgers.items()):
                message_id = MessageId(number, 0, partition, topic=ledger.topic)
                ranges = ledger.ranges.copy().ranges()
                while part := list(islice(ranges, MOST_RANGES)):
                    yield RangeAcks(message_id, each.last_ms + away_ms, part)

    def _check(self) -> None:
        """Assert every invariant; for tests."""
        assert self.bytes == sum(ledger.bytes for each in self._slices for ledger in each.ledgers.values())
        times = [each.last_ms for each in self._slices]
        assert times == sorted(times)
        for each in self._slices:
            for ledger in each.ledgers.values():
                ledger.ranges._verify()


def _ledger_key(message_id: MessageId) -> LedgerKey:
    return message_id.ledger, message_id.partition
