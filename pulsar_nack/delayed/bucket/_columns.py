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
        """Return indexes of one ledger, given in any order. About 80 ns each, in order half of that."""
        columns = cls()
        if any(map(gt, times, times[1:])) or any(map(gt, entries, entries[1:])):
            pairs = sorted(zip(times, entries, strict=True))
            columns.times.fromlist([pair[0] for pair in pairs])
            columns.entries.fromlist([pair[1] for pair in pairs])
        else:
            columns.times = array("q", times)
            columns.entries = array("q", entries)
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
