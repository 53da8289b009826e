"""Brings a bucket back from its snapshot.

Whatever is due by then is left to normal dispatch, which reads those messages again: whole segments are skipped by
their latest time, and the first one that is partly due is loaded and filtered. So is what the cursor has passed. A
bucket that brings nothing new is what a merge left behind, or was read anew by the dispatcher already: it is deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from ...ids import Position
from ...index import EntrySets
from ._columns import Columns
from ._immutable import ImmutableBucket
from ._index import BucketIndex
from ._keys import NamedSnapshot
from ._snapshots import Snapshots, add_positions
from ._wire import SegmentRow


class Recovered(NamedTuple):
    """A bucket that is ready to be taken in: its positions, and what of it is in memory."""

    bucket: ImmutableBucket
    positions: EntrySets
    columns: Columns | None


async def read_bucket(named: NamedSnapshot, snapshots: Snapshots, cutoff: int) -> Recovered | None:
    """Read what is not due of a snapshot; None when all of it is.

    :raises SnapshotError: the snapshot is gone or damaged; or whatever the storage raises
    """
    rows = await snapshots.rows(named.snapshot_id)
    first = next((number for number, row in enumerate(rows) if row.max_at > cutoff), len(rows))
    if first == len(rows):
        return None
    columns = None
    positions = EntrySets()
    counts = [0] * first
    if _is_partly_due(rows[first], cutoff):
        columns = Columns(index for index in await snapshots.segment(named.snapshot_id, first) if index[0] > cutoff)
        for _, ledger, entry in columns:
            positions.add(ledger, entry)
        counts.append(len(columns))
    for row in rows[len(counts) :]:
        counts.append(add_positions(row, positions))
        await asyncio.sleep(0)
    bucket = ImmutableBucket(
        named.key,
        named.snapshot_id,
        (named.start, named.end),
        mins=_lowest(rows),
        maxs=[row.max_at for row in rows],
        counts=counts,
    )
    bucket.skip_to(first)
    return Recovered(bucket, positions, columns)


def take_in(recovered: Recovered, index: BucketIndex, mark_delete: Position) -> bool:
    """Add a bucket to the index; return False when it brings nothing that is not there, and is not taken in."""
    recovered.positions.trim(*mark_delete)
    if not index.pending.absorb(recovered.positions):
        return False
    index.put(recovered.bucket)
    if recovered.columns is not None:
        index.loaded(recovered.bucket, recovered.columns)
    return True


def still_waits(recovered: Recovered, cutoff: int) -> bool:
    """Leave out what came due while the bucket was read; return False when that is more than what was loaded."""
    bucket, positions, columns = recovered
    after = bucket.next_at if columns is None else bucket.following_at
    if after <= cutoff:
        return False
    for at, ledger, entry in columns or ():
        if at <= cutoff:
            positions.discard(ledger, entry)
    return True


def _is_partly_due(row: SegmentRow, cutoff: int) -> bool:
    return row.min_at is None or row.min_at <= cutoff


def _lowest(rows: Sequence[SegmentRow]) -> list[int]:
    """Return the earliest time of each segment, or where it is not known the latest of the one before."""
    before = (0, *(row.max_at for row in rows))
    return [at if row.min_at is None else row.min_at for row, at in zip(rows, before, strict=False)]
