"""Delayed indexes in memory: in order of time, packed in three columns of 8 bytes each; and sets of their positions.

The sets are built from indexes or bitmaps, and dumped as the bitmaps of a snapshot's metadata.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from operator import gt
from typing import Final

from ...ids import Position
from ...index import PositionSet

Index = tuple[int, int, int]
"""Delivery time (epoch ms), ledger, entry. Messages come out in this order."""
_make = tuple.__new__
_MEASURED: Final = 64
_SWEEP: Final = 512


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


class BulkPositionSet(PositionSet):
    """A set of positions with bulk operations.

    A bitmap grows while entries are removed, since each removal may split a run in two. So the ledgers are compressed
    and measured in turn, one for every :data:`_SWEEP` removed positions.
    """

    __slots__ = ("_removed", "_sweep")

    def __init__(self) -> None:
        super().__init__()
        self._sweep: list[int] = []
        self._removed = 0

    def discard(self, ledger: int, entry: int) -> bool:
        """Remove an entry; return whether it was in the set."""
        was_there = super().discard(ledger, entry)
        self._count_removed(was_there)
        return was_there

    def _count_removed(self, count: int) -> None:
        self._removed += count
        while self._removed >= _SWEEP:
            self._removed -= _SWEEP
            if not self._sweep:
                self._sweep = list(self._ledgers)
            if self._sweep:
                self._measure(self._sweep.pop())

    def add_new(self, ledger: int, entries: array[int]) -> bool:
        """Add entries (typecode ``I``) if all are new and distinct; otherwise change nothing and return False."""
        if ledger != self._last:
            self._measure(self._last)
            self._last = ledger
        held = self._ledgers.get(ledger)
        if held is None:
            held = self._new(ledger)
        added = type(held)(entries)
        if len(added) != len(entries) or held.intersect(added):
            if not held:
                self._drop(ledger)
            return False
        held |= added
        self._count += len(entries)
        return True

    def add_all(self, indexes: Iterable[Index]) -> None:
        """Add the positions of indexes. About 100 ns each."""
        grouped: dict[int, list[int]] = {}
        for _, ledger, entry in indexes:
            if (entries := grouped.get(ledger)) is None:
                grouped[ledger] = [entry]
            else:
                entries.append(entry)
        for ledger, entries in grouped.items():
            held = self._ledgers.get(ledger)
            if held is None:
                held = self._new(ledger)
            before = len(held)
            held.update(array("I", entries))
            self._count += len(held) - before

    def join(self, ledger: int, portable: bytes) -> int:
        """Add the entries of a portable bitmap without measuring it; return how many are new. About 2 us, and O(bytes).

        :raises ValueError: the bytes are not a bitmap; nothing was changed
        """
        held = self._ledgers.get(ledger)
        if held is None:
            held = self._new(ledger)
        before = len(held)
        try:
            held |= type(held).deserialize(portable)
        except (ValueError, IndexError):
            raise ValueError(f"{len(portable)} bytes that are not a 32-bit roaring bitmap") from None
        finally:
            if not held:
                self._drop(ledger)
        self._count += len(held) - before
        return len(held) - before

    def compress(self, step: int) -> Iterator[None]:
        """Compress and measure all ledgers, ``step`` of them at a time. About 10 us each."""
        ledgers = list(self._ledgers)
        for at in range(0, len(ledgers), step):
            for ledger in ledgers[at : at + step]:
                self._measure(ledger)
            yield

    def take_out(self, indexes: Sequence[Sequence[int]]) -> list[Position]:
        """Remove the positions of indexes; return those that were in the set. About 250 ns each."""
        find = self._ledgers.get
        taken = []
        for index in indexes:
            ledger, entry = index[1], index[2]
            if (held := find(ledger)) is not None and entry in held:
                held.discard(entry)
                taken.append(_make(Position, (ledger, entry)))
        self._count -= len(taken)
        for ledger in {position[0] for position in taken}:
            if not self._ledgers[ledger]:
                self._drop(ledger)
        self._count_removed(len(taken))
        return taken

    def held_of(self, indexes: Sequence[Index]) -> list[Index]:
        """Return the indexes whose positions are in the set. About 100 ns each."""
        find = self._ledgers.get
        return [index for index in indexes if index[2] in find(index[1], ())]

    def includes(self, other: PositionSet) -> bool:
        """Return whether this set includes another one. O(ledgers), plus the comparison of bitmaps."""
        return all(
            (held := self._ledgers.get(ledger)) is not None and entries.issubset(held)
            for ledger, entries in other._ledgers.items()
        )

    def take_over(self, other: PositionSet) -> int:
        """Move another set into this one; return how many positions are new. 1 us for a new ledger, 3 us otherwise."""
        before = self._count
        both = self._ledgers.keys() & other._ledgers.keys()
        for ledger, added in other._ledgers.items():
            if ledger not in both:
                self._ledgers[ledger] = added
                self._sizes[ledger] = other._sizes[ledger]
                self._count += len(added)
                self.bytes += other._sizes[ledger]
                continue
            held = self._ledgers[ledger]
            here = len(held)
            held |= added
            self._count += len(held) - here
            if len(both) <= _MEASURED:
                self._measure(ledger)
            else:  # an upper bound
                self._sizes[ledger] += other._sizes[ledger]
                self.bytes += other._sizes[ledger]
        other.clear()
        return self._count - before


def _in_order(values: array[int], order: Sequence[int]) -> array[int]:
    return array(values.typecode, map(values.__getitem__, order))
