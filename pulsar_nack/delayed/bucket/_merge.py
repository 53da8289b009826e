"""Which buckets to merge, and the merging of what comes from storage in pieces. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from typing import Final

from ._columns import Index
from ._immutable import ImmutableBucket

_MOST: Final = 500
"""How many indexes of a source are merged in one go."""


def choose_pair(buckets: Sequence[ImmutableBucket]) -> tuple[ImmutableBucket, ImmutableBucket] | None:
    """Return the two neighbours, in order of ledgers, that have the fewest indexes together; the first such pair.

    Buckets that are merged already, or cannot be read now, are left alone. None: there is no pair. O(buckets).
    """
    pairs = [
        (one.size + other.size, place)
        for place, (one, other) in enumerate(pairwise(buckets))
        if not (one.is_merging or other.is_merging or one.is_in_trouble or other.is_in_trouble)
    ]
    if not pairs:
        return None
    place = min(pairs)[1]
    return buckets[place], buckets[place + 1]


class MergeFeed:
    """Merges sources that come piece by piece; each piece is in order, and so are the pieces of a source."""

    def __init__(self, sources: int) -> None:
        self._pieces: list[list[Index]] = [[] for _ in range(sources)]
        self._has_ended = [False] * sources

    def is_first(self, source: int, max_at: int, next_at: Sequence[int]) -> bool:
        """Return whether the next piece of a source, of which nothing is left here, comes before all other sources'.

        :param max_at: the latest time of that piece
        :param next_at: for each source a lower bound of what it has not given yet
        """
        if self._pieces[source]:
            return False
        return all(
            max_at < (piece[0][0] if piece else next_at[other])
            for other, piece in enumerate(self._pieces)
            if other != source
        )

    def wanted(self) -> int | None:
        """Return a source of which a piece is needed before more can be taken, None when none is."""
        for source, piece in enumerate(self._pieces):
            if not piece and not self._has_ended[source]:
                return source
        return None

    def feed(self, source: int, piece: Iterable[Index] | None) -> None:
        """Give a piece, or None: the source has ended."""
        if piece is None:
            self._has_ended[source] = True
        else:
            self._pieces[source].extend(piece)

    def take(self) -> list[Index]:
        """Return, merged, some of what no later piece can come before. Nothing is wanted; empty: all have ended."""
        ends = [
            piece[min(len(piece), _MOST) - 1]
            for piece, ended in zip(self._pieces, self._has_ended, strict=True)
            if len(piece) > _MOST or not ended
        ]
        bound = min(ends, default=None)
        cuts = [len(piece) if bound is None else bisect_right(piece, bound) for piece in self._pieces]
        taken = sorted(chain.from_iterable(piece[:cut] for piece, cut in zip(self._pieces, cuts, strict=True)))
        for piece, cut in zip(self._pieces, cuts, strict=True):
            del piece[:cut]
        return taken
