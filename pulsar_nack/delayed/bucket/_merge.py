"""Which buckets to merge, and the merging of what comes from storage in pieces. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from ._columns import Columns, Index
from ._immutable import ImmutableBucket

_MOST: Final = 128
"""How many indexes of a source are merged in one go."""


def choose_pair(buckets: Sequence[ImmutableBucket]) -> tuple[ImmutableBucket, ImmutableBucket] | None:
    """Return the two neighbours, in order of ledgers, that have the fewest indexes together; the first such pair.

    Buckets that are merged already, or cannot be read now, are left alone; those that could not be merged before come
    after all others, so that one that never can be does not hold the rest up. None: there is no pair. O(buckets).
    """
    pairs = [
        (one.failed_merges + other.failed_merges, one.size + other.size, place)
        for place, (one, other) in enumerate(pairwise(buckets))
        if not (one.is_merging or other.is_merging or one.is_in_trouble or other.is_in_trouble)
    ]
    if not pairs:
        return None
    place = min(pairs)[2]
    return buckets[place], buckets[place + 1]


class MergeFeed:
    """Merges sources that come piece by piece; each piece is in order, and so are the pieces of a source."""

    def __init__(self, sources: int) -> None:
        self._pieces = [_Piece() for _ in range(sources)]

    def is_first(self, source: int, max_at: int, next_at: Sequence[int]) -> bool:
        """Return whether the next piece of a source, of which nothing is left here, comes before all other sources'.

        :param max_at: the latest time of that piece
        :param next_at: for each source a lower bound of what it has not given yet
        """
        if not self._pieces[source].is_wanting:
            return False
        firsts = (piece.first_at(at) for piece, at in zip(self._pieces, next_at, strict=True))
        return all(max_at < at for other, at in enumerate(firsts) if other != source)

    def wanted(self) -> int | None:
        """Return a source of which a piece is needed before more can be taken, None when none is."""
        return next((source for source, piece in enumerate(self._pieces) if piece.is_wanting), None)

    def feed(self, source: int, columns: Columns | None) -> None:
        """Give the next piece of a source that is wanted, or None: it has ended."""
        piece = self._pieces[source]
        piece.has_ended = columns is None
        piece.columns, piece.at = columns or Columns(), 0

    def take(self) -> list[Index]:
        """Return, merged, some of what no later piece can come before. Nothing is wanted; empty: all have ended."""
        ends = [piece.columns[piece.end - 1] for piece in self._pieces if piece.has_more]
        bound = min(ends) if ends else None
        taken: list[Index] = []
        for piece in self._pieces:
            taken += piece.take(bound)
        taken.sort()
        return taken


class _Piece:
    """What a source has given, from place ``at`` on not taken yet."""

    __slots__ = ("at", "columns", "has_ended")

    def __init__(self) -> None:
        self.columns = Columns()
        self.at = 0
        self.has_ended = False

    @property
    def end(self) -> int:
        """Return up to where something may be taken in one go."""
        return min(self.at + _MOST, len(self.columns))

    @property
    def is_wanting(self) -> bool:
        return not self.has_ended and self.at == len(self.columns)

    @property
    def has_more(self) -> bool:
        """Return whether something may come after :attr:`end`."""
        return not self.has_ended or self.end < len(self.columns)

    def first_at(self, next_at: int) -> int:
        """Return the earliest time that is left, ``next_at`` when that is not here."""
        return self.columns.times[self.at] if self.at < len(self.columns) else next_at

    def take(self, bound: Index | None) -> Iterable[Index]:
        """Take out what is not after a bound, all when there is none."""
        to = self.end if bound is None else bisect_right(self.columns, bound, self.at, self.end)
        part = self.columns.part(self.at, to)
        self.at = to
        return part
