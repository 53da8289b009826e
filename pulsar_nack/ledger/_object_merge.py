"""Merging the small pieces of one log into segments, and deleting what is not named any more; blocking."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from ._object_folder import Folder
from ._object_format import encode
from ._object_manifest import SEGMENT, Piece, plan_merge, small_pieces
from ._object_names import segment_name

_RECENT: Final = 1 << 20


class Limits(NamedTuple):
    """About how large a segment becomes at most, and how many small pieces there may be before they are merged."""

    max_object_bytes: int
    max_small_objects: int


class Merger:
    """Writes segments in an epoch. What was appended last is known without reading it, up to 1 MiB."""

    def __init__(self, folder: Folder, epoch: int, limits: Limits) -> None:
        self._folder = folder
        self._epoch = epoch
        self._limits = limits
        self._recent: dict[str, Sequence[bytes]] = {}
        self._room = _RECENT
        self.made: list[str] = []

    def small(self, pieces: Sequence[Piece]) -> int:
        """Return how many trailing pieces are small."""
        return small_pieces(pieces, self._limits.max_object_bytes)

    def remember(self, piece: Piece, records: Sequence[bytes]) -> None:
        """Keep what was appended, if there is room for it."""
        self._room -= piece.size
        if self._room >= 0:
            self._recent[piece.name] = records

    def forget(self) -> None:
        """Keep nothing any more."""
        self._recent, self._room = {}, _RECENT
        self.made.clear()

    def merge(self, pieces: Sequence[Piece], least: int) -> list[Piece]:
        """Put segments in place of runs of small pieces, when there are so many; return all pieces then.

        :raises OSError: a piece could not be read, or a segment not be written; what ``made`` names may be there
        """
        merged = list(pieces)
        if self.small(merged) >= least:
            for begin, end in reversed(plan_merge(merged, self._limits.max_object_bytes)):
                merged[begin:end] = [self._segment(merged[begin:end])]
        return merged

    def _segment(self, pieces: Sequence[Piece]) -> Piece:
        records = [record for part in self._folder.each(self._read, pieces) for record in part]
        first, name = pieces[0].first, segment_name(pieces[0].first, self._epoch)
        if len(records) != pieces[-1].end - first:
            raise OSError(f"{len(records)} records from {first} where {pieces[-1].end - first} should be")
        data = encode(SEGMENT, first, {"first": first, "count": len(records)}, records, first, owner=self._folder.log)
        self.made.append(name)
        if not self._folder.requests.create(self._folder.key(name), data):
            raise OSError(f"{name} was there already")
        return Piece(name, first, len(records), len(data), first)

    def _read(self, piece: Piece) -> Sequence[bytes]:
        return self._recent.get(piece.name) or self._folder.read(piece, piece.first, piece.end - 1, 1 << 62)


class Garbage:
    """Objects of a log that its newest manifest does not name; what cannot be deleted is tried again later."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._slots: list[str] = []
        self._others: list[str] = []

    def add(self, slots: Iterable[str], others: Iterable[str]) -> None:
        """Add objects: slots that may hold a guard or a fence, which are deleted in order, and others."""
        self._slots = sorted({*self._slots, *slots})
        self._others = sorted({*self._others, *others})

    def sweep(self) -> None:
        """Delete them."""
        requests, key = self._folder.requests, self._folder.key
        with suppress(OSError):
            while self._slots:
                requests.delete([key(self._slots[0])])
                del self._slots[0]
            requests.delete([key(name) for name in self._others])
            self._others.clear()
