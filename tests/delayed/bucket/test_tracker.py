"""The bucket tracker on a manual clock and a storage in memory: the numbered cases."""

from __future__ import annotations

import asyncio
import time

import pytest

from pulsar_nack import BucketDelayedDeliveryTracker, InvalidArgumentError, Position
from pulsar_nack.clock import LoopClock
from pulsar_nack.testing import virtual_time
from tests.tiers import size

from . import stage as stages
from .stage import Stage, config_of, positions

pytestmark = pytest.mark.usefixtures("home")


async def test_an_entry_that_no_bitmap_can_hold() -> None:
    """The entry is refused by name, and never held."""
    async with Stage().run() as stage:
        with pytest.raises(InvalidArgumentError, match="entry_id"):
            stage.add(1, 2**32, 10)
        assert not stage.tracker.contains_message(1, 2**32)


async def test_expiry_comes_before_already_tracked() -> None:
    """D16: a due message is refused although it is held, and then no longer held."""
    async with Stage(1000).run() as stage:
        assert stage.add(1, 1, 2000)
        stage.clock.set(2500)
        assert not stage.add(1, 1, 2000)
        assert stage.count == 0
        assert not stage.tracker.contains_message(1, 1)


async def test_recovery_leaves_what_is_due_to_dispatch() -> None:
    """D18: due indexes are dropped, inside the first loaded segment too; unsealed ones are not there."""
    stage = Stage(tick=100_000)
    async with stage.run():
        await stage.fill(1, 100)
        stage.clock.set(10)
        assert stage.get(10) == positions(1)
        assert stage.add(101, 101, 1010)
        await stage.idle()
        assert stage.count == 100
    stage.clock.set(300)
    async with stage.run(tick=1000):
        assert not stage.tracker.contains_message(101, 101)
        assert stage.count == 70
        for due in range(1, 31):
            assert not stage.tracker.contains_message(due, due)
            assert not stage.add(due, due, 10 * due)
        assert stage.tracker.contains_message(31, 31)
        stage.clock.set(1000)
        assert await stage.drain() == positions(*range(31, 101))
        await stage.idle()
    assert stage.names == {}
    assert stage.storage.snapshots == {}


async def test_merging_keeps_all() -> None:
    """D19: with few buckets allowed all indexes are there, after a restart too, once and in order of time."""
    stage = Stage(most_buckets=10)
    async with stage.run():
        await stage.fill(1, 110, wait=True)
        assert stage.count == 110
        assert len(stage.buckets) <= 10
        assert len(stage.names) == len(stage.storage.snapshots) == len(stage.buckets)
    async with stage.run():
        await stage.fill(1, 110)
        await stage.idle()
        assert stage.count == 110
        stage.clock.set(1100)
        assert await stage.drain() == positions(*range(1, 111))
        assert stage.count == 0


async def test_merging_loses_nothing_that_was_sealed() -> None:
    """D20: after merges and a restart all sealed messages are there."""
    stage = Stage(most_buckets=10)
    async with stage.run():
        await stage.fill(1, 56)
        await stage.idle()
        assert len(stage.buckets) == 10
    async with stage.run():
        assert stage.count == 55
        assert all(stage.tracker.contains_message(i, i) for i in range(1, 56))
        assert not stage.tracker.contains_message(56, 56)


async def test_segments_by_count() -> None:
    """D23: each bucket of 20 has four segments of 5."""
    async with Stage(least=20, step=100_000, most_indexes=5).run() as stage:
        await stage.fill(1, 101)
        await stage.idle()
        assert [list(bucket.counts) for bucket in stage.buckets] == [[5, 5, 5, 5]] * 5
        assert [len(entries) for entries in stage.storage.snapshots.values()] == [5] * 5


async def test_clear_leaves_nothing() -> None:
    """D24: after a clear there is no bucket, no memory, no message, no snapshot and no property."""
    async with Stage(tick=100_000, least=1000, step=100).run() as stage:
        for i in range(1001):
            assert stage.add(i, i, 200_000 + i)
        await stage.idle()
        assert len(stage.buckets) == 1
        await stage.tracker.clear()
        assert stage.buckets == []
        assert stage.tracker.buffer_memory_usage == 0
        assert stage.count == 0
        assert stage.storage.snapshots == {}
        assert stage.cursor.held == {"other": "1"}
        assert stage.add(1, 1, 10**6)
        assert stage.count == 1


async def test_trim_by_mark_delete() -> None:
    """D28: what the cursor has passed is dropped; an overlapping bucket is kept."""
    async with Stage().run() as stage:
        await stage.fill(1, 101)
        await stage.idle()
        assert len(stage.buckets) == 20
        await stage.mark_delete(33, -1)
        assert stage.tracker.trim() == 32
        await stage.idle()
        assert stage.count == 101 - 32
        assert len(stage.buckets) == len(stage.storage.snapshots) == len(stage.names) == 14
        assert stage.buckets[0].start == 31
        stage.clock.set(2000)
        assert await stage.drain() == positions(*range(33, 102))


async def test_what_was_passed_never_comes_out() -> None:
    """A trimmed index is skipped wherever it lies between others, in memory and in a segment."""
    async with Stage(step=1000, prefetch=0).run() as stage:
        for ledger, at in ((5, 10), (1, 20), (6, 30), (7, 40), (2, 50), (9, 60)):
            assert stage.add(ledger, ledger, at)
        await stage.mark_delete(4, 0)
        assert stage.tracker.trim() == 2
        stage.clock.set(60)
        assert stage.get(100) == positions(5, 6, 7, 9)
        for ledger, at in ((15, 1010), (11, 1020), (16, 1030), (12, 1040), (17, 1050), (19, 1060)):
            assert stage.add(ledger, ledger, at)
        await stage.idle()
        await stage.mark_delete(13, 0)
        assert stage.tracker.trim() == 2
        stage.clock.set(1060)
        assert await stage.drain() == positions(15, 16, 17, 19)


async def test_what_went_while_it_was_stored_is_not_kept() -> None:
    """Segments used up when their snapshot is stored at last are skipped, and the others stay on storage."""
    async with Stage(prefetch=0).run() as stage:
        gate = stage.storage.faults.hold("create")
        await stage.fill(1, 6)
        await stage.idle_except("create")
        stage.clock.set(30)
        assert stage.get(100) == positions(1, 2, 3)
        gate.set()
        await stage.idle()
        (bucket,) = stage.buckets
        assert (bucket.next, bucket.loaded, bucket.size) == (3, 0, 2)
        stage.clock.set(60)
        assert await stage.drain() == positions(4, 5, 6)


async def test_clear_while_a_snapshot_is_made() -> None:
    """A clear before the snapshot of a sealed bucket is created leaves nothing, and is no failure."""
    async with Stage().run() as stage:
        await stage.fill(1, 6)
        await stage.tracker.clear()
        await stage.idle()
        assert stage.stored == []
        assert stage.tracker.statistics().operations.get(("create", "failed"), 0) == 0
        assert stage.storage.faults.calls["create"] == 0


async def test_segments_are_loaded_ahead() -> None:
    """A segment is in memory before its first message is due, but not earlier than the prefetch."""
    async with Stage(step=1000, prefetch=0.2).run() as stage:
        for i in range(1, 6):
            assert stage.add(i, i, 1_000 * i)
        stage.add(6, 6, 10**6)
        await stage.idle()
        assert stage.tracker.statistics().loaded == 1
        for second in range(1, 6):
            stage.clock.set(1_000 * second - 201)
            await stage.idle()
            assert stage.storage.faults.calls["segment"] == second - 1
            stage.clock.advance(1)
            await stage.idle()
            assert stage.storage.faults.calls["segment"] == second
            stage.clock.set(1_000 * second)
            assert stage.woken == [1_000 * each for each in range(1, second + 1)]
            assert stage.get(9) == positions(second)


async def test_one_segment_at_a_time() -> None:
    """Of many due segments only the present and the next one are in memory."""
    async with Stage(least=100, step=1_000, most_indexes=10, prefetch=0).run() as stage:
        await stage.fill(1, 101)
        await stage.idle()
        stage.clock.set(1000)
        found: list[Position] = []
        while len(found) < 100:
            assert sum(bucket.loaded for bucket in stage.buckets) <= 20
            found += stage.get(3)
            await stage.idle()
        assert found == positions(*range(1, 101))


async def test_trim_is_noticed() -> None:
    """D28: without a call too, when messages are taken out."""
    async with Stage().run() as stage:
        await stage.fill(1, 50)
        await stage.mark_delete(31, 31)
        stage.clock.set(320)
        assert await stage.drain() == positions(32)
        assert stage.count == 18


async def test_last_of_a_segment_is_passed() -> None:
    """D30: when the last index of a segment is below the cursor's ledger the next one is still loaded."""
    async with Stage(prefetch=0).run() as stage:
        await stage.fill(1, 6)
        await stage.idle()
        stage.clock.set(10)
        await stage.idle()
        await stage.mark_delete(4, -1)
        stage.clock.set(30)
        assert await stage.drain() == []
        stage.clock.set(60)
        assert await stage.drain() == positions(4, 5, 6)
        assert stage.storage.snapshots == {}


async def test_one_ledger_is_sealed_by_size() -> None:
    """D31: one endless ledger is sealed by size; the buckets have different names and all are recovered."""
    count = size(200_000, fast=20_000)
    stage = Stage(least=count // 10, step=300_000, most_indexes=count // 40)
    async with stage.run():
        for i in range(count):
            stage.add(7, i, 1_000_000 + i)
        await stage.idle()
        assert len(stage.buckets) == len(stage.names) == 4
        assert stage.tracker.statistics().unsealed == count // 5
        assert stage.tracker.statistics().loaded == count // 5
    async with stage.run():
        assert stage.count == count // 5 * 4


async def test_one_ledger_is_sealed_by_time() -> None:
    """D31: a bucket that has enough is sealed when it is old."""
    async with Stage(max_unsealed_age=60, max_indexes_per_bucket=1000).run() as stage:
        for i in range(10):
            stage.add(7, i, 10**6)
        await stage.idle()
        assert stage.buckets == []
        stage.clock.set(60_000)
        stage.add(7, 10, 10**6)
        await stage.idle()
        assert [bucket.size for bucket in stage.buckets] == [10]


@pytest.mark.parametrize("in_bulk", [False, True])
async def test_sealed_by_time_though_nothing_is_added(in_bulk: bool) -> None:
    """D31: a bucket with enough indexes is sealed when it is old although nothing is added; a small one waits."""
    async with Stage(max_unsealed_age=60).run() as stage:

        def add(first: int, end: int) -> None:
            if in_bulk:
                stage.tracker.add_messages(7, range(first, end), 10**9)
            for entry in () if in_bulk else range(first, end):
                stage.add(7, entry, 10**9)

        async def sizes_after(passed: int) -> list[int]:
            stage.clock.advance(passed)
            await stage.idle()
            return [bucket.size for bucket in stage.buckets]

        add(0, 4)
        assert await sizes_after(10**6) == []
        add(4, 5)
        assert await sizes_after(0) == [5]
        add(5, 11)
        assert await sizes_after(59_999) == [5]
        assert await sizes_after(1) == [5, 6]
        assert stage.woken == []


@virtual_time
async def test_wakes_on_the_loop() -> None:
    """On an event loop the dispatcher is called at the exact ms, also for messages loaded from storage first."""
    home, woken = stages.new_home(), list[int]()
    clock = LoopClock()
    async with (
        home,
        await BucketDelayedDeliveryTracker.open(
            home.storage, home.cursor, config_of(step=1000), clock=clock, on_due=lambda: woken.append(clock.now_ms())
        ) as tracker,
    ):
        for i in range(1, 7):
            tracker.add_message(i, i, 10_000 * i)
        for i in range(1, 7):
            await asyncio.sleep(10)
            assert tracker.get_scheduled_messages(10) == positions(i)
        await asyncio.sleep(100)
    assert woken == [10_000 * i for i in range(1, 7)]
    assert home.storage.snapshots == {}


async def test_the_loop_is_not_blocked() -> None:
    """D32: while 50 000 indexes are sealed a timer of 5 ms keeps running, and no turn of the loop works for long."""
    count = size(50_000, fast=20_000)
    async with Stage(least=count, step=300_000, most_indexes=count // 10).run() as stage:
        for i in range(count):
            stage.add(1, i, 10**7 + i * 31 % 1_000_003)
        longest, ticks = 0.0, 0
        stage.add(2, 0, 10**7)
        while stage.buckets == []:
            before = time.thread_time()
            await asyncio.sleep(0.005)
            longest, ticks = max(longest, time.thread_time() - before), ticks + 1
        assert ticks > 2
        assert longest < 0.2
