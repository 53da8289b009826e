"""Ranges of positions: acknowledged intervals over several ledgers, as Pulsar writes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Self

from ..errors import InvalidArgumentError
from ..ids import Position
from ._ranges import EntryRanges


class PositionRange(NamedTuple):
    """The positions above ``lower`` up to ``upper``; entry -1 is before the first entry of a ledger."""

    lower: Position
    upper: Position


class PositionRanges:
    """A set of positions that is given and read as intervals (lower, upper].

    How many entries a ledger has is not known here. So an interval that ends in a later ledger than it begins in says
    for certain only that the later ledger's entries from 0 on are in it. Of the ledger in which it begins, the entries
    up to the last one that is known to be acknowledged are in it, too; of those in between, nothing is known.

    All but going through it is O(log) in the ledgers' ranges; a ledger without entries takes no room and is not seen.
    """

    __slots__ = ("_ledgers",)

    def __init__(self, ranges: Iterable[tuple[tuple[int, int], tuple[int, int]]] = ()) -> None:
        self._ledgers: dict[int, EntryRanges] = {}
        for lower, upper in ranges:
            self.add_range(lower, upper)

    @classmethod
    def from_ledgers(cls, ledgers: Iterable[tuple[int, EntryRanges]]) -> Self:
        """Make one of ledgers' entries, which are not copied; empty ones are left out."""
        made = cls()
        made._ledgers.update((ledger, entries) for ledger, entries in ledgers if entries)
        return made

    def __bool__(self) -> bool:
        return bool(self._ledgers)

    def __len__(self) -> int:
        return sum(len(entries) for entries in self._ledgers.values())

    def __contains__(self, position: tuple[int, int]) -> bool:
        entries = self._ledgers.get(position[0])
        return entries is not None and position[1] in entries

    def __iter__(self) -> Iterator[PositionRange]:
        """Go through the intervals, lowest first. They never reach from one ledger into another."""
        for ledger in sorted(self._ledgers):
            for first, last in self._ledgers[ledger].ranges():
                yield PositionRange(Position(ledger, first - 1), Position(ledger, last))

    @property
    def range_count(self) -> int:
        """Return how many intervals there are; O(ledgers)."""
        return sum(entries.range_count for entries in self._ledgers.values())

    @property
    def first(self) -> PositionRange | None:
        """Return the lowest interval, None when there is none."""
        return next(iter(self), None)

    @property
    def last(self) -> PositionRange | None:
        """Return the highest interval, None when there is none."""
        if not self._ledgers:
            return None
        ledger = max(self._ledgers)
        last = self._ledgers[ledger].last_range
        return None if last is None else PositionRange(Position(ledger, last[0] - 1), Position(ledger, last[1]))

    @property
    def span(self) -> PositionRange | None:
        """Return the interval from below the lowest position up to the highest one, None when there is none."""
        first, last = self.first, self.last
        return None if first is None or last is None else PositionRange(first.lower, last.upper)

    def ledgers(self) -> list[tuple[int, EntryRanges]]:
        """Return the ledgers that have entries in it, in order, with these. Do not change them."""
        return sorted(self._ledgers.items(), key=lambda item: item[0])

    def add(self, ledger: int, entry: int) -> bool:
        """Add one position; return whether it is new.

        :raises InvalidArgumentError: ledger or entry is out of range; nothing has changed
        """
        _checked((ledger, entry - 1), (ledger, entry))
        return self._of(ledger).add(entry)

    def add_range(self, lower: tuple[int, int], upper: tuple[int, int]) -> None:
        """Add the positions above ``lower`` up to ``upper``; see the class for intervals over several ledgers.

        :raises InvalidArgumentError: upper is below lower, or a ledger or entry is out of range; nothing has changed
        """
        begin, end = _checked(lower, upper)
        if begin.ledger == end.ledger:
            if begin.entry < end.entry:
                self._of(end.ledger).add_range(begin.entry + 1, end.entry)
            return
        known = self._ledgers.get(begin.ledger)
        highest = None if known is None else known.last
        if known is not None and highest is not None and highest > begin.entry + 1:
            known.add_range(begin.entry + 1, highest)
        if end.entry >= 0:
            self._of(end.ledger).add_range(0, end.entry)

    def discard_range(self, lower: tuple[int, int], upper: tuple[int, int]) -> int:
        """Take out the positions above ``lower`` up to ``upper``, in all ledgers between; return how many there were.

        :raises InvalidArgumentError: upper is below lower, or a ledger or entry is out of range
        """
        begin, end = _checked(lower, upper)
        gone = 0
        for ledger in [ledger for ledger in self._ledgers if begin.ledger <= ledger <= end.ledger]:
            entries = self._ledgers[ledger]
            first = begin.entry + 1 if ledger == begin.ledger else 0
            last = end.entry if ledger == end.ledger else entries.last or 0
            if first <= last:
                gone += entries.discard_range(first, last)
            if not entries:
                del self._ledgers[ledger]
        return gone

    def clear(self) -> None:
        """Take out everything."""
        self._ledgers.clear()

    def _of(self, ledger: int) -> EntryRanges:
        entries = self._ledgers.get(ledger)
        if entries is None:
            entries = self._ledgers[ledger] = EntryRanges()
        return entries


def _checked(lower: tuple[int, int], upper: tuple[int, int]) -> tuple[Position, Position]:
    begin, end = Position(*lower), Position(*upper)
    if not (begin <= end and begin.ledger >= 0 and min(begin.entry, end.entry) >= -1):
        raise InvalidArgumentError("range", (begin, end), "a lower position and one that is not below it")
    if max(begin.entry, end.entry, end.ledger) >= 2**63:
        raise InvalidArgumentError("range", (begin, end), "ledgers and entries below 2**63")
    return begin, end
