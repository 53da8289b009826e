"""Brings a bucket back from its snapshot.

Whatever is due by then is left to normal dispatch, which reads those messages again: whole segments are skipped by
their latest time, and the first one that is partly due is loaded and filtered. So is what the cursor has passed. A
bucket that brings nothing new is what a merge left behind, or was read anew by the dispatcher already: it is deleted.

Several snapshots are read at the same time, only the metadata and that one segment of each; they are taken in one after
the other, in the order of :func:`named_snapshots`. A read that fails, or takes longer than five seconds, holds up no
other: it is retried later, with twice the time at each attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ...errors import SnapshotFormatError, SnapshotNotFoundError
from ...ids import Position
from ._columns import Columns
from ._immutable import ImmutableBucket
from ._index import BucketIndex
from ._jobs import Jobs
from ._keys import NamedSnapshot
from ._pending import Pending
from ._snapshots import Snapshots, add_bitmaps
from ._wire import SegmentRow

_PATIENCE: Final = 5.0
"""Seconds that the first attempt to read a snapshot may take."""
_BITMAPS: Final = 256
_MEASURED: Final = 64
"""How many bitmaps are joined, or measured, in one go: some tenths of a millisecond."""


class Recovered(NamedTuple):
    """A bucket that is ready to be taken in: its positions, and what of it is in memory."""

    bucket: ImmutableBucket
    positions: Pending
    columns: Columns | None


async def read_bucket(named: NamedSnapshot, snapshots: Snapshots, cutoff: int) -> Recovered | None:
    """Read what is not due of a snapshot; None when all of it is.

    :raises SnapshotError: the snapshot is gone or damaged; or whatever the storage raises
    """
    rows = await snapshots.recover(named.snapshot_id)
    first = next((number for number, row in enumerate(rows) if row.max_at > cutoff), len(rows))
    if first == len(rows):
        return None
    columns = None
    positions = Pending()
    counts = [0] * first
    if _is_partly_due(rows[first], cutoff):
        least = await _add(rows[first], Pending())
        stored = await snapshots.segment(named.snapshot_id, first, least)
        columns = Columns(index for index in stored if index[0] > cutoff)
        for _, ledger, entry in columns:
            positions.add(ledger, entry)
        counts.append(len(columns))
    for row in rows[len(counts) :]:
        counts.append(await _add(row, positions))
    for _ in positions.compress(_MEASURED):
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


async def _add(row: SegmentRow, positions: Pending) -> int:
    """Add the positions of a segment; return how many are new there."""
    count = 0
    bitmaps = list(row.bitmaps.items())
    for at in range(0, len(bitmaps), _BITMAPS):
        count += add_bitmaps(bitmaps[at : at + _BITMAPS], positions)
        await asyncio.sleep(0)
    return count


def take_in(recovered: Recovered, index: BucketIndex, mark_delete: Position) -> bool:
    """Move a bucket to the index; return False when it brings nothing that is not there, and is not taken in."""
    bucket, positions, columns = recovered
    positions.trim(*mark_delete)
    if not index.pending.take_over(positions):
        return False
    index.put(bucket)
    if columns is not None:
        index.loaded(bucket, columns)
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


class Recovery:
    """Reads all snapshots once the tracker is opened, and those that fail again later.

    ``is_tried`` is set when each was tried once; ``delete`` is called for what is not wanted.
    """

    def __init__(
        self,
        index: BucketIndex,
        snapshots: Snapshots,
        jobs: Jobs,
        *,
        cutoff: Callable[[], int],
        delete: Callable[[NamedSnapshot], object],
        on_news: Callable[[], None],
    ) -> None:
        self._index = index
        self._snapshots = snapshots
        self._jobs = jobs
        self._cutoff = cutoff
        self._delete = delete
        self._on_news = on_news
        self._task: asyncio.Task[None] | None = None
        self.is_tried = asyncio.Event()

    @property
    def is_going_on(self) -> bool:
        """Return whether there are snapshots still to be read."""
        return self._task is not None and not self._task.done()

    async def ended(self) -> None:
        """Wait until no snapshot is left to be read."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def start(self) -> None:
        """Begin."""
        self._jobs.start(self._delete_orphans())
        self._task = self._jobs.start(self._run())

    def stop(self) -> None:
        """Give up what was not read yet."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        failures = 0
        left = self._snapshots.named()
        try:
            while left := await self._recover_all(left, _PATIENCE * 2 ** min(failures, 10)):
                self.is_tried.set()
                self._on_news()
                failures += 1
                await self._jobs.back_off(failures)
        finally:
            self.is_tried.set()
            self._index.changed()
        self._on_news()

    async def _recover_all(self, wanted: Sequence[NamedSnapshot], patience: float) -> list[NamedSnapshot]:
        """Bring buckets back, in this order; return those that have to be tried again."""
        reading = [(named, asyncio.create_task(self._read(named, patience))) for named in wanted]
        try:
            return [named for named, task in reading if not await self._recover(named, task, patience)]
        finally:
            await _cancel([task for _, task in reading])

    async def _recover(self, named: NamedSnapshot, task: asyncio.Task[Recovered | None], patience: float) -> bool:
        """Take a bucket in once it is read; return False when that has to be tried again."""
        try:
            found = await task
            while found is not None and not still_waits(found, self._cutoff()):
                found = await self._read(named, patience)
        except (SnapshotNotFoundError, SnapshotFormatError) as error:
            what = f"snapshot {named.snapshot_id} is dropped; the dispatcher has to add its messages again"
            self._snapshots.operations.note_damage(error, what)
            found = None
        except Exception as error:  # noqa: BLE001 - kept, and tried again
            self._snapshots.operations.last_error = error
            return False
        if found is None or not take_in(found, self._index, self._snapshots.mark_delete_position):
            self._delete(named)
        return True

    async def _read(self, named: NamedSnapshot, patience: float) -> Recovered | None:
        async with self._jobs.read_slot(), asyncio.timeout(patience):
            if named.end < self._snapshots.mark_delete_position.ledger:
                return None
            return await read_bucket(named, self._snapshots, self._cutoff())

    async def _delete_orphans(self) -> None:
        attempts = 0
        try:
            while (orphans := await self._snapshots.orphans()) is None:
                attempts += 1
                await self._jobs.back_off(attempts)
        except Exception as error:  # noqa: BLE001 - kept; the next run finds them
            self._snapshots.operations.last_error = error
            return
        for named in orphans:
            self._delete(named)


async def _cancel(tasks: Sequence[asyncio.Task[Recovered | None]]) -> None:
    """End tasks; what they raise is of no interest any more."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _is_partly_due(row: SegmentRow, cutoff: int) -> bool:
    return row.min_at is None or row.min_at <= cutoff


def _lowest(rows: Sequence[SegmentRow]) -> list[int]:
    """Return the earliest time of each segment, or where it is not known the latest of the one before."""
    before = (0, *(row.max_at for row in rows))
    return [at if row.min_at is None else row.min_at for row, at in zip(rows, before, strict=False)]
