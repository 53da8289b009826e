"""The kind of tracker changes between runs: nothing is lost, and unused snapshots are deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pulsar_nack import BucketDelayedDeliveryTracker, InMemoryDelayedDeliveryTracker
from pulsar_nack.delayed import (
    DelayedDeliveryTrackerFactory,
    DisabledDelayedDeliveryTracker,
    LogDelayedCursor,
    LogSnapshotStorage,
)
from pulsar_nack.errors import LogFencedError
from pulsar_nack.ledger import LocalLogStore, ObjectLogStore
from pulsar_nack.testing import MemoryDelayedCursor, MemorySnapshotStorage

from .factories import NAMES, TOPIC, Subscription, config_of

HOMES = ["memory", "local"]


@asynccontextmanager
async def subscription_in(home: str, path: Path) -> AsyncIterator[Subscription]:
    """Give a subscription whose storage and cursor are in memory, or in a folder."""
    if home == "memory":
        yield Subscription()
        return
    async with await LocalLogStore.open(path) as store, await LogDelayedCursor.open(store) as cursor:
        yield Subscription(lambda: LogSnapshotStorage(store), cursor)
        assert len(await store.names()) == 1, "after a run in memory only the cursor's own log is left"


def stored(subscription: Subscription) -> list[object]:
    """Return everything on storage: names and snapshots."""
    return [*subscription.names, *subscription.memory.snapshots]


async def test_bucket_to_memory_and_back() -> None:
    """D34: messages in buckets are read again into memory, and the snapshots go; the next buckets begin empty."""
    subscription = Subscription()
    async with subscription.run("bucket"):
        subscription.publish(1, 100)
        assert await subscription.deliver(100) == list(range(1, 11))
        assert subscription.count == 90
        await subscription.settle()
        assert len(subscription.names) == len(subscription.memory.snapshots) > 5
    async with subscription.run("memory"):
        assert isinstance(subscription.tracker, InMemoryDelayedDeliveryTracker)
        assert subscription.count == 90
        subscription.publish(101, 110)
        assert await subscription.deliver(300) == list(range(11, 31))
        await subscription.factory.wait_until_clean()
        assert stored(subscription) == []
        assert subscription.factory.statistics().cleaned > 5
    assert subscription.properties.held == {"other": "1"}
    subscription.clock.set(400)
    async with subscription.run("bucket"):
        assert subscription.dispatched[-10:] == list(range(31, 41))  # due meanwhile: refused, and dispatched at once
        assert subscription.count == 70
        assert await subscription.deliver(1_100) == list(range(41, 111))
        await subscription.settle()
    assert sorted(subscription.dispatched) == list(range(1, 111))
    assert stored(subscription) == []
    assert subscription.fallbacks == []


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize(
    "kinds",
    [
        ("bucket", "memory", "bucket"),
        ("memory", "bucket", "memory"),
        ("bucket", "bucket", "memory", "memory", "bucket", "memory"),
    ],
    ids="-".join,
)
async def test_any_way_round(home: str, kinds: tuple[str, ...], tmp_path: Path) -> None:
    """D34: over any change of kinds each message is dispatched once, in time, and memory leaves nothing stored."""
    async with subscription_in(home, tmp_path / "store") as subscription:
        for number, kind in enumerate(kinds):
            async with subscription.run(kind):
                assert subscription.count == len(subscription.unacked)
                subscription.publish(1 + 40 * number, 40 + 40 * number)
                await subscription.deliver(10 * (25 + 40 * number))
                assert subscription.count == 15
            assert bool(subscription.names) == (kind == "bucket")
        async with subscription.run("memory"):
            await subscription.deliver(10_000)
        assert sorted(subscription.dispatched) == list(range(1, 1 + 40 * len(kinds)))
        assert subscription.names == []


async def test_none_holds_nothing_back() -> None:
    """D34: without delayed delivery all is dispatched when read; then buckets begin empty, and end clean."""
    subscription = Subscription()
    async with subscription.run("bucket"):
        subscription.publish(1, 30)
        await subscription.settle()
        assert subscription.names
    async with subscription.run("none"):
        assert isinstance(subscription.tracker, DisabledDelayedDeliveryTracker)
        assert subscription.unacked == set()
        subscription.publish(31, 40)
        assert subscription.dispatched == list(range(1, 41))
        await subscription.factory.wait_until_clean()
        assert stored(subscription) == []
    async with subscription.run("bucket"):
        assert subscription.count == 0
        subscription.publish(41, 60)
        assert await subscription.deliver(600) == list(range(41, 61))
    assert stored(subscription) == []


async def test_leftovers_are_recovered() -> None:
    """D34: snapshots that could not be deleted are recovered by the next buckets, except dispatched messages."""
    subscription = Subscription()
    async with subscription.run("bucket"):
        subscription.publish(1, 60)
        await subscription.settle()
        left = len(subscription.names)
    subscription.memory.faults.fail["delete"] = -1
    async with subscription.run("memory"):
        subscription.publish(61, 70)
        await subscription.deliver(200)
        await subscription.factory.wait_until_clean()
        statistics = subscription.factory.statistics()
        assert (statistics.cleaning, statistics.cleaned) == (1, 0)
        assert statistics.last_error is not None
    assert len(subscription.names) == left
    subscription.memory.faults.heal()
    async with subscription.run("bucket"):
        assert subscription.count == 50  # 1..20 are due, and were dispatched
        assert await subscription.deliver(700) == list(range(21, 71))
    assert sorted(subscription.dispatched) == list(range(1, 71))
    assert stored(subscription) == []


async def test_cleaning_fails_once() -> None:
    """D34: a snapshot that could not be deleted, and a name that could not be removed, are tried again."""
    subscription = Subscription()
    async with subscription.run("bucket"):
        subscription.publish(1, 30)
        await subscription.settle()
    subscription.memory.faults.fail["delete"] = 1
    subscription.properties.faults.fail["remove"] = 1
    async with subscription.run("memory"):
        await subscription.factory.wait_until_clean()
        assert len(subscription.names) == 2
        assert subscription.factory.statistics().cleaning == 1
        subscription.clock.advance(150)
        await subscription.factory.wait_until_clean()
        assert stored(subscription) == []
        assert subscription.factory.statistics().cleaning == 0


async def test_cleaning_fails_for_long() -> None:
    """D34: attempts are further and further apart, at most 30 s, and delay nothing."""
    subscription = Subscription()
    async with subscription.run("bucket"):
        subscription.publish(1, 30)
        await subscription.settle()
    faults = subscription.memory.faults
    faults.fail["delete"] = faults.fail["list"] = -1
    async with subscription.run("memory"):
        tries = []
        for _ in range(2_000):
            subscription.clock.advance(100)
            await subscription.factory.wait_until_clean()
            tries.append(faults.calls["list"])
        assert 10 < tries[-1] < 40
        assert tries[-1] - tries[-601] <= 6  # in the last minute
        assert await subscription.deliver(subscription.clock.now_ms()) == list(range(1, 31))
        faults.heal()
        subscription.clock.advance(31_000)
        await subscription.factory.wait_until_clean()
    assert stored(subscription) == []


async def test_snapshots_without_a_name_are_cleaned() -> None:
    """D34: orphans of a crash between a snapshot and its name are found in the storage's list and deleted too."""
    subscription = Subscription()
    async with subscription.run("bucket"):
        subscription.publish(1, 30)
        await subscription.settle()
    subscription.properties.held.clear()
    assert subscription.memory.snapshots
    async with subscription.run("memory"):
        pass
    assert stored(subscription) == []


async def test_cursors_that_are_cleaned_at_the_same_time_all_count() -> None:
    """The count of cleaned snapshots has those of every cursor, however their deletions overlap."""
    storage = MemorySnapshotStorage()
    async with DelayedDeliveryTrackerFactory(config_of("memory"), storage) as factory:
        both_may_list = storage.faults.hold("list")
        for name, count in (("one", 1), ("other", 3)):
            for number in range(count):
                await storage.create_bucket_snapshot(b"metadata", [b"segment"], f"key {number}", TOPIC, name)
            await factory.new_tracker(MemoryDelayedCursor(), topic_name=TOPIC, cursor_name=name)
        both_may_list.set()
        await factory.wait_until_clean()
        assert not storage.snapshots
        assert factory.statistics().cleaned == 4


async def test_what_is_cleaned_is_the_subscription_s_own() -> None:
    """Another subscription of the topic keeps its snapshots."""
    one, other = Subscription(), Subscription()
    other.memory = one.memory
    async with one.run("bucket"):
        one.publish(1, 30)
        await one.settle()
    names = dict(one.properties.held)
    async with other.factory_of("memory") as factory:
        await factory.new_tracker(other.cursor, topic_name=TOPIC, cursor_name="other")
        await factory.wait_until_clean()
    assert one.properties.held == names
    assert len(one.memory.snapshots) == len(one.names)


@pytest.mark.parametrize("kind", ["memory", "bucket"])
async def test_a_process_that_was_taken_over_deletes_nothing(kind: str) -> None:
    """On object storage, a process that has lost the cursor to another one leaves that one's snapshots alone."""
    store_of = pytest.importorskip("obstore.store").MemoryStore
    shared = store_of()
    async with await ObjectLogStore.open(shared) as first, await ObjectLogStore.open(shared) as second:
        old_cursor = await LogDelayedCursor.open(first)
        old = Subscription(lambda: LogSnapshotStorage(first), old_cursor)
        async with old.run("bucket"):
            old.publish(1, 30)
            await old.settle()
        names = sorted(await first.names())
        async with await LogDelayedCursor.open(second) as cursor:
            new = Subscription(lambda: LogSnapshotStorage(second), cursor)
            async with new.run("bucket", clean=False):
                assert new.count == 30 - 5  # the last ones were not sealed
                async with old.factory_of(kind) as factory:
                    tracker = await factory.new_tracker(old_cursor, **NAMES)
                    if isinstance(tracker, BucketDelayedDeliveryTracker):
                        await tracker.clear()
                    await factory.wait_until_clean()
                    if kind == "memory":
                        error = factory.statistics().last_error
                        assert isinstance(error, ExceptionGroup)
                        assert error.split(LogFencedError)[1] is None
                assert sorted(await first.names()) == names
                new.unacked = set(range(1, 26))
                assert await new.deliver(300) == list(range(1, 26))
        await old_cursor.aclose()
