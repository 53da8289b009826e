"""Cuts indexes that arrive in order of time into the segments of a snapshot. Pure, and in small steps."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from ..format import BulkPositionSet, Index, SegmentRow, encode_indexes, encode_metadata


class NewSnapshot(NamedTuple):
    """A snapshot to be stored: its metadata and segments, and the times and size of each segment."""

    metadata: bytes
    segments: list[bytes]
    mins: list[int]
    maxs: list[int]
    counts: list[int]


class SnapshotBuilder:
    """Builds a snapshot from indexes in order of time.

    :param step_ms: the times of a segment span less than this, from the segment's first time
    :param max_indexes: the maximum of indexes in a segment; -1: unlimited
    """

    def __init__(self, step_ms: int, max_indexes: int) -> None:
        self._step_ms = step_ms
        self._max_indexes = max_indexes
        self._metadata: list[bytes] = []
        self._segments: list[bytes] = []
        self._mins: list[int] = []
        self._maxs: list[int] = []
        self._counts: list[int] = []
        self._begin()

    def _begin(self) -> None:
        self._parts: list[bytes] = []
        self._positions = BulkPositionSet()
        self._first_at = self._last_at = 0
        self._count = 0

    def add(self, indexes: Sequence[Index]) -> None:
        """Add indexes, none of them earlier than those before. About 0.5 us each."""
        at = 0
        while at < len(indexes):
            if not self._count:
                self._first_at = indexes[at][0]
            end = self._end(indexes, at)
            if end == at:
                self._close()
                continue
            self._take(indexes[at:end])
            at = end

    def add_segment(self, segment: bytes, row: SegmentRow, *, min_at: int, count: int) -> None:
        """Add a whole segment as it is, not earlier than the indexes before.

        :param min_at: its earliest time, or a lower bound of it
        """
        if self._count:
            self._close()
        self._put(segment, row._replace(min_at=min_at), min_at, count)  # later releases of Pulsar need min_at

    def finish(self) -> NewSnapshot:
        """Return the snapshot; it has no segments if nothing was added."""
        if self._count:
            self._close()
        return NewSnapshot(b"".join(self._metadata), self._segments, self._mins, self._maxs, self._counts)

    def _end(self, indexes: Sequence[Index], at: int) -> int:
        """Return the end of the indexes, from ``at`` on, that belong to the current segment."""
        end = len(indexes)
        if self._max_indexes > 0:
            end = min(end, at + self._max_indexes - self._count)
        over_at = self._first_at + self._step_ms
        if end > at and indexes[end - 1][0] >= over_at:
            end = bisect_left(indexes, (over_at,), at, end)
        return end

    def _take(self, part: Sequence[Index]) -> None:
        self._last_at = part[-1][0]
        self._count += len(part)
        self._positions.add_all(part)
        self._parts.append(encode_indexes(part))

    def _close(self) -> None:
        row = SegmentRow(self._first_at, self._last_at, self._positions.dump())
        self._put(b"".join(self._parts), row, self._first_at, self._count)
        self._begin()

    def _put(self, segment: bytes, row: SegmentRow, min_at: int, count: int) -> None:
        self._segments.append(segment)
        self._metadata.append(encode_metadata([row]))
        self._mins.append(min_at)
        self._maxs.append(row.max_at)
        self._counts.append(count)
