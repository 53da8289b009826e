"""Delayed indexes by the thousand: three columns of 8 bytes each, in order of time."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

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

    def __len__(self) -> int:
        return len(self.times)

    def __iter__(self) -> Iterator[Index]:
        return self.rest(0)

    def rest(self, at: int) -> Iterator[Index]:
        """Return the indexes from place ``at`` on."""
        yield from zip(self.times[at:], self.ledgers[at:], self.entries[at:], strict=True)

    def append(self, index: Index) -> None:
        """Add one at the end."""
        self.times.append(index[0])
        self.ledgers.append(index[1])
        self.entries.append(index[2])

    @property
    def bytes(self) -> int:
        """Return about how much memory they take."""
        return 24 * len(self.times) + 300
