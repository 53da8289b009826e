"""Building snapshots: of indexes that arrive in order of time, and of two buckets that are merged.

:class:`SnapshotBuilder` cuts indexes into segments. A merge gives it the indexes of both buckets, from memory and
storage, in small steps.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Final, Self

from ...errors import SnapshotFormatError
from ...index import NEVER, PositionSet
from ..format import STEP, Columns, Index, SegmentRow, encode_indexes, encode_metadata
from ._buckets import ImmutableBucket
from ._snapshots import Snapshots, add_bitmaps

_MAX_PIECE: Final = 128
"""How many indexes of a source are merged at a time."""
_MAX_BITMAPS: Final = 1_000
"""Segments over more ledgers are decoded instead of copied, so that the work stays in short steps."""


class SnapshotBuilder:
    """A snapshot that is built from indexes in order of time.

    ``segments`` are those that have ended, each with an earliest time or a lower bound of it in ``mins``, a latest time
    in ``maxs``, and the number of its indexes in ``counts``.

    :param step_ms: the times of a segment span less than this, from the segment's first time
    :param max_indexes: the maximum of indexes in a segment; -1: unlimited
    """

    def __init__(self, step_ms: int, max_indexes: int) -> None:
        self._step_ms = step_ms
        self._max_indexes = max_indexes
        self._metadata: list[bytes] = []
        self.segments: list[bytes] = []
        self.mins: list[int] = []
        self.maxs: list[int] = []
        self.counts: list[int] = []
        self._begin()

    def _begin(self) -> None:
        self._parts: list[bytes] = []
        self._positions = PositionSet()
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

    def finish(self) -> Self:
        """End the last segment, and return the snapshot; it has no segments if nothing was added."""
        if self._count:
            self._close()
        return self

    @property
    def metadata(self) -> bytes:
        """Return the metadata of the segments."""
        return b"".join(self._metadata)

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
        self.segments.append(segment)
        self._metadata.append(encode_metadata([row]))
        self.mins.append(min_at)
        self.maxs.append(row.max_at)
        self.counts.append(count)


def choose_pair(buckets: Sequence[ImmutableBucket]) -> tuple[ImmutableBucket, ImmutableBucket] | None:
    """Return the two neighbours, in order of ledgers, with the fewest indexes together; None: there is no pair.

    Buckets that are being merged or cannot be read now are skipped. Pairs whose merge has failed before come last, so
    that one that always fails does not block the others. O(buckets).
    """
    pairs = [
        (one.failed_merges + other.failed_merges, one.size + other.size, at)
        for at, (one, other) in enumerate(pairwise(buckets))
        if not (one.is_merging or other.is_merging or one.is_unreadable or other.is_unreadable)
    ]
    if not pairs:
        return None
    at = min(pairs)[2]
    return buckets[at], buckets[at + 1]


class MergeSource:
    """A source of a merge. Its indexes arrive in pieces, in order; those of a piece from ``at`` on are not taken yet.

    :param bucket: whose segments are the pieces, from the next one on; None: the pieces come from memory
    """

    __slots__ = ("at", "bucket", "columns", "has_ended", "next", "rows")

    def __init__(self, bucket: ImmutableBucket | None = None) -> None:
        self.bucket = bucket
        self.next = 0 if bucket is None else bucket.next
        """The first segment that was not read yet."""
        self.rows: list[SegmentRow] = []
        """The metadata of all segments, once it was read."""
        self.columns = Columns()
        self.at = 0
        self.has_ended = False

    def feed(self, columns: Columns | None) -> None:
        """Give the next piece; None: there is no more."""
        self.has_ended = columns is None
        self.columns, self.at = columns or Columns(), 0

    @property
    def end(self) -> int:
        """Return the end of what may be taken at a time."""
        return min(self.at + _MAX_PIECE, len(self.columns))

    @property
    def is_wanting(self) -> bool:
        """Return whether its next piece is needed before more can be taken."""
        return not self.has_ended and self.at == len(self.columns)

    @property
    def has_more(self) -> bool:
        """Return whether it may have indexes after :attr:`end`."""
        return not self.has_ended or self.end < len(self.columns)

    @property
    def next_at(self) -> int:
        """Return a lower bound of the times in the segments that were not read, NEVER if there are none."""
        return NEVER if self.bucket is None or self.next == len(self.bucket.mins) else self.bucket.mins[self.next]

    @property
    def first_at(self) -> int:
        """Return the earliest time that is left, or a lower bound of it if the piece is used up."""
        return self.columns.times[self.at] if self.at < len(self.columns) else self.next_at

    def take(self, bound: Index | None) -> Iterable[Index]:
        """Remove and return the indexes up to a bound; all of them for None."""
        to = self.end if bound is None else bisect_right(self.columns, bound, self.at, self.end)
        part = self.columns.part(self.at, to)
        self.at = to
        return part


def is_first(source: MergeSource, max_at: int, sources: Iterable[MergeSource]) -> bool:
    """Return whether the next piece of an exhausted source comes before all indexes of the other sources.

    :param max_at: the latest time of that piece
    """
    return source.is_wanting and all(max_at < each.first_at for each in sources if each is not source)


def wanted_of(sources: Iterable[MergeSource]) -> MergeSource | None:
    """Return a source whose next piece is needed before more can be taken; None: no piece is needed."""
    return next((source for source in sources if source.is_wanting), None)


def take_merged(sources: Iterable[MergeSource]) -> list[Index]:
    """Remove and return the next indexes, merged; empty: all sources have ended. Call it when no piece is wanted."""
    ends = [source.columns[source.end - 1] for source in sources if source.has_more]
    bound = min(ends) if ends else None
    taken: list[Index] = []
    for source in sources:
        taken += source.take(bound)
    taken.sort()
    return taken


class Merge:
    """A merge of the indexes of buckets, those in memory and those in segments on storage, into a snapshot.

    A segment is copied as it is if no other index falls into its time span. So buckets that follow each other in time
    are merged at the speed of storage. Segments that the tracker loads during a merge are still read from storage here.

    :param buckets: the buckets that are merged
    :param loaded: their indexes in memory, in order
    :param min_copied: the number of indexes from which a segment is copied as it is; smaller ones are joined
    """

    def __init__(
        self,
        buckets: Sequence[ImmutableBucket],
        loaded: Iterator[Index],
        snapshots: Snapshots,
        pending: PositionSet,
        *,
        min_copied: int,
    ) -> None:
        self._loaded = loaded
        self._snapshots = snapshots
        self._pending = pending
        self._min_copied = min_copied
        self._sources = [MergeSource(), *map(MergeSource, buckets)]

    async def into(self, builder: SnapshotBuilder) -> None:
        """Add the indexes whose messages are still held to a snapshot, a few at a time."""
        while True:
            while (source := wanted_of(self._sources)) is not None:
                if not await self._copy(source, builder):
                    source.feed(await self._read(source))
            taken = take_merged(self._sources)
            if not taken:
                return
            builder.add(self._pending.held_of(taken))
            del taken  # see STEP
            await asyncio.sleep(0)

    async def _read(self, source: MergeSource) -> Columns | None:
        """Return the next piece of a source; None: there is no more."""
        bucket, number = source.bucket, source.next
        if bucket is None:
            return Columns(islice(self._loaded, STEP)) or None
        if number == len(bucket.mins):
            return None
        columns = await self._snapshots.segment(bucket.named.snapshot_id, number, bucket.counts[number])
        source.next += 1
        return columns

    async def _copy(self, source: MergeSource, builder: SnapshotBuilder) -> bool:
        """Copy the next segment of a wanted source as it is; return False if that is not possible.

        It is possible if no other index comes before the segment's end and all its messages are still held.
        """
        bucket, number = source.bucket, source.next
        if bucket is None or number == len(bucket.mins) or bucket.counts[number] < self._min_copied:
            return False
        if not is_first(source, bucket.maxs[number], self._sources):
            return False
        try:
            row = await self._row(source, bucket)
            positions = PositionSet()
            if len(row.bitmaps) > _MAX_BITMAPS:
                return False
            add_bitmaps(row.bitmaps.items(), positions)
            if not self._pending.includes(positions):
                return False
            segment = await self._snapshots.copy(bucket.named.snapshot_id, number)
        except SnapshotFormatError:
            return False  # reading the segment handles the damage
        builder.add_segment(segment, row, min_at=source.next_at, count=len(positions))
        source.next += 1
        return True

    async def _row(self, source: MergeSource, bucket: ImmutableBucket) -> SegmentRow:
        if not source.rows:
            source.rows = await self._snapshots.rows(bucket.named.snapshot_id)
        if source.next >= len(source.rows):
            raise SnapshotFormatError("snapshot metadata", f"{len(source.rows)} segments are too few")
        return source.rows[source.next]
