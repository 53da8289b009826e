"""Delayed indexes by the thousand: three columns of 8 bytes each, in order of time."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from operator import gt

Index = tuple[int, int, int]
"""When (epoch ms), ledger, entry. Its order is that in which messages come out."""


class Columns:
    """Times (epoch ms), ledgers and entries of the same length; whoever appends keeps them in order."""

    __slots__ = ("entries", "ledgers", "times")

    def __init__(self, indexes: Iterable[Index] = ()) -> None:
        self.times: array[int] = array("q")
        self.ledgers: array[int] = array("q")
        self.entries: array[int] = array("q")
        for index in indexes:
            self.append(index)

    @classmethod
    def of_ledger(cls, ledger: int, entries: array[int], times: array[int]) -> Columns:
        """Return indexes of one ledger, given in any order. 40 ns each in order, up to 300 ns otherwise."""
        columns = cls()
        if any(map(gt, entries, entries[1:])):
            order = sorted(range(len(entries)), key=entries.__getitem__)
            entries, times = _in_order(entries, order), _in_order(times, order)
        if any(map(gt, times, times[1:])):
            order = sorted(range(len(times)), key=times.__getitem__)  # stable: of the same time the first entry first
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
        """Return the indexes from place ``at`` on."""
        yield from zip(self.times[at:], self.ledgers[at:], self.entries[at:], strict=True)

    def part(self, at: int, to: int) -> Columns:
        """Return a copy of those from place ``at`` to before ``to``."""
        part = Columns()
        part.times, part.ledgers, part.entries = self.times[at:to], self.ledgers[at:to], self.entries[at:to]
        return part

    def extend(self, indexes: Sequence[Index]) -> None:
        """Add many at the end."""
        self.times.fromlist([index[0] for index in indexes])
        self.ledgers.fromlist([index[1] for index in indexes])
        self.entries.fromlist([index[2] for index in indexes])

    def append(self, index: Index) -> None:
        """Add one at the end."""
        self.times.append(index[0])
        self.ledgers.append(index[1])
        self.entries.append(index[2])

    @property
    def bytes(self) -> int:
        """Return about how much memory they take."""
        return 24 * len(self.times) + 300


def _in_order(values: array[int], order: Sequence[int]) -> array[int]:
    return array(values.typecode, map(values.__getitem__, order))
