"""Acknowledged entries in slices of time; a slice has the ranges of entries that were acknowledged in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from ...ids import MessageId
from ...index import EntryRanges
from .._batches import LedgerKey
from ._records import MAX_RANGES, RangeAcks, batch_bytes, ranges_bytes

_SHORT_RANGE: Final = 8


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


class AckSlices:
    """Entries that were acknowledged as a whole, oldest first. Calls are O(slices) except where noted.

    :param step_ms: the span of a slice
    """

    def __init__(self, step_ms: int) -> None:
        self.bytes = 0
        """About the size of all records in bytes; kept up to date."""
        self._step_ms = step_ms
        self._slices: deque[_Slice] = deque()

    def __len__(self) -> int:
        """Return the sum of the slices' numbers of ledgers."""
        return sum(len(each.ledgers) for each in self._slices)

    @property
    def entries(self) -> int:
        """Return the number of entries. O(ledgers)."""
        return sum(len(ledger.ranges) for each in self._slices for ledger in each.ledgers.values())

    @property
    def last_ms(self) -> int:
        """Return the time of the newest acknowledgement, or 0."""
        return self._slices[-1].last_ms if self._slices else 0

    @property
    def oldest_ms(self) -> int | None:
        """Return the time of the newest acknowledgement in the oldest slice, or None."""
        return self._slices[0].last_ms if self._slices else None

    def __contains__(self, message_id: MessageId) -> bool:
        entry, key = message_id.entry, _ledger_key(message_id)
        for each in self._slices:
            ledger = each.ledgers.get(key)
            if ledger is not None and entry in ledger.ranges:
                return True
        return False

    def has_higher(self, message_id: MessageId) -> bool:
        """Return whether higher entries of the ledger are acknowledged, so that this one is in a hole."""
        found = (each.ledgers.get(_ledger_key(message_id)) for each in self._slices)
        lasts = (ledger.ranges.last for ledger in found if ledger is not None)
        return any(last is not None and last > message_id.entry for last in lasts)

    def extends_range(self, message_id: MessageId) -> bool:
        """Return whether adding this entry now extends a range instead of making a new one."""
        if not self._slices:
            return False
        ledger = self._slices[-1].ledgers.get(_ledger_key(message_id))
        entry = message_id.entry
        return ledger is not None and (entry - 1 in ledger.ranges or entry + 1 in ledger.ranges)

    def add(self, message_id: MessageId, at_ms: int) -> None:
        """Add an entry; times must ascend."""
        ledger = self._newest(message_id, at_ms)
        before = ledger.ranges.range_count
        ledger.ranges.add(message_id.entry)
        self.bytes += ranges_bytes(ledger.ranges.range_count - before)

    def load(self, message_id: MessageId, at_ms: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Add ranges of a ledger. O(ranges)."""
        ledger = self._newest(message_id, at_ms)
        before = ledger.ranges.range_count
        ledger.ranges.add_many(
            entry for first, last in ranges if last - first < _SHORT_RANGE for entry in range(first, last + 1)
        )
        for first, last in ranges:
            if last - first >= _SHORT_RANGE:
                ledger.ranges.add_range(first, last)
        self.bytes += ranges_bytes(ledger.ranges.range_count - before)

    def _newest(self, message_id: MessageId, at_ms: int) -> _Ledger:
        """Return the ledger of a message in the current slice."""
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
        """Remove an entry; return whether it was acknowledged."""
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
        """Drop the slices whose newest acknowledgement is older. O(dropped ledgers)."""
        while self._slices and self._slices[0].last_ms < at_ms:
            self.bytes -= sum(ledger.bytes for ledger in self._slices.popleft().ledgers.values())

    def clear(self) -> None:
        """Drop all slices."""
        self._slices.clear()
        self.bytes = 0

    def records(self, offline_ms: int) -> Iterator[RangeAcks]:
        """Return the records of all entries, with times ``offline_ms`` later; the entries may change meanwhile."""
        for each in list(self._slices):
            for (number, partition), ledger in list(each.ledgers.items()):
                message_id = MessageId(number, 0, partition, topic=ledger.topic)
                ranges = ledger.ranges.copy().ranges()
                while part := list(islice(ranges, MAX_RANGES)):
                    yield RangeAcks(message_id, each.last_ms + offline_ms, part)

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
