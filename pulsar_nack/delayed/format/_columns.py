"""Delayed indexes in order of time, packed in three columns of 8 bytes each."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from operator import gt

Index = tuple[int, int, int]
"""Delivery time (epoch ms), ledger, entry. Messages come out in this order."""


class Columns:
    """Columns of times (epoch ms), ledgers and entries, of equal length; the caller appends in order."""

    __slots__ = ("entries", "ledgers", "times")

    def __init__(self, indexes: Iterable[Index] = ()) -> None:
        self.times: array[int] = array("q")
        self.ledgers: array[int] = array("q")
        self.entries: array[int] = array("q")
        for index in indexes:
            self.append(index)

    @classmethod
    def of_ledger(cls, ledger: int, entries: array[int], times: array[int]) -> Columns:
        """Return the indexes of one ledger, given in any order. 40 ns each in order, up to 300 ns otherwise."""
        columns = cls()
        if any(map(gt, entries, entries[1:])):
            order = sorted(range(len(entries)), key=entries.__getitem__)
            entries, times = _in_order(entries, order), _in_order(times, order)
        if any(map(gt, times, times[1:])):
            order = sorted(range(len(times)), key=times.__getitem__)  # stable: entries of equal times stay in order
            entries, times = _in_order(entries, order), _in_order(times, order)
        columns.times, columns.entries = array("q", times), array("q", entries)
        columns.ledgers = array("q", (ledger,)) * len(times)
        return columns

    def __len__(self) -> int:
        return len(self.times)

    def __getitem__(self, at: int) -> Index:
        return self.times[at], self.ledgers[at], self.entries[at]

    def __iter__(self) -> Iterator[Index]:
        return self.rest(0)

    def rest(self, at: int) -> Iterator[Index]:
        """Return the indexes from offset ``at`` on."""
        yield from zip(self.times[at:], self.ledgers[at:], self.entries[at:], strict=True)

    def part(self, at: int, to: int) -> Columns:
        """Return a copy of the indexes from offset ``at`` to before ``to``."""
        part = Columns()
        part.times, part.ledgers, part.entries = self.times[at:to], self.ledgers[at:to], self.entries[at:to]
        return part

    def extend(self, indexes: Sequence[Index]) -> None:
        """Append indexes."""
        self.times.fromlist([index[0] for index in indexes])
        self.ledgers.fromlist([index[1] for index in indexes])
        self.entries.fromlist([index[2] for index in indexes])

    def append(self, index: Index) -> None:
        """Append an index."""
        self.times.append(index[0])
        self.ledgers.append(index[1])
        self.entries.append(index[2])

    @property
    def bytes(self) -> int:
        """Return about how much memory the columns take."""
        return 24 * len(self.times) + 300


def _in_order(values: array[int], order: Sequence[int]) -> array[int]:
    return array(values.typecode, map(values.__getitem__, order))
