"""Positions in order, each once: for some thousands that come and go one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sortedcontainers import SortedSet

from ..ids import Position


class OrderedPositions:
    """A set of positions that is gone through from the lowest on. Adding, taking out and asking are O(log n)."""

    __slots__ = ("_positions",)

    def __init__(self, positions: Iterable[Position] = ()) -> None:
        self._positions: SortedSet[Position] = SortedSet(positions)

    def __len__(self) -> int:
        return len(self._positions)

    def __contains__(self, position: object) -> bool:
        return position in self._positions

    def __iter__(self) -> Iterator[Position]:
        return iter(self._positions)

    def add(self, position: Position) -> None:
        """Put a position in, if it is not there."""
        self._positions.add(position)

    def update(self, positions: Iterable[Position]) -> None:
        """Put positions in."""
        self._positions.update(positions)

    def discard(self, position: Position) -> None:
        """Take a position out, if it is there."""
        self._positions.discard(position)

    def discard_through(self, last: Position | None) -> None:
        """Take all positions out up to one, itself included; None: all of them."""
        if last is None:
            self._positions.clear()
        else:
            del self._positions[: self._positions.bisect_right(last)]
