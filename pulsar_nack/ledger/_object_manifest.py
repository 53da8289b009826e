"""What a log consists of: the manifest and its pieces; pure.

Records lie in *pieces*, objects that follow each other: slots, as they were appended, and segments, into which small
pieces are merged. A manifest names the pieces in order. The trailing pieces that are small are merged when there are
many of them: all but those that are more than twice as large as everything behind them, so that a record is copied as
often as the logarithm of the number of appends at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from ._object_format import Head, Place

MANIFEST: Final = "manifest"
DATA: Final = "data"
SEGMENT: Final = "segment"
_TAKEOVERS: Final = 256


class Piece(NamedTuple):
    """An object with records: its name in the log's folder, its number, its records, its size in bytes."""

    name: str
    first: int
    records: int
    size: int
    number: int

    @property
    def end(self) -> int:
        """Return the number of the record after the last one."""
        return self.first + self.records


class Manifest(NamedTuple):
    """A state of a log, as one of its slots has it; takeovers are pairs of epoch and slot, the last of many."""

    epoch: int
    writer: str
    pieces: tuple[Piece, ...]
    is_sealed: bool
    takeovers: tuple[tuple[int, int], ...]

    @property
    def length(self) -> int:
        """Return how many records the pieces have."""
        return self.pieces[-1].end if self.pieces else 0

    def taken_over(self, epoch: int, writer: str, slot: int) -> Manifest:
        """Return it with another writer, from a slot on."""
        takeovers = (*self.takeovers, (epoch, slot))[-_TAKEOVERS:]
        return self._replace(epoch=epoch, writer=writer, takeovers=takeovers)

    def with_pieces(self, pieces: Sequence[Piece]) -> Manifest:
        """Return it with other pieces."""
        return self._replace(pieces=tuple(pieces))

    def fence_after(self, epoch: int, slot: int) -> int | None:
        """Return in which slot the writer who took over like this was fenced; None: that is too long ago to tell."""
        if (epoch, slot) not in self.takeovers[:-1]:
            return None
        return self.takeovers[self.takeovers.index((epoch, slot)) + 1][1]

    def fields(self) -> dict[str, Any]:
        """Return what the head of its object says."""
        return {
            "epoch": self.epoch,
            "writer": self.writer,
            "sealed": self.is_sealed,
            "takeovers": self.takeovers,
            "pieces": self.pieces,
        }


NOTHING: Final = Manifest(epoch=0, writer="", pieces=(), is_sealed=False, takeovers=())


def as_manifest(head: Head, place: Place) -> Manifest:
    """Read a manifest from the head of its object.

    :raises LogCorruptedError: it is none
    """
    try:
        fields = head.fields
        pieces = tuple(
            Piece(str(name), int(first), int(records), int(size), int(number))
            for name, first, records, size, number in fields["pieces"]
        )
        takeovers = tuple((int(epoch), int(slot)) for epoch, slot in fields["takeovers"])
        manifest = Manifest(int(fields["epoch"]), str(fields["writer"]), pieces, fields["sealed"] is True, takeovers)
    except (ValueError, TypeError, KeyError) as error:
        raise place.damage(0, f"a manifest that cannot be read: {error!r}") from error
    if any(piece.end != after.first for piece, after in pairwise(pieces)) or (pieces and pieces[0].first):
        raise place.damage(0, "a manifest whose pieces do not follow each other")
    return manifest


def small_pieces(pieces: Sequence[Piece], most: int) -> int:
    """Return how many trailing pieces are smaller than half of the most that a segment may have."""
    count = 0
    while count < len(pieces) and pieces[-1 - count].size < most // 2:
        count += 1
    return count


def plan_merge(pieces: Sequence[Piece], most: int) -> list[tuple[int, int]]:
    """Return which runs of trailing small pieces to merge, each into one segment of at most ``most`` bytes."""
    begin = len(pieces)
    behind = 0
    for at in range(len(pieces) - 1, len(pieces) - 1 - small_pieces(pieces, most), -1):
        if behind and pieces[at].size > 2 * behind:
            break
        begin, behind = at, behind + pieces[at].size
    runs, size, start = [], 0, begin
    for at in range(begin, len(pieces)):
        if size and size + pieces[at].size > most:
            runs.append((start, at))
            start, size = at, 0
        size += pieces[at].size
    runs.append((start, len(pieces)))
    return [(start, end) for start, end in runs if end - start > 1]
