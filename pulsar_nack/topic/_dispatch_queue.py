"""The entries of a subscription that wait to be sent, with the keys and sizes of those that were read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..ids import Position
from ..index import OrderedPositions
from ._entry import NO_KEY


class EntryInfo(NamedTuple):
    """The known facts about an entry that was read: the hash of its key, and the size of its batch, 0 for no batch."""

    key_hash: int = NO_KEY
    batch_size: int = 0


class DispatchQueue:
    """The positions that wait, lowest first; of those that were read it has an :class:`EntryInfo`."""

    __slots__ = ("_by_key", "_info", "_positions", "due", "still_new")

    def __init__(self) -> None:
        self._positions = OrderedPositions()
        self._info: dict[Position, EntryInfo] = {}
        self._by_key: dict[int, OrderedPositions] = {}
        self.due: set[Position] = set()
        """Delayed entries that are due and were not sent yet."""
        self.still_new: set[Position] = set()
        """Batches that the gate held when they were new."""

    def __len__(self) -> int:
        return len(self._positions)

    def __iter__(self) -> Iterator[Position]:
        return iter(self._positions)

    def __contains__(self, position: object) -> bool:
        return position in self._positions

    def info(self, position: Position) -> EntryInfo | None:
        """Return the key and size of an entry, None if it was not read."""
        return self._info.get(position)

    def lowest(self, key_hash: int | None = None) -> Position | None:
        """Return the lowest entry, or the lowest one that is known to have this key."""
        positions = self._positions if key_hash is None else self._by_key.get(key_hash, ())
        return next(iter(positions), None)

    def add(self, position: Position, info: EntryInfo) -> None:
        """Add an entry that was read."""
        self._forget(position)
        self._positions.add(position)
        self._info[position] = info
        self._by_key.setdefault(info.key_hash, OrderedPositions()).add(position)

    def update(self, positions: Iterable[Position]) -> None:
        """Add entries that were not read; those already here keep their info."""
        self._positions.update(positions)

    def discard(self, position: Position) -> None:
        """Remove an entry, if it is here."""
        self._positions.discard(position)
        self.due.discard(position)
        self.still_new.discard(position)
        self._forget(position)

    def discard_through(self, last: Position | None) -> None:
        """Remove the entries up to and including ``last``; None: all of them, but ``due`` is kept."""
        self._positions.discard_through(last)
        if last is None:
            self.forget_info()
            self.still_new.clear()
            return
        for position in [each for each in {*self._info, *self.due, *self.still_new} if each <= last]:
            self.discard(position)

    def forget_info(self) -> None:
        """Forget the keys and sizes of the entries; the entries stay."""
        self._info.clear()
        self._by_key.clear()

    def _forget(self, position: Position) -> None:
        info = self._info.pop(position, None)
        if info is None:
            return
        positions = self._by_key[info.key_hash]
        positions.discard(position)
        if not len(positions):
            del self._by_key[info.key_hash]
