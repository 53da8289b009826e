"""The tracker's background work on storage: seal, load, merge and delete; ``_recovery`` is the work at its opening.

Each piece of work is a task that retries with backoff until it has succeeded or is not wanted any more. A failing task
delays no other. The index changes only between two awaits, so it is consistent whenever storage answers. A task checks
first whether its bucket is still wanted: a snapshot that was stored after it was cleared is deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Final

from ..._tasks import TaskOwner
from ..._wake_up import WakeUp, interval_clock
from ...clock import Clock
from ...config import BucketConfig
from ..format import STEP, Index, NamedSnapshot
from ._buckets import AnyBucket, ImmutableBucket
from ._index import BucketIndex
from ._queue import in_order
from ._recovery import Recovery
from ._snapshot_builder import Merge, SnapshotBuilder, choose_pair
from ._snapshots import Snapshots
from ._statistics import BucketStatistics
from ._timer import DispatchTimer

_log = logging.getLogger("pulsar_nack.delayed")

_SLOW_MS: Final = 1_000
"""How long other buckets wait for a segment that is being loaded, retries included, to keep the order of time."""
_LATE_MS: Final = 300
"""How long due segments of other buckets wait for a segment that is being loaded."""
_FULL: Final = 5_000
"""The size of a full segment if segments are unlimited."""


class Worker:
    """Seals, loads, merges and deletes the buckets of an index on storage.

    :param timer: is updated when there may be more to do or to wait for, and calls when messages have become available
    """

    def __init__(
        self,
        index: BucketIndex,
        snapshots: Snapshots,
        config: BucketConfig,
        clock: Clock,
        timer: DispatchTimer,
    ) -> None:
        self._index = index
        self._snapshots = snapshots
        self._config = config
        self._timer = timer
        self._is_sealing = False
        self._is_merging = False
        self._merge_seen = -1
        self._cleared: set[NamedSnapshot] = set()
        self._clock = interval_clock(clock)
        self.tasks = TaskOwner(clock)
        self.recovery = Recovery(
            index,
            snapshots,
            self.tasks,
            timer,
            max_start_s=config.recovery_timeout.total_seconds(),
            delete=self._start_deleting,
        )

    @property
    def has_to_seal(self) -> bool:
        """Return whether a bucket is sealed and no task stores it."""
        return bool(self._index.sealing) and not self._is_sealing

    @property
    def load_until(self) -> int:
        """Return the time up to which segments are loaded now.

        While due messages are not taken, only the segments right after them are loaded, so that a backlog of many
        buckets is not loaded all at once. But while a segment fails or takes long, all due segments are loaded, so
        that none waits behind it.
        """
        cutoff = self._timer.cutoff()
        return (cutoff if self._index.has_late else min(cutoff, self._index.next_at)) + self._timer.prefetch_ms

    def statistics(self) -> BucketStatistics:
        """Return the current figures of the tracker."""
        index, operations = self._index, self._snapshots.operations
        unsealed = index.unsealed
        return BucketStatistics(
            messages=len(index.pending),
            buckets=len(index.buckets),
            loaded=unsealed + sum(bucket.loaded for bucket in index.buckets),
            unsealed=unsealed,
            bytes=index.bytes,
            snapshot_bytes=self._snapshots.bytes,
            is_recovering=self.recovery.is_running,
            operations=MappingProxyType(dict(operations.counts)),
            latency=MappingProxyType(operations.latency()),
            damaged=operations.damaged,
            last_error=operations.last_error,
        )

    def start(self) -> None:
        """Start the tasks that are needed now. Cheap if there are none."""
        index = self._index
        if self.has_to_seal:
            self._is_sealing = True
            self.tasks.start(self._seal_all())
        for bucket in index.to_load(self.load_until):
            bucket.is_loading = True
            index.changed()
            self.tasks.start(self._load(bucket))
        if not self._is_merging and self._merge_seen != index.changes:
            self._start_merging()
        while index.retired:
            bucket = index.retired.pop()
            self._start_deleting(bucket.named)

    def _start_merging(self) -> None:
        most = self._config.delayed_delivery_max_num_buckets
        self._merge_seen = self._index.changes
        if 0 < most < len(self._index.buckets) and self.recovery.is_tried.is_set():
            self._is_merging = True
            self.tasks.start(self._merge_all(most))

    # -- loading -----------------------------------------------------------------------------------------------------

    async def _load(self, bucket: ImmutableBucket) -> None:
        clock = self._clock
        now_ms = clock.now_ms()
        bucket.wait_until = now_ms + _SLOW_MS
        late = WakeUp(clock, lambda _: self._note_late(bucket))
        late.set(now_ms + _LATE_MS, now_ms)
        slow = WakeUp(clock, lambda _: self._mark_slow(bucket))
        slow.set(bucket.wait_until, now_ms)
        try:
            while not bucket.is_dropped:
                async with self._snapshots.read_slot():
                    is_loaded = await self._load_once(bucket)
                if is_loaded:
                    break
                await self.tasks.back_off(bucket.failures)
        finally:
            late.cancel()
            slow.cancel()
            bucket.is_loading = False
            self._index.changed()
        self._timer.call_again()

    async def _load_once(self, bucket: ImmutableBucket) -> bool:
        try:
            columns = await self._snapshots.segment(bucket.named.snapshot_id, bucket.next, bucket.counts[bucket.next])
        except Exception:  # noqa: BLE001 - counted and kept by OperationCounters, and retried
            bucket.failures += 1
            self._note_late(bucket)
            return False
        if not bucket.is_dropped:
            bucket.is_loading = False
            self._index.loaded(bucket, columns)
        return True

    def _note_late(self, bucket: ImmutableBucket) -> None:
        """Mark a bucket whose segment fails or takes long, and load all due segments of other buckets."""
        is_first = not self._index.has_late
        bucket.is_late = True
        self._index.changed()
        if is_first:
            self._timer.update()

    def _mark_slow(self, bucket: ImmutableBucket) -> None:
        """Stop waiting for every bucket that should have been loaded by now: all at once, since there may be many."""
        if bucket.is_slow:
            return
        now_ms = self._clock.now_ms()
        for each in self._index.buckets:
            each.is_slow |= each.is_loading and each.wait_until <= now_ms
        self._index.changed()
        self._timer.call_again()

    # -- sealing -----------------------------------------------------------------------------------------------------

    async def _seal_all(self) -> None:
        try:
            while self._index.sealing:
                await self.tasks.retry(self._seal_next)
        finally:
            self._is_sealing = False

    async def _seal_next(self) -> bool:
        if not self._index.sealing:  # cleared since the last attempt
            return True
        sealed = self._index.sealing[0]
        try:
            async with self._snapshots.operations.counted("create"):
                builder = self._builder()
                await self._build(builder, in_order(self._index.queue.runs([sealed])))
                await self._store([sealed], builder.finish())
        except Exception:  # noqa: BLE001 - counted; the bucket stays in memory until it is stored
            return False
        self._timer.call_again()
        return True

    def _builder(self) -> SnapshotBuilder:
        return SnapshotBuilder(
            self._config.segment_step_ms, self._config.delayed_delivery_max_indexes_per_bucket_snapshot_segment
        )

    async def _build(self, builder: SnapshotBuilder, indexes: Iterable[Index]) -> None:
        """Cut indexes whose messages are still held into segments, a few at a time."""
        source = iter(indexes)
        while piece := list(islice(source, STEP)):
            builder.add(self._index.pending.held_of(piece))
            del piece  # see STEP
            await asyncio.sleep(0)

    async def _store(self, owners: Sequence[AnyBucket], snapshot: SnapshotBuilder) -> None:
        """Store the snapshot that was made from some buckets, and replace them with its bucket."""
        start, end = min(owner.start for owner in owners), max(owner.end for owner in owners)

        def is_wanted() -> bool:
            return not all(owner.is_dropped for owner in owners)

        if not is_wanted():
            return
        if not snapshot.segments:
            self._index.replace(owners, _empty(start, end), 0, None)
            return
        named = await self._snapshots.store(
            snapshot.metadata, snapshot.segments, start, end, is_wanted=is_wanted, abandon=self._start_deleting
        )
        if named is None:
            return
        bucket = ImmutableBucket(named, mins=snapshot.mins, maxs=snapshot.maxs, counts=snapshot.counts)
        decoded, columns = -1, None
        while is_wanted():
            segment = bucket.first_reaching(self._index.earliest_of(owners))
            if segment == decoded or segment == len(bucket.mins) or bucket.mins[segment] > self.load_until:
                self._index.replace(owners, bucket, segment, columns if segment == decoded else None)
                return
            decoded, columns = segment, await self._snapshots.decode(snapshot.segments[segment])
        self._start_deleting(named)

    # -- merging -----------------------------------------------------------------------------------------------------

    async def _merge_all(self, most: int) -> None:
        failures = 0
        try:
            while len(self._index.buckets) > most and (pair := choose_pair(self._index.buckets)):
                if await self._merge(pair):
                    failures = 0
                else:
                    failures += 1
                    await self.tasks.back_off(failures)
        finally:
            self._is_merging = False

    async def _merge(self, pair: tuple[ImmutableBucket, ImmutableBucket]) -> bool:
        for bucket in pair:
            bucket.is_merging = True
        try:
            async with self._snapshots.operations.counted("merge"):
                builder = self._builder()
                await self._merge_of(pair).into(builder)
                await self._store(pair, builder.finish())
        except Exception:  # noqa: BLE001 - counted; the source buckets stay
            for bucket in pair:
                bucket.failed_merges += 1
            return False
        finally:
            for bucket in pair:
                bucket.is_merging = False
                self._index.retire_if_used_up(bucket)
        self._timer.call_again()
        return True

    def _merge_of(self, pair: Sequence[ImmutableBucket]) -> Merge:
        most = self._config.delayed_delivery_max_indexes_per_bucket_snapshot_segment
        loaded = in_order(self._index.queue.runs(pair))
        min_copied = _FULL // 2 if most < 0 else (most + 1) // 2
        return Merge(pair, loaded, self._snapshots, self._index.pending, min_copied=min_copied)

    # -- deleting ----------------------------------------------------------------------------------------------------

    async def _delete(self, named: NamedSnapshot, tried: asyncio.Event, *, is_cleared: bool) -> bool:
        if named.snapshot_id < 0:
            return True
        try:
            await self._snapshots.delete(named, is_cleared=is_cleared)
        except Exception:  # noqa: BLE001 - counted, and retried
            return False
        finally:
            tried.set()
        self._cleared.discard(named)
        return True

    async def delete_all(self) -> None:
        """Stop the recovery and delete every snapshot; return after one attempt at each. Cancelling does not stop it.

        Properties are removed first, so that messages of a snapshot that cannot be deleted do not come back.
        """
        self.recovery.stop()
        self._cleared.update(self._snapshots.named())
        await asyncio.wait([self.tasks.start(self._delete_all())])

    async def aclose(self) -> None:
        """Stop all tasks, and log how many cleared snapshots could not be deleted."""
        await self.tasks.aclose()
        if not self._cleared:
            return
        named = len(self._cleared.intersection(self._snapshots.named()))
        _log.warning(
            "%d cleared snapshots could not be deleted before the tracker was closed; the cursor still names"
            " %d of them%s; last error: %r",
            len(self._cleared),
            named,
            ", and their messages will be held again" if named else ": no message comes back",
            self._snapshots.operations.last_error,
        )

    async def _delete_all(self) -> None:
        unwanted = await self._snapshots.all_named()
        self._cleared.update(unwanted)
        for tried in [self._start_deleting(named, is_cleared=True) for named in unwanted]:
            await tried.wait()

    def _start_deleting(self, named: NamedSnapshot, *, is_cleared: bool = False) -> asyncio.Event:
        tried = asyncio.Event()
        deleting = self.tasks.start(self.tasks.retry(lambda: self._delete(named, tried, is_cleared=is_cleared)))
        deleting.add_done_callback(lambda _: tried.set())
        return tried


def _empty(start: int, end: int) -> ImmutableBucket:
    """Return the empty bucket that replaces one whose messages were gone before it was stored."""
    return ImmutableBucket(NamedSnapshot("", -1, start, end), mins=(), maxs=(), counts=())
