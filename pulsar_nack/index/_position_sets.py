"""Three sets of positions: exchangeable as bitmaps, of any entries, and in order.

:class:`PositionSet` has one 32-bit bitmap for each ledger, which can be exchanged as a portable roaring bitmap.
:class:`PositionRanges` takes any positions. :class:`OrderedPositions` is sorted.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from pyroaring import BitMap
from sortedcontainers import SortedSet

from ..ids import Position
from ._ranges import EntryRanges, container_bytes

MAX_ENTRY: Final = 2**32 - 1
_LEDGER_BYTES: Final = 250
_MEASURED: Final = 64
_SWEEP: Final = 512
_Index = tuple[int, int, int]
_make = tuple.__new__


class PositionSet:
    """A set of positions with entries below 2**32. Adding, discarding, looking up and the length are O(1).

    ``bytes`` is about how many bytes are held: a ledger is measured and compressed when another one begins. A bitmap
    grows while entries are removed, since each removal may split a run in two. So the ledgers are also compressed and
    measured in turn, one for every 512 removed positions.

    An *index* is a tuple of a time, a ledger and an entry, and perhaps more.
    """

    __slots__ = ("_count", "_last", "_ledgers", "_removed", "_sizes", "_sweep", "bytes")

    def __init__(self) -> None:
        self._ledgers: dict[int, Any] = {}
        self._sizes: dict[int, int] = {}
        self._last = -1
        self._count = 0
        self._sweep: list[int] = []
        self._removed = 0
        self.bytes = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((ledger, entry) for ledger, entries in self._ledgers.items() for entry in entries)

    def __contains__(self, position: tuple[int, int]) -> bool:
        entries = self._ledgers.get(position[0])
        return entries is not None and position[1] in entries

    @property
    def ledgers(self) -> int:
        """Return how many ledgers have entries in the set."""
        return len(self._ledgers)

    def add(self, ledger: int, entry: int) -> bool:
        """Add an entry, at most :data:`MAX_ENTRY`; return whether it is new."""
        if ledger != self._last:
            self._measure(self._last)
            self._last = ledger
        entries = self._ledgers.get(ledger)
        if entries is None:
            entries = self._new(ledger)
        elif entry in entries:
            return False
        entries.add(entry)
        self._count += 1
        return True

    def discard(self, ledger: int, entry: int) -> bool:
        """Remove an entry; return whether it was there."""
        entries = self._ledgers.get(ledger)
        if entries is None or entry not in entries:
            return False
        entries.remove(entry)
        self._count -= 1
        if not entries:
            self._drop(ledger)
        self._count_removed(1)
        return True

    def trim(self, ledger: int, entry: int) -> int:
        """Remove all positions up to one, including it; return how many were removed. O(ledgers)."""
        before = self._count
        for passed in [each for each in self._ledgers if each < ledger]:
            self._count -= len(self._ledgers[passed])
            self._drop(passed)
        if ledger in self._ledgers and entry >= 0:
            self._cut(ledger, entry)
        return before - self._count

    def take(self, limit: int) -> list[tuple[int, int]]:
        """Remove and return the lowest positions, at most ``limit``. O(taken + ledgers log ledgers)."""
        taken: list[tuple[int, int]] = []
        for ledger in sorted(self._ledgers):
            if len(taken) >= limit:
                break
            found = [(ledger, entry) for entry in islice(self._ledgers[ledger], limit - len(taken))]
            taken += found
            self._cut(ledger, found[-1][1])
        return taken

    def dump(self) -> dict[int, bytes]:
        """Return a portable bitmap for each ledger. O(entries)."""
        portable = {}
        for ledger, entries in self._ledgers.items():
            entries.run_optimize()
            portable[ledger] = entries.serialize()
        return portable

    def clear(self) -> None:
        """Remove everything."""
        self._ledgers.clear()
        self._sizes.clear()
        self._count = self.bytes = 0
        self._last = -1

    # -- many at once --------------------------------------------------------------------------------------------------

    def add_new(self, ledger: int, entries: array[int]) -> bool:
        """Add entries (typecode ``I``) if all are new and distinct; otherwise change nothing and return False."""
        if ledger != self._last:
            self._measure(self._last)
            self._last = ledger
        held = self._ledgers.get(ledger)
        if held is None:
            held = self._new(ledger)
        added = BitMap(entries)
        if len(added) != len(entries) or held.intersect(added):
            if not held:
                self._drop(ledger)
            return False
        held |= added
        self._count += len(entries)
        return True

    def add_all(self, indexes: Iterable[_Index]) -> None:
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
            held |= BitMap.deserialize(portable)
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

    def held_of(self, indexes: Sequence[_Index]) -> list[_Index]:
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

    # -- ledgers -------------------------------------------------------------------------------------------------------

    def _count_removed(self, count: int) -> None:
        self._removed += count
        while self._removed >= _SWEEP:
            self._removed -= _SWEEP
            if not self._sweep:
                self._sweep = list(self._ledgers)
            if self._sweep:
                self._measure(self._sweep.pop())

    def _cut(self, ledger: int, entry: int) -> None:
        entries = self._ledgers[ledger]
        self._count -= len(entries)
        entries.remove_range(0, entry + 1)
        self._count += len(entries)
        if not entries:
            self._drop(ledger)

    def _new(self, ledger: int) -> Any:
        entries = self._ledgers[ledger] = BitMap()
        self._sizes[ledger] = _LEDGER_BYTES
        self.bytes += _LEDGER_BYTES
        return entries

    def _drop(self, ledger: int) -> None:
        del self._ledgers[ledger]
        self.bytes -= self._sizes.pop(ledger)

    def _measure(self, ledger: int) -> None:
        entries = self._ledgers.get(ledger)
        if entries is None:
            return
        entries.run_optimize()
        entries.shrink_to_fit()
        size = _LEDGER_BYTES + container_bytes(entries.get_statistics())
        self.bytes += size - self._sizes[ledger]
        self._sizes[ledger] = size


def portable_bitmap(entries: array[int]) -> bytes:
    """Return a portable bitmap of entries (typecode ``I``), like :meth:`PositionSet.dump`. About 10 ns an entry."""
    bitmap = BitMap(entries)
    bitmap.run_optimize()
    return bytes(bitmap.serialize())


class PositionRanges:
    """A set of any positions: entries have 63 bits, and long ranges cost little.

    Adding and removing are O(log) in the ranges of a ledger; a ledger without entries is removed.
    """

    __slots__ = ("_ledgers",)

    def __init__(self) -> None:
        self._ledgers: dict[int, EntryRanges] = {}

    def __bool__(self) -> bool:
        return bool(self._ledgers)

    def __len__(self) -> int:
        return sum(map(len, self._ledgers.values()))

    def __contains__(self, position: tuple[int, int]) -> bool:
        entries = self._ledgers.get(position[0])
        return entries is not None and position[1] in entries

    def add(self, ledger: int, entry: int) -> bool:
        """Add a position; return whether it is new.

        :raises InvalidArgumentError: the entry is out of range
        """
        entries = self._ledgers.get(ledger) or EntryRanges()
        is_new = entries.add(entry)
        self._ledgers[ledger] = entries
        return is_new

    def discard(self, ledger: int, entry: int) -> bool:
        """Remove a position; return whether it was there."""
        return bool(self._remove(ledger, entry, entry))

    def trim(self, ledger: int, entry: int) -> int:
        """Remove all positions up to one, including it; return how many were removed. O(ledgers)."""
        passed = [each for each in self._ledgers if each < ledger]
        removed = sum(len(self._ledgers.pop(each)) for each in passed)
        return removed + self._remove(ledger, 0, entry) if entry >= 0 else removed

    def _remove(self, ledger: int, first: int, last: int) -> int:
        entries = self._ledgers.get(ledger)
        if entries is None:
            return 0
        removed = entries.discard_range(first, last)
        if not entries:
            del self._ledgers[ledger]
        return removed

    def clear(self) -> None:
        """Remove everything."""
        self._ledgers.clear()


class OrderedPositions(SortedSet[Position]):  # type: ignore[misc]  # sortedcontainers has no types
    """A sorted set of some thousand positions. Adding, removing and looking up are O(log n)."""

    def discard_through(self, last: Position | None) -> None:
        """Remove all positions up to one, including it; None: all positions."""
        if last is None:
            self.clear()
        else:
            del self[: self.bisect_right(last)]
