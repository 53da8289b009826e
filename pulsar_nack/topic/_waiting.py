"""The entries of a subscription that wait to be sent, lowest first, and what is known of those that were read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..ids import Position
from ..index import OrderedPositions
from ._entry import NO_KEY


class Known(NamedTuple):
    """What is known of an entry that was read: the hash of its key, and how many messages a batch has."""

    key_hash: int = NO_KEY
    batch_size: int = 0


class Waiting:
    """A set of positions in order; of some it is known what they hold."""

    __slots__ = ("_by_key", "_known", "_positions")

    def __init__(self) -> None:
        self._positions = OrderedPositions()
        self._known: dict[Position, Known] = {}
        self._by_key: dict[int, OrderedPositions] = {}

    def __len__(self) -> int:
        return len(self._positions)

    def __iter__(self) -> Iterator[Position]:
        return iter(self._positions)

    def __contains__(self, position: object) -> bool:
        return position in self._positions

    def known(self, position: Position) -> Known | None:
        """Return what is known of an entry, None: nothing."""
        return self._known.get(position)

    def lowest(self, key_hash: int | None = None) -> Position | None:
        """Return the lowest entry, or the lowest that is known to have a key."""
        positions = self._positions if key_hash is None else self._by_key.get(key_hash, ())
        return next(iter(positions), None)

    def add(self, position: Position, known: Known) -> None:
        """Put an entry in that was read."""
        self._forget(position)
        self._positions.add(position)
        self._known[position] = known
        self._by_key.setdefault(known.key_hash, OrderedPositions()).add(position)

    def update(self, positions: Iterable[Position]) -> None:
        """Put entries in of which nothing is known, or that are there already."""
        self._positions.update(positions)

    def discard(self, position: Position) -> None:
        """Take an entry out, if it is there."""
        self._positions.discard(position)
        self._forget(position)

    def discard_through(self, last: Position | None) -> None:
        """Take entries out up to one, itself included; None: all of them."""
        self._positions.discard_through(last)
        for position in [each for each in self._known if last is None or each <= last]:
            self._forget(position)

    def forget_all(self) -> None:
        """Know nothing any more of the entries that are there."""
        self._known.clear()
        self._by_key.clear()

    def _forget(self, position: Position) -> None:
        known = self._known.pop(position, None)
        if known is None:
            return
        positions = self._by_key[known.key_hash]
        positions.discard(position)
        if not positions:
            del self._by_key[known.key_hash]
