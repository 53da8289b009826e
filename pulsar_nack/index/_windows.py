"""Closed parts of buckets that cost nothing per id.

A *window* ``(start, low, high)`` says: every pending number from ``low`` to ``high`` belongs to the bucket that
starts at ``start``. It holds no ids of its own; the bitmap of what is pending is its content. So it stays true while
ids in it are cancelled, and becomes false the moment another bucket gets a number in its range: the owner looks a new
number up in :attr:`Windows.covered` and dissolves the window first.

Rows are kept in three arrays, ordered by start: 20 bytes a window. Ranges never overlap. Rows before ``_head`` are
gone: windows mostly go in their order, and moving all others up each time would make taking n of them O(n ** 2).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, NamedTuple

from pyroaring import BitMap


class Window(NamedTuple):
    """A range of numbers, both ends in it, of the bucket that starts at ``start`` (ms)."""

    start: int
    low: int
    high: int


class Windows:
    """All windows of one index; ``top`` is the highest covered number, -1 without one.

    n is their number: adding at the end, reading and taking the first are O(1), amortized; the rest is O(n) in C.
    """

    __slots__ = ("_head", "_highs", "_lows", "_starts", "covered", "top")

    def __init__(self, bitmap: type[Any] = BitMap, typecode: str = "I") -> None:
        self.covered: Any = bitmap()
        self.top = -1
        self._head = 0
        self._starts: array[int] = array("q")
        self._lows: array[int] = array(typecode)
        self._highs: array[int] = array(typecode)

    def __len__(self) -> int:
        return len(self._starts) - self._head

    def __iter__(self) -> Iterator[Window]:
        return islice(map(Window, self._starts, self._lows, self._highs), self._head, None)

    def first_start(self) -> int | None:
        """Return the earliest start, None when there is no window."""
        return self._starts[self._head] if len(self) else None

    def last_of(self, start: int) -> Window | None:
        """Return the window that was added last for a start."""
        row = bisect_right(self._starts, start, self._head) - 1
        if row < self._head or self._starts[row] != start:
            return None
        return Window(start, self._lows[row], self._highs[row])

    def of(self, start: int) -> list[Window]:
        """Return the windows of one bucket."""
        first, last = self._rows(start)
        return [Window(start, self._lows[row], self._highs[row]) for row in range(first, last)]

    def add(self, window: Window) -> None:
        """Add a window; its range must not be covered."""
        row = bisect_right(self._starts, window.start, self._head)
        self._starts.insert(row, window.start)
        self._lows.insert(row, window.low)
        self._highs.insert(row, window.high)
        self.covered.add_range(window.low, window.high + 1)
        self.top = max(self.top, window.high)

    def extend(self, start: int, high: int) -> None:
        """Let the window that was added last for ``start`` reach up to ``high``."""
        row = bisect_right(self._starts, start, self._head) - 1
        self.covered.add_range(self._highs[row] + 1, high + 1)
        self._highs[row] = high
        self.top = max(self.top, high)

    def take(self, start: int) -> list[Window]:
        """Take out the windows of one bucket."""
        first, last = self._rows(start)
        if first == last:
            return []
        windows = self.of(start)
        self._delete(first, last)
        return windows

    def take_until(self, start: int) -> list[Window]:
        """Take out the windows of all buckets that start at ``start`` or before, earliest first."""
        first, last = self._head, bisect_right(self._starts, start, self._head)
        windows = list(map(Window, self._starts[first:last], self._lows[first:last], self._highs[first:last]))
        self._delete(first, last)
        return windows

    def take_over(self, number: int) -> Window:
        """Take out the window whose range holds ``number``. Ordered by number too, as with one delay, it is found fast.

        Else the latest are tried first.
        """
        lows, highs, head = self._lows, self._highs, self._head
        guess = max(bisect_right(lows, number, head) - 1, head)
        for row in chain((guess,), range(len(lows) - 1, head - 1, -1)):
            if row < len(lows) and lows[row] <= number <= highs[row]:
                window = Window(self._starts[row], lows[row], highs[row])
                self._delete(row, row + 1)
                return window
        raise KeyError(number)

    def _rows(self, start: int) -> tuple[int, int]:
        first = bisect_left(self._starts, start, self._head)
        return first, bisect_right(self._starts, start, first)

    def _delete(self, first: int, last: int) -> None:
        is_top_gone = False
        for row in range(first, last):
            self.covered.remove_range(self._lows[row], self._highs[row] + 1)
            is_top_gone = is_top_gone or self._highs[row] == self.top
        if first > self._head:
            self._cut(first, last)
        else:
            self._head = last
            if 2 * last >= len(self._starts):
                self._cut(0, last)
                self._head = 0
        if is_top_gone:
            self.top = self.covered.max() if self.covered else -1

    def _cut(self, first: int, last: int) -> None:
        for column in (self._starts, self._lows, self._highs):
            del column[first:last]
