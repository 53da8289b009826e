"""Sealed parts of buckets that cost nothing per id.

An *id range* ``(start, low, high)`` says: every pending number from ``low`` to ``high`` belongs to the bucket that
starts at ``start``. It stores no ids; the bitmap of pending numbers is its content. So it stays true while ids in it
are cancelled, and becomes false when another bucket gets a number within it: before that, the owner looks the new
number up in :attr:`IdRanges.covered` and removes the range.

Rows are kept in three arrays, ordered by start: 20 bytes a range. Ranges never overlap. Rows before ``_head`` are
removed: ranges mostly go in their order, and moving all others up each time would make taking n of them O(n ** 2).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from pyroaring import BitMap, BitMap64

_ROW_BYTES: Final = 20


class IdRange(NamedTuple):
    """A range of numbers, including both ends, of the bucket that starts at ``start`` (ms)."""

    start: int
    low: int
    high: int


class IdRanges:
    """All id ranges of one index; ``covered`` are the numbers in them.

    With n ranges: adding at the end, reading and taking the first are O(1), amortized; the rest is O(n) in C.
    """

    __slots__ = ("_head", "_highs", "_lows", "_starts", "covered")

    def __init__(self) -> None:
        self._starts: array[int] = array("q")
        self.clear()

    def clear(self) -> None:
        """Remove all ranges; numbers have 32 bits again."""
        self.covered: Any = BitMap()
        self._head = 0
        del self._starts[:]
        self._lows: array[int] = array("I")
        self._highs: array[int] = array("I")

    def widen(self) -> None:
        """Change to numbers of 64 bits."""
        self._lows, self._highs = array("Q", self._lows), array("Q", self._highs)
        self.covered = BitMap64()
        for each in self:
            self.covered.add_range(each.low, each.high + 1)

    def __len__(self) -> int:
        return len(self._starts) - self._head

    def __iter__(self) -> Iterator[IdRange]:
        return islice(map(IdRange, self._starts, self._lows, self._highs), self._head, None)

    def memory(self) -> int:
        """Return about how many bytes the rows take. O(1)."""
        return _ROW_BYTES * len(self)

    def first_start(self) -> int | None:
        """Return the earliest start, None if there is no range."""
        return self._starts[self._head] if len(self) else None

    def last_of(self, start: int) -> IdRange | None:
        """Return the range that was added last for a start."""
        row = bisect_right(self._starts, start, self._head) - 1
        if row < self._head or self._starts[row] != start:
            return None
        return IdRange(start, self._lows[row], self._highs[row])

    def of(self, start: int) -> list[IdRange]:
        """Return the ranges of one bucket."""
        first, last = self._rows(start)
        return [IdRange(start, self._lows[row], self._highs[row]) for row in range(first, last)]

    def try_add(self, start: int, low: int, high: int, count: int, pending: Any) -> bool:
        """Add a range for ``count`` numbers of a bucket if no other pending number lies within it.

        It extends the last range of the bucket if nothing lies between the two.
        """
        if pending.range_cardinality(low, high + 1) != count or self.covered.range_cardinality(low, high + 1):
            return False
        last = self.last_of(start)
        if (
            last is not None
            and last.high < low
            and last.high >> 16 == low >> 16
            and not pending.range_cardinality(last.high + 1, low)
            and not self.covered.range_cardinality(last.high + 1, low)
        ):
            self.extend(start, high)
        else:
            self.add(IdRange(start, low, high))
        return True

    def add(self, added: IdRange) -> None:
        """Add a range, no number of which may be covered."""
        row = bisect_right(self._starts, added.start, self._head)
        self._starts.insert(row, added.start)
        self._lows.insert(row, added.low)
        self._highs.insert(row, added.high)
        self.covered.add_range(added.low, added.high + 1)

    def extend(self, start: int, high: int) -> None:
        """Extend the range that was added last for ``start`` up to ``high``."""
        row = bisect_right(self._starts, start, self._head) - 1
        self.covered.add_range(self._highs[row] + 1, high + 1)
        self._highs[row] = high

    def take(self, start: int) -> list[IdRange]:
        """Remove and return the ranges of one bucket."""
        first, last = self._rows(start)
        if first == last:
            return []
        taken = self.of(start)
        self._delete(first, last)
        return taken

    def take_until(self, start: int) -> list[IdRange]:
        """Remove and return the ranges of all buckets that start at ``start`` or before, earliest first."""
        first, last = self._head, bisect_right(self._starts, start, self._head)
        taken = list(map(IdRange, self._starts[first:last], self._lows[first:last], self._highs[first:last]))
        self._delete(first, last)
        return taken

    def take_around(self, number: int) -> IdRange:
        """Remove and return the range that holds ``number``. Fast if ranges are in order of number too.

        With one delay they are. Else the latest are tried first.
        """
        lows, highs, head = self._lows, self._highs, self._head
        guess = max(bisect_right(lows, number, head) - 1, head)
        for row in chain((guess,), range(len(lows) - 1, head - 1, -1)):
            if row < len(lows) and lows[row] <= number <= highs[row]:
                found = IdRange(self._starts[row], lows[row], highs[row])
                self._delete(row, row + 1)
                return found
        raise KeyError(number)

    def _rows(self, start: int) -> tuple[int, int]:
        first = bisect_left(self._starts, start, self._head)
        return first, bisect_right(self._starts, start, first)

    def _delete(self, first: int, last: int) -> None:
        for row in range(first, last):
            self.covered.remove_range(self._lows[row], self._highs[row] + 1)
        if first > self._head:
            self._cut(first, last)
        else:
            self._head = last
            if 2 * last >= len(self._starts):
                self._cut(0, last)
                self._head = 0

    def _cut(self, first: int, last: int) -> None:
        for column in (self._starts, self._lows, self._highs):
            del column[first:last]


def numbers_in(ranges: Iterable[IdRange], pending: Any) -> Any:
    """Return the pending numbers within some id ranges, as a bitmap."""
    covered = type(pending)()
    for each in ranges:
        covered.add_range(each.low, each.high + 1)
    return covered & pending if covered else covered
