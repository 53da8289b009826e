"""Where a merge takes its indexes from: the segments on storage of some buckets, and what is in memory of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from ...errors import SnapshotFormatError
from ...index import NEVER
from ._columns import Columns, Index
from ._immutable import ImmutableBucket
from ._merge import MergeFeed
from ._pending import Pending
from ._segments import SnapshotBuilder
from ._snapshots import Snapshots, add_bitmaps
from ._wire import STEP, SegmentRow

_MOST_BITMAPS: Final = 1_000
"""A segment over more ledgers is read, in slices."""


class MergeSources:
    """Gives a :class:`MergeFeed` what it wants. Source 0 is memory, so that it is never the one that is missing.

    Segments that are loaded while a merge goes on are read from storage all the same.

    :param buckets: what is merged
    :param loaded: what is in memory of them, in order
    :param worth_copying: how many indexes a segment has at least that is copied; smaller ones are joined
    """

    def __init__(
        self,
        buckets: Sequence[ImmutableBucket],
        loaded: Iterator[Index],
        snapshots: Snapshots,
        pending: Pending,
        *,
        worth_copying: int,
    ) -> None:
        self._segments = [_Segments(bucket, bucket.next) for bucket in buckets]
        self._loaded = loaded
        self._snapshots = snapshots
        self._pending = pending
        self._worth_copying = worth_copying
        self._feed = MergeFeed(1 + len(buckets))
        self.wanted = self._feed.wanted
        self.take = self._feed.take

    async def feed(self, source: int) -> None:
        """Give the next piece of a source that is wanted."""
        self._feed.feed(source, await self._read(self._segments[source - 1]) if source else self._from_memory())

    def _from_memory(self) -> Columns | None:
        return Columns(islice(self._loaded, STEP)) or None

    async def _read(self, segments: _Segments) -> Columns | None:
        if segments.have_ended:
            return None
        bucket, place = segments.bucket, segments.place
        columns = await self._snapshots.segment(bucket.snapshot_id, place, bucket.counts[place])
        segments.place += 1
        return columns

    async def copy(self, source: int, builder: SnapshotBuilder) -> bool:
        """Copy the next segment of a source that is wanted as it is; return False when that cannot be.

        It can when nothing else comes before its end, and all that is in it is still held.
        """
        if not source or not self._is_copyable(source):
            return False
        segments = self._segments[source - 1]
        try:
            row = await self._row(segments)
            positions = Pending()
            if len(row.bitmaps) > _MOST_BITMAPS:
                return False
            add_bitmaps(row.bitmaps.items(), positions)
            if not self._pending.includes(positions):
                return False
            segment = await self._snapshots.copy(segments.bucket.snapshot_id, segments.place)
        except SnapshotFormatError:
            return False  # reading it makes the best of it
        builder.add_segment(segment, row, min_at=segments.next_at, count=len(positions))
        segments.place += 1
        return True

    def _is_copyable(self, source: int) -> bool:
        segments = self._segments[source - 1]
        if segments.have_ended or segments.bucket.counts[segments.place] < self._worth_copying:
            return False
        next_at = [NEVER, *(each.next_at for each in self._segments)]
        return self._feed.is_first(source, segments.bucket.maxs[segments.place], next_at)

    async def _row(self, segments: _Segments) -> SegmentRow:
        if not segments.rows:
            segments.rows = await self._snapshots.rows(segments.bucket.snapshot_id)
        if segments.place >= len(segments.rows):
            raise SnapshotFormatError("snapshot metadata", f"{len(segments.rows)} segments are too few")
        return segments.rows[segments.place]


@dataclass(slots=True)
class _Segments:
    """What a merge has not read yet of a bucket."""

    bucket: ImmutableBucket
    place: int
    rows: list[SegmentRow] = field(default_factory=list)

    @property
    def have_ended(self) -> bool:
        return self.place == len(self.bucket.mins)

    @property
    def next_at(self) -> int:
        """Return a lower bound of the times that are left."""
        return NEVER if self.have_ended else self.bucket.mins[self.place]
