"""A bucket tracker on a manual clock, with a storage and a cursor that fail on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from pulsar_nack import BucketConfig, BucketDelayedDeliveryTracker, Position
from pulsar_nack.delayed.bucket._buckets import AnyBucket
from pulsar_nack.testing import ManualClock

from .homes import OTHER, Home, MemoryHome


def new_home() -> Home:
    """Return a new home; the fixture ``home`` replaces this function."""
    return MemoryHome()


def config_of(
    tick: int = 1,
    *,
    strict: bool = True,
    least: int = 5,
    step: int = 10,
    most_indexes: int = -1,
    most_buckets: int = 50,
    **more: Any,
) -> BucketConfig:
    """Return the config that the numbered cases call B(tick, strict, min index count, step, indexes, buckets)."""
    return BucketConfig(
        delayed_delivery_tick_time_millis=tick,
        is_delayed_delivery_deliver_at_time_strict=strict,
        delayed_delivery_min_index_count_per_bucket=least,
        delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds=step / 1000,
        delayed_delivery_max_indexes_per_bucket_snapshot_segment=most_indexes,
        delayed_delivery_max_num_buckets=most_buckets,
        **more,
    )


async def drain(tracker: BucketDelayedDeliveryTracker, batch: int = 1_000) -> list[Position]:
    """Take out all due messages, and wait for storage in between."""
    found: list[Position] = []
    empty = 0
    while empty < 2:
        taken = tracker.get_scheduled_messages(batch)
        found += taken
        empty = 0 if taken else empty + 1
        await tracker.wait_until_idle()
    return found


class Stage:
    """One subscription: what outlives a tracker, and the present tracker."""

    def __init__(self, now: int = 0, **settings: Any) -> None:
        self.clock = ManualClock(now)
        self.settings = settings
        self.home = new_home()
        self.storage = self.home.storage
        self.cursor = self.home.cursor
        self.woken: list[int] = []
        self.tracker: BucketDelayedDeliveryTracker

    @asynccontextmanager
    async def run(self, **settings: Any) -> AsyncIterator[Stage]:
        """Open a tracker, and close it at the end; an idle tracker's state stays as it is."""
        async with self.home, await self._open(**settings):
            yield self
            self.check()

    async def _open(self, **settings: Any) -> BucketDelayedDeliveryTracker:
        self.tracker = await BucketDelayedDeliveryTracker.open(
            self.storage,
            self.cursor,
            config_of(**{**self.settings, **settings}),
            clock=self.clock,
            on_due=lambda: self.woken.append(self.clock.now_ms()),
        )
        self.add = self.tracker.add_message
        self.get = self.tracker.get_scheduled_messages
        self.has = self.tracker.has_message_available
        return self.tracker

    @property
    def count(self) -> int:
        """Return how many messages are held."""
        return self.tracker.number_of_delayed_messages

    @property
    def buckets(self) -> list[Any]:
        """Return the sealed buckets."""
        return self.tracker._index.buckets

    @property
    def names(self) -> dict[str, str]:
        """Return the properties that name snapshots."""
        return {key: value for key, value in self.cursor.held.items() if key not in OTHER}

    @property
    def stored(self) -> list[object]:
        """Return everything on storage: names and snapshots."""
        return [*self.names, *self.storage.snapshots]

    async def mark_delete(self, ledger: int, entry: int) -> None:
        """Acknowledge everything up to a position."""
        await self.cursor.mark_delete(Position(ledger, entry))

    async def put_all(self, properties: Mapping[str, str]) -> None:
        """Set properties while no tracker is open."""
        async with self.home:
            for key, value in properties.items():
                await self.cursor.put_property(key, value)

    async def idle(self) -> None:
        """Wait until no snapshot is being created, loaded, merged or deleted."""
        await self.tracker.wait_until_idle()

    async def fill(self, first: int, last: int, *, wait: bool = False, base: int = 0) -> None:
        """Add (i, i, base + 10 i)."""
        for i in range(first, last + 1):
            assert self.add(i, i, base + 10 * i)
            if wait:
                await self.idle()

    async def drain(self, batch: int = 100_000) -> list[Position]:
        """Take out all due messages, and wait for storage in between."""
        return await drain(self.tracker, batch)

    async def idle_except(self, name: str) -> None:
        """Run everything until only a blocked call is left."""
        while not self.storage.faults.calls[name]:
            await asyncio.sleep(0)
        for _ in range(50):
            await asyncio.sleep(0 if isinstance(self.home, MemoryHome) else 0.001)

    def check(self) -> None:
        """Compare the state with the figures derived from it."""
        index = self.tracker._index
        owners: list[AnyBucket] = [index.mutable, *index.sealing, *index.buckets]
        index.queue.change_tail_owner(index.mutable)
        for owner in owners:
            assert owner.loaded == sum(len(run.columns) - run.at for run in index.queue.runs([owner])), owner
        for bucket in index.buckets:
            assert bucket.unloaded == sum(bucket.counts[bucket.next :])
            assert not bucket.is_dropped
            assert bucket.is_merging or not bucket.is_used_up
        assert index.buckets == sorted(index.buckets, key=lambda each: (each.start, each.end, each.named.snapshot_id))
        assert len(index.pending) == len(set(index.pending))
        assert (index._bucket_bytes == 0) == (not index.buckets)


def positions(*numbers: int) -> list[Position]:
    """Return (i, i) for each number."""
    return [Position(i, i) for i in numbers]
