"""Cuts indexes that come in order of time into the segments of a snapshot. Pure, and in small steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...index import EntrySets
from ._columns import Index
from ._wire import SegmentRow, encode_indexes, encode_metadata


class Snapshot(NamedTuple):
    """What is to be stored: entry 0, the entries after it, and for each of these its times and size."""

    metadata: bytes
    segments: list[bytes]
    mins: list[int]
    maxs: list[int]
    counts: list[int]


class SnapshotBuilder:
    """Takes indexes in order of time. A segment's window of ``step_ms`` starts at its own first time.

    :param step_ms: a segment's times are less than this apart
    :param max_indexes: most indexes in a segment; -1: no bound
    """

    def __init__(self, step_ms: int, max_indexes: int) -> None:
        self._step_ms = step_ms
        self._max_indexes = max_indexes
        self._rows: list[SegmentRow] = []
        self._segments: list[bytes] = []
        self._counts: list[int] = []
        self._begin()

    def _begin(self) -> None:
        self._parts: list[bytes] = []
        self._sets = EntrySets()
        self._first_at = self._last_at = 0
        self._count = 0

    def add(self, indexes: Sequence[Index]) -> None:
        """Add some more, none of them earlier than those before. About 2 us each."""
        part: list[Index] = []
        for index in indexes:
            if self._count and self._is_over(index[0]):
                self._close(part)
                part = []
            if not self._count:
                self._first_at = index[0]
            self._last_at = index[0]
            self._count += 1
            self._sets.add(index[1], index[2])
            part.append(index)
        self._parts.append(encode_indexes(part))

    def finish(self) -> Snapshot:
        """Return the snapshot; without segments when nothing was added."""
        if self._count:
            self._close([])
        rows = self._rows
        metadata = encode_metadata(rows)
        return Snapshot(
            metadata, self._segments, [row.min_at or 0 for row in rows], [row.max_at for row in rows], self._counts
        )

    def _is_over(self, at: int) -> bool:
        return at - self._first_at >= self._step_ms or self._count == self._max_indexes

    def _close(self, part: Sequence[Index]) -> None:
        self._parts.append(encode_indexes(part))
        self._segments.append(b"".join(self._parts))
        self._rows.append(SegmentRow(self._first_at, self._last_at, self._sets.dump()))
        self._counts.append(self._count)
        self._begin()
