"""Which positions are held, by the thousand where they come by the thousand."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ...ids import Position
from ...index import PositionSet
from ._columns import Index

_make = tuple.__new__
_MEASURED: Final = 64
_SWEEP: Final = 512


class Pending(PositionSet):
    """A set of positions, for many at once.

    A bitmap of which more and more is taken out grows: a run becomes two. So ledgers are measured, and compressed, in
    turn, one for each :data:`_SWEEP` positions that went.
    """

    __slots__ = ("_sweep", "_went")

    def __init__(self) -> None:
        super().__init__()
        self._sweep: list[int] = []
        self._went = 0

    def discard(self, ledger: int, entry: int) -> bool:
        """Take an entry out; return whether it was there."""
        was_there = super().discard(ledger, entry)
        self._note(was_there)
        return was_there

    def _note(self, went: int) -> None:
        self._went += went
        while self._went >= _SWEEP:
            self._went -= _SWEEP
            if not self._sweep:
                self._sweep = list(self._ledgers)
            if self._sweep:
                self._measure(self._sweep.pop())

    def add_new(self, ledger: int, entries: array[int]) -> bool:
        """Add entries (typecode ``I``) that are all new; False, nothing changed, when one is not, or comes twice."""
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
        """Add the positions of some indexes, new or not. About 100 ns each."""
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
        """Add the entries of a portable bitmap, not measured; return how many are new. About 2 us, and O(bytes).

        :raises ValueError: the bytes are not a bitmap; nothing has changed
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
        """Measure and compress all ledgers, so many in a step. About 10 us each."""
        ledgers = list(self._ledgers)
        for at in range(0, len(ledgers), step):
            for ledger in ledgers[at : at + step]:
                self._measure(ledger)
            yield

    def take_out(self, indexes: Sequence[Sequence[int]]) -> list[Position]:
        """Take out the positions of some indexes; return those that were in it. About 250 ns each."""
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
        self._note(len(taken))
        return taken

    def living(self, indexes: Sequence[Index]) -> list[Index]:
        """Return the indexes whose positions are in it. About 100 ns each."""
        find = self._ledgers.get
        return [index for index in indexes if index[2] in find(index[1], ())]

    def includes(self, other: PositionSet) -> bool:
        """Return whether all of another one is in it. O(ledgers), and the bitmaps' own comparing."""
        return all(
            (held := self._ledgers.get(ledger)) is not None and asked.issubset(held)
            for ledger, asked in other._ledgers.items()
        )

    def take_over(self, other: PositionSet) -> int:
        """Move all of another one here; return how many are new. Below 1 us a ledger that is not here, 3 for others."""
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
            else:  # at most, about
                self._sizes[ledger] += other._sizes[ledger]
                self.bytes += other._sizes[ledger]
        other.clear()
        return self._count - before
