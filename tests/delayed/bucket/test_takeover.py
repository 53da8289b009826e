"""On object storage a second machine takes the tracker over while the first one still runs."""

from __future__ import annotations

import pytest
from obstore.store import MemoryStore

from pulsar_nack import Position
from pulsar_nack.delayed import (
    LogBucketTracker,
    LogDelayedCursor,
    LogSnapshotStorage,
    SharedDelayedIndex,
    SupportsForgetting,
    delete_bucket_snapshots,
)
from pulsar_nack.errors import LogFencedError
from pulsar_nack.ledger import ObjectLogStore
from pulsar_nack.testing import ManualClock

from .stage import config_of, drain, positions


async def test_the_first_one_takes_nothing_from_the_second() -> None:
    """Whatever the first one then takes out, seals, merges or clears, all messages stay with the second."""
    objects, clock, late = MemoryStore(), ManualClock(0), ManualClock(0)
    config = config_of(prefetch=0, most_buckets=3)
    async with await ObjectLogStore.open(objects) as store, await ObjectLogStore.open(objects) as other_store:
        async with await LogBucketTracker.open_store(store, config, clock=clock) as first:
            for i in range(1, 12):
                assert first.add_message(i, i, 10 * i)
            await first.wait_until_idle()
            async with await LogBucketTracker.open_store(other_store, config, clock=late) as second:
                assert second.number_of_delayed_messages == 10
                for i in range(12, 40):
                    assert first.add_message(i, i, 10 * i)
                await first.wait_until_idle()
                clock.set(100)
                assert await drain(first) == positions(*range(1, 11))
                with pytest.raises(LogFencedError):
                    await first.cursor.mark_delete(Position(10, 10))
                await first.clear()
                await first.wait_until_idle()
                assert isinstance(first.statistics().last_error, LogFencedError)
                assert first.cursor.mark_delete_position == Position(0, -1)
                await second.cursor.mark_delete(Position(1, 1))
                second.trim()
                late.set(100)
                assert await drain(second) == positions(*range(2, 11))
                assert second.statistics().operations["load", "failed"] == 0
        async with await LogBucketTracker.open_store(store, config, clock=late) as third:
            await third.wait_until_idle()
            assert third.cursor.mark_delete_position == Position(1, 1)
            assert third.number_of_delayed_messages == 0
        assert [name for name in await store.names() if name.startswith("snapshot-")] == []


async def test_the_name_goes_first() -> None:
    """A snapshot whose name could not be removed from the cursor is not deleted, and tried again."""
    async with await ObjectLogStore.open(MemoryStore()) as store, await LogDelayedCursor.open(store) as cursor:
        assert isinstance(cursor, SupportsForgetting)
        async with LogSnapshotStorage(store) as storage:
            snapshot_id = await storage.create_bucket_snapshot(b"m", [b"s"], "key", "", "")
            key = "#pulsar.internal.delayed.bucket_1_1"
            await cursor.put_property(key, str(snapshot_id))
            async with await LogDelayedCursor.open(store) as taken:
                with pytest.raises(ExceptionGroup) as caught:
                    await delete_bucket_snapshots(storage, cursor)
                assert isinstance(caught.value.exceptions[0], LogFencedError)
                assert await storage.get_bucket_snapshot_metadata(snapshot_id) == b"m"
                assert taken.properties() == {key: str(snapshot_id)}
                assert await delete_bucket_snapshots(storage, taken) == 1
                assert taken.properties() == {}


async def test_a_shared_index_is_protected_too() -> None:
    """Shared snapshots are deleted under the protection of the one cursor that names them."""
    objects, clock = MemoryStore(), ManualClock(0)
    async with (
        await ObjectLogStore.open(objects) as store,
        await LogDelayedCursor.open(store) as cursor,
        LogSnapshotStorage(store) as storage,
        await SharedDelayedIndex.open(storage, cursor, config_of(prefetch=0), clock=clock) as shared,
    ):
        one = shared.subscribe("one", lambda: Position(0, -1))
        for i in range(1, 7):
            assert one.add_message(i, i, 10 * i)
        await shared.tracker.wait_until_idle()
        async with await LogDelayedCursor.open(store) as taken:
            await shared.tracker.clear()
            await shared.tracker.wait_until_idle()
            (snapshot_id,) = map(int, taken.properties().values())
            assert await storage.get_bucket_snapshot_metadata(snapshot_id)
            assert isinstance(shared.tracker.statistics().last_error, LogFencedError)
