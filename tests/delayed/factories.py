"""A subscription that outlives its trackers: what a dispatcher does with any tracker of the factory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypedDict

import pytest

from pulsar_nack import (
    BucketConfig,
    BucketDelayedDeliveryTracker,
    BucketSnapshotStorage,
    ClosedError,
    DelayedDeliveryTracker,
    InMemoryDelayedDeliveryTracker,
    Position,
)
from pulsar_nack.delayed import (
    DelayedCursor,
    DelayedDeliveryTrackerFactory,
    DisabledDelayedDeliveryTracker,
    TrackerFallback,
)
from pulsar_nack.testing import ManualClock, MemoryDelayedCursor, MemorySnapshotStorage

TOPIC = "persistent://public/default/orders"


class Names(TypedDict):
    """The owner of a tracker."""

    topic_name: str
    cursor_name: str


NAMES: Names = {"topic_name": TOPIC, "cursor_name": "billing"}


class SlowStorage(MemorySnapshotStorage):
    """A storage whose start can be delayed or fail, and that counts starts and closes."""

    async def start(self) -> None:
        """Start."""
        await self.faults.enter("start")

    async def close(self) -> None:
        """Count the close."""
        self.faults.calls["close"] += 1


def config_of(kind: str, **more: Any) -> BucketConfig:
    """Return a config with a kind of tracker: small buckets, exact to the ms, long timeouts."""
    settings: dict[str, Any] = {
        "delayed_delivery_tracker_factory_class_name": kind,
        "delayed_delivery_tick_time_millis": 1,
        "is_delayed_delivery_deliver_at_time_strict": True,
        "delayed_delivery_min_index_count_per_bucket": 5,
        "delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds": 0.01,
        "recovery_timeout": 20,
    }
    return BucketConfig(**{**settings, **more})


async def assert_is_closed(tracker: DelayedDeliveryTracker) -> None:
    """Check that each call except figures says that the tracker is closed, and that closing again does nothing."""
    await tracker.aclose()
    calls: list[Callable[[], object]] = [
        lambda: tracker.add_message(1, 2, 30),
        tracker.has_message_available,
        tracker.should_pause_all_deliveries,
        lambda: tracker.get_scheduled_messages(1),
        lambda: tracker.contains_message(1, 1),
        lambda: tracker.reset_tick_time(1),
    ]
    if isinstance(tracker, InMemoryDelayedDeliveryTracker | BucketDelayedDeliveryTracker):
        calls += [
            lambda: tracker.add_messages(1, [], 30),
            lambda: tracker.add_messages(1, [1], 30),
        ]
    if isinstance(tracker, InMemoryDelayedDeliveryTracker):
        calls.append(tracker.next_at)
    elif isinstance(tracker, BucketDelayedDeliveryTracker):
        calls += [lambda: tracker.add_entries(1, [], []), lambda: tracker.add_entries(1, [1], [1])]
    for call in calls:
        with pytest.raises(ClosedError, match="Tracker is closed"):
            call()
    with pytest.raises(ClosedError):
        await tracker.clear()
    entering: Any = tracker
    with pytest.raises(ClosedError):
        await entering.__aenter__()
    assert isinstance(tracker.number_of_delayed_messages, int)
    assert isinstance(tracker.buffer_memory_usage, int)


class Subscription:
    """A topic of messages (i, i) that are due at 10 i, its cursor, and the storage: all that outlives a run.

    ``unacked`` is what the dispatcher would read: a run begins by offering all of it; what comes out, or is refused, is
    dispatched and acknowledged.
    """

    def __init__(
        self, make_storage: Callable[[], BucketSnapshotStorage] | None = None, cursor: DelayedCursor | None = None
    ) -> None:
        self.clock = ManualClock(0)
        self.memory = SlowStorage()
        self.properties = MemoryDelayedCursor({"other": "1"})
        self.make_storage = make_storage
        self.cursor: DelayedCursor = self.properties if cursor is None else cursor
        self.unacked: set[int] = set()
        self.dispatched: list[int] = []
        self.fallbacks: list[TrackerFallback] = []
        self.factory: DelayedDeliveryTrackerFactory
        self.tracker: DelayedDeliveryTracker

    @asynccontextmanager
    async def run(self, kind: str, *, clean: bool = True, **more: Any) -> AsyncIterator[Subscription]:
        """Open a tracker of a kind and read the topic; let running work end before it is closed."""
        async with self.factory_of(kind, **more) as self.factory:
            self.tracker = await self.factory.new_tracker(self.cursor, **NAMES)
            self.read(*sorted(self.unacked))
            yield self
            await self.settle()
            if clean:
                await self.factory.wait_until_clean()

    def factory_of(self, kind: str, **more: Any) -> DelayedDeliveryTrackerFactory:
        """Return a factory on this storage."""
        return DelayedDeliveryTrackerFactory(
            config_of(kind, **more),
            self.memory if self.make_storage is None else self.make_storage(),  # a factory closes its storage
            clock=self.clock,
            on_fallback=self.fallbacks.append,
        )

    def publish(self, first: int, last: int) -> None:
        """Publish messages, and read them."""
        self.unacked |= set(range(first, last + 1))
        self.read(*range(first, last + 1))

    def read(self, *numbers: int) -> None:
        """Offer messages to the tracker; dispatch those that it refuses."""
        for number in numbers:
            if not self.tracker.add_message(number, number, 10 * number):
                self.dispatch(number)

    def dispatch(self, number: int) -> None:
        """Dispatch and acknowledge a message: it is in time, and was not dispatched before."""
        assert 10 * number <= self.clock.now_ms() or isinstance(self.tracker, DisabledDelayedDeliveryTracker)
        assert number in self.unacked
        self.unacked.remove(number)
        self.dispatched.append(number)

    async def settle(self) -> None:
        """Wait until storage has nothing to do for the tracker."""
        if isinstance(self.tracker, BucketDelayedDeliveryTracker):
            await self.tracker.wait_until_idle()

    async def deliver(self, now: int) -> list[int]:
        """Move the clock and dispatch all due messages; return them."""
        self.clock.set(now)
        found: list[Position] = []
        empty = 0
        while empty < 2:
            taken = self.tracker.get_scheduled_messages(100)
            found += taken
            empty = 0 if taken else empty + 1
            await self.settle()
        for position in found:
            self.dispatch(position.entry)
        return [position.entry for position in found]

    @property
    def count(self) -> int:
        """Return how many messages are held back."""
        return self.tracker.number_of_delayed_messages

    @property
    def names(self) -> list[str]:
        """Return the properties that name snapshots."""
        return [key for key in self.cursor.properties() if key != "other"]
