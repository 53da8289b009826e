"""Recovery: rebuilds the buckets of an earlier run from their snapshots.

Messages that are due by then are left to the dispatcher, which reads them again: whole segments are skipped by their
latest time, and the first segment that is only partly due is loaded and filtered. Messages that the cursor has passed
are dropped. A bucket without new messages was left behind by a merge, or the dispatcher has read its messages already;
it is deleted.

Several snapshots are read at the same time, only the metadata and that one segment of each. The buckets are added one
after the other, in the order of :func:`named_snapshots`. A read that fails, or takes longer than five seconds, delays
no other: it is retried later, with twice the time at each attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from ..._tasks import TaskOwner
from ...errors import SnapshotFormatError, SnapshotNotFoundError
from ...ids import Position
from ...index import PositionSet
from ..format import Columns, NamedSnapshot, SegmentRow
from ._buckets import ImmutableBucket
from ._index import BucketIndex
from ._snapshots import Snapshots, add_bitmaps
from ._timer import DispatchTimer

_FIRST_TIMEOUT_S: Final = 5.0
"""How long the first attempt to read a snapshot may take."""
_MAX_START_S: Final = 5.0
_JOINED: Final = 256
_COMPRESSED: Final = 64
"""How many bitmaps are joined, or compressed, before other tasks run: some tenths of a millisecond."""


RecoveredBucket = tuple[ImmutableBucket, PositionSet, Columns | None]
"""A bucket that is ready to be added, its positions, and its indexes in memory."""


async def read_bucket(named: NamedSnapshot, snapshots: Snapshots, cutoff: int) -> RecoveredBucket | None:
    """Read the messages of a snapshot that are not due; None: all are due.

    :raises SnapshotError: the snapshot is missing or damaged
    """
    rows = await snapshots.recover(named.snapshot_id)
    first = next((number for number, row in enumerate(rows) if row.max_at > cutoff), len(rows))
    if first == len(rows):
        return None
    columns = None
    positions = PositionSet()
    counts = [0] * first
    if _is_partly_due(rows[first], cutoff):
        min_count = await _add(rows[first], PositionSet())
        stored = await snapshots.segment(named.snapshot_id, first, min_count)
        columns = Columns(index for index in stored if index[0] > cutoff)
        for _, ledger, entry in columns:
            positions.add(ledger, entry)
        counts.append(len(columns))
    for row in rows[len(counts) :]:
        counts.append(await _add(row, positions))
    for _ in positions.compress(_COMPRESSED):
        await asyncio.sleep(0)
    bucket = ImmutableBucket(
        named,
        mins=_lowest(rows),
        maxs=[row.max_at for row in rows],
        counts=counts,
    )
    bucket.skip_to(first)
    return bucket, positions, columns


async def _add(row: SegmentRow, positions: PositionSet) -> int:
    """Add the positions of a segment to a set; return how many are new."""
    count = 0
    bitmaps = list(row.bitmaps.items())
    for at in range(0, len(bitmaps), _JOINED):
        count += add_bitmaps(bitmaps[at : at + _JOINED], positions)
        await asyncio.sleep(0)
    return count


def add_bucket(recovered: RecoveredBucket, index: BucketIndex, mark_delete: Position) -> bool:
    """Add a bucket to the index; return False and add nothing if the index has all its messages."""
    bucket, positions, columns = recovered
    positions.trim(*mark_delete)
    if not index.pending.take_over(positions):
        return False
    index.put(bucket)
    if columns is not None:
        index.loaded(bucket, columns)
    return True


def drop_due(recovered: RecoveredBucket, cutoff: int) -> bool:
    """Drop messages that became due while the bucket was read; return False if a segment on storage is due too."""
    bucket, positions, columns = recovered
    after = bucket.next_at if columns is None else bucket.following_at
    if after <= cutoff:
        return False
    for at, ledger, entry in columns or ():
        if at <= cutoff:
            positions.discard(ledger, entry)
    return True


class Recovery:
    """Reads all snapshots when the tracker is opened, and retries those that fail.

    ``is_tried`` is set once each was tried. ``delete`` is called with the snapshots that are not needed.

    :param max_start_s: how many seconds :meth:`start` waits at most; never more than five
    """

    def __init__(
        self,
        index: BucketIndex,
        snapshots: Snapshots,
        tasks: TaskOwner,
        timer: DispatchTimer,
        *,
        max_start_s: float,
        delete: Callable[[NamedSnapshot], object],
    ) -> None:
        self._index = index
        self._snapshots = snapshots
        self._tasks = tasks
        self._timer = timer
        self._max_start_s = min(max_start_s, _MAX_START_S)
        self._delete = delete
        self._task: asyncio.Task[None] | None = None
        self.is_tried = asyncio.Event()

    @property
    def is_running(self) -> bool:
        """Return whether some snapshots are not read yet."""
        return self._task is not None and not self._task.done()

    async def ended(self) -> None:
        """Wait until all snapshots are read."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def start(self) -> None:
        """Start to read snapshots and to delete orphans; return when each snapshot was tried, or after some seconds."""
        self._tasks.start(self._delete_orphans())
        self._task = self._tasks.start(self._run())
        with suppress(TimeoutError):
            async with asyncio.timeout(self._max_start_s):
                await self.is_tried.wait()

    def stop(self) -> None:
        """Give up the snapshots that are not read yet."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        failures = 0
        left = self._snapshots.named()
        try:
            while left := await self._recover_all(left, _FIRST_TIMEOUT_S * 2 ** min(failures, 10)):
                self.is_tried.set()
                self._timer.call_again()
                failures += 1
                await self._tasks.back_off(failures)
        finally:
            self.is_tried.set()
            self._index.changed()
        self._timer.call_again()

    async def _recover_all(self, wanted: Sequence[NamedSnapshot], timeout_s: float) -> list[NamedSnapshot]:
        """Recover buckets in this order; return the snapshots that have to be tried again."""
        reading = [(named, asyncio.create_task(self._read(named, timeout_s))) for named in wanted]
        try:
            return [named for named, task in reading if not await self._recover(named, task, timeout_s)]
        finally:
            await _cancel([task for _, task in reading])

    async def _recover(
        self, named: NamedSnapshot, task: asyncio.Task[RecoveredBucket | None], timeout_s: float
    ) -> bool:
        """Add a bucket once it is read; return False if its snapshot has to be tried again."""
        try:
            found = await task
            while found is not None and not drop_due(found, self._timer.cutoff()):
                found = await self._read(named, timeout_s)
        except (SnapshotNotFoundError, SnapshotFormatError) as error:
            effect = f"snapshot {named.snapshot_id} is dropped; the dispatcher has to add its messages again"
            self._snapshots.operations.note_damage(error, effect)
            found = None
        except Exception as error:  # noqa: BLE001 - kept, and tried again
            self._snapshots.operations.last_error = error
            return False
        if found is None or not add_bucket(found, self._index, self._snapshots.mark_delete_position):
            self._delete(named)
        return True

    async def _read(self, named: NamedSnapshot, timeout_s: float) -> RecoveredBucket | None:
        async with self._snapshots.read_slot(), asyncio.timeout(timeout_s):
            if named.end < self._snapshots.mark_delete_position.ledger:
                return None
            return await read_bucket(named, self._snapshots, self._timer.cutoff())

    async def _delete_orphans(self) -> None:
        attempts = 0
        try:
            while (orphans := await self._snapshots.orphans()) is None:
                attempts += 1
                await self._tasks.back_off(attempts)
        except Exception as error:  # noqa: BLE001 - kept; the next run finds them
            self._snapshots.operations.last_error = error
            return
        for named in orphans:
            self._delete(named)


async def _cancel(tasks: Sequence[asyncio.Task[RecoveredBucket | None]]) -> None:
    """Cancel tasks, and ignore their errors."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _is_partly_due(row: SegmentRow, cutoff: int) -> bool:
    return row.min_at is None or row.min_at <= cutoff


def _lowest(rows: Sequence[SegmentRow]) -> list[int]:
    """Return the earliest time of each segment; where it is unknown, the latest time of the segment before."""
    before = (0, *(row.max_at for row in rows))
    return [at if row.min_at is None else row.min_at for row, at in zip(rows, before, strict=False)]
