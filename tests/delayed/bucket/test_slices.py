"""The work between calls is done in slices: their length, and what may happen between two of them."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pulsar_nack import Position
from pulsar_nack.delayed.bucket._snapshots import MAX_READS
from pulsar_nack.delayed.format import decode_metadata, encode_metadata
from pulsar_nack.errors import SnapshotFormatError

from .stage import Stage, positions

LONG = 20_000_000
"""Nanoseconds that a callback may work."""


@pytest.fixture
def longest(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Measure the work of each callback of the loop (ns), without the collector, whose pauses come from all tests."""
    work: list[int] = [0]
    run = asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        began = time.thread_time_ns()
        run(handle)
        work[0] = max(work[0], time.thread_time_ns() - began)

    monkeypatch.setattr(asyncio.Handle, "_run", measured)
    gc.disable()
    yield work
    gc.enable()


async def fill(stage: Stage, count: int, *, ledger: int = 50_000, scattered: bool = True) -> None:
    """Add messages, a thousand in each turn of the loop."""
    for at in range(0, count, 1_000):
        numbers = range(at, min(at + 1_000, count))
        entries = [number % ledger for number in numbers]
        times = [10**7 + (number * 7_919 % 1_000_003 if scattered else number) for number in numbers]
        assert stage.tracker.add_entries(1 + at // ledger, entries, times) == []
        await asyncio.sleep(0)


@pytest.mark.slow
@pytest.mark.parametrize("scattered", [False, True])
async def test_no_slice_is_long(longest: list[int], scattered: bool) -> None:
    """D32: while buckets are sealed, merged, recovered, loaded and taken out no callback works for over 20 ms."""
    stage = Stage(least=50_000, step=300_000, most_indexes=5_000, most_buckets=2)
    async with stage.run():
        await fill(stage, 200_000, scattered=scattered)
        await stage.idle()
        assert len(stage.buckets) == 2
        assert 0 < longest[0] < LONG
    await asyncio.sleep(0)
    longest[0] = 0  # the stage has checked everything at once
    async with stage.run():
        assert stage.count == 150_000
        stage.clock.set(10**7 + 10**6)
        taken = 0
        while stage.count:
            taken += len(stage.get(200))
            await asyncio.sleep(0)
        assert taken == 150_000
        assert 0 < longest[0] < LONG


async def test_bitmaps_of_many_ledgers_are_read_in_slices(longest: list[int]) -> None:
    """Buckets over 5 000 ledgers, all in one segment, are stored, recovered and merged without blocking the loop."""
    stage = Stage(least=5_000, step=300_000, most_indexes=5_000)
    async with stage.run():
        for ledger in range(10_001):
            stage.add(ledger, 7, 10**7 + ledger)
            if ledger % 100 == 0:
                await asyncio.sleep(0)
        await stage.idle()
        assert len(stage.buckets) == 2
        assert 0 < longest[0] < LONG
    await asyncio.sleep(0)
    longest[0] = 0
    async with stage.run(most_buckets=1):
        assert stage.count == 10_000
        await stage.idle()
        assert [list(bucket.counts) for bucket in stage.buckets] == [[5_000, 5_000]]
        assert 0 < longest[0] < LONG


async def test_others_have_their_turn_while_a_bucket_is_sealed() -> None:
    """D32: between two slices of a few hundred indexes the loop takes a turn."""
    async with Stage(least=20_000, step=300_000, most_indexes=5_000).run() as stage:
        await fill(stage, 20_000, ledger=20_000)
        stage.add(2, 0, 10**7)
        rounds = 0
        while not stage.buckets:
            rounds += 1
            await asyncio.sleep(0)
        assert rounds >= 20_000 // 256


async def slices(stage: Stage) -> AsyncIterator[int]:
    """Count the turns of the loop until all is idle."""
    idle = asyncio.create_task(stage.idle())
    turns = 0
    while not idle.done():
        yield turns
        turns += 1
        await asyncio.sleep(0)
    await idle


@asynccontextmanager
async def sealing(**settings: Any) -> AsyncIterator[Stage]:
    """Begin to seal 3 000 indexes of ledgers 1 to 30, one of ledger 31 stays."""
    async with Stage(least=3_000, step=10**6, most_indexes=1_000, **settings).run() as stage:
        for ledger in range(1, 31):
            stage.tracker.add_entries(
                ledger, range(100), [10**6 + ledger * 7 % 30 + 50 * entry for entry in range(100)]
            )
        stage.add(31, 0, 10**7)
        assert len(stage.tracker._index.sealing) == 1
        yield stage


@pytest.mark.parametrize("what", ["trim", "clear", "deliver"])
@pytest.mark.parametrize("turn", [0, 3, 7, 11, 14])
async def test_between_slices_of_a_seal(what: str, turn: int) -> None:
    """Whatever is acknowledged, cleared or delivered in the middle of a seal, the rest comes out once, in order."""
    async with sealing() as stage:
        left = [Position(ledger, entry) for ledger in range(1, 31) for entry in range(100)]
        found: list[Position] = []
        async for at in slices(stage):
            if at != turn:
                continue
            if what == "trim":
                await stage.mark_delete(15, 49)
                assert stage.tracker.trim() == 1_450
                left = [position for position in left if position > (15, 49)]
            elif what == "clear":
                await stage.tracker.clear()
                left = []
            else:
                stage.clock.set(10**6 + 2_000)
                found += stage.get(10_000)
        if what == "clear":
            assert (stage.count, stage.buckets, stage.stored) == (0, [], [])
            assert stage.tracker.buffer_memory_usage == 0
        stage.clock.set(2 * 10**6)
        found += await stage.drain()
        assert sorted(found) == left
        times = [10**6 + ledger * 7 % 30 + 50 * entry for ledger, entry in found]
        assert times == sorted(times)


@pytest.mark.parametrize("turn", [0, 3, 7, 11, 14])
async def test_close_between_slices_of_a_seal(turn: int) -> None:
    """A tracker that is closed in the middle of a seal leaves a complete snapshot or none, and no lasting orphan."""
    stage = Stage(least=3_000, step=10**6, most_indexes=1_000)
    async with stage.run():
        await fill(stage, 3_000, ledger=3_000)
        stage.add(31, 0, 10**7)
        for _ in range(turn):
            await asyncio.sleep(0)
    async with stage.run():
        await stage.idle()
        assert stage.count in {0, 3_000}
        assert len(stage.names) == len(stage.storage.snapshots) == (stage.count > 0)


async def three_buckets(*, in_order: bool, count: int = 2_000) -> Stage:
    """Store three buckets of many indexes, whose times follow each other or overlap."""
    stage = Stage(least=count, step=10**6, most_indexes=count // 4, prefetch=0)
    async with stage.run():
        for ledger in (1, 2, 3):
            first = 10**6 + ledger * 10**4 * in_order
            stage.tracker.add_entries(ledger, range(count), [first + 2 * entry for entry in range(count)])
        stage.add(4, 0, 10**7)
        await stage.idle()
        assert len(stage.buckets) == 3
    return stage


async def test_segments_are_copied() -> None:
    """Buckets that follow each other in time are merged segment by segment, without decoding."""
    stage = await three_buckets(in_order=True)
    before = [entry for entries in stage.storage.snapshots.values() for entry in entries[1:]]
    async with stage.run(most_buckets=1):
        await stage.idle()
        ((_, *after),) = stage.storage.snapshots.values()
        assert after == before
        assert stage.count == 6_000
        assert [bucket.size for bucket in stage.buckets] == [6_000]
        stage.clock.set(10**7)
        assert await stage.drain() == [Position(ledger, entry) for ledger in (1, 2, 3) for entry in range(2_000)]


async def test_copied_segments_are_named_in_the_newer_form() -> None:
    """D29: copies from snapshots without min_schedule_timestamp have one, which Pulsar now requires."""
    stage = await three_buckets(in_order=True)
    for snapshot_id, (metadata, *segments) in stage.storage.snapshots.items():
        rows = [row._replace(min_at=None) for row in decode_metadata(metadata)]
        stage.storage.snapshots[snapshot_id] = encode_metadata(rows), *segments
    async with stage.run(most_buckets=1):
        await stage.idle()
        ((metadata, *_),) = stage.storage.snapshots.values()
        rows = decode_metadata(metadata)
        before = [0, *(row.max_at for row in rows[:-1])]
        assert all(row.min_at is not None and at <= row.min_at for row, at in zip(rows, before, strict=True))
        stage.clock.set(10**7)
        assert await stage.drain() == [Position(ledger, entry) for ledger in (1, 2, 3) for entry in range(2_000)]


async def test_overlapping_segments_are_cut_again() -> None:
    """Other merged segments have the earliest indexes of all sources, and are full."""
    stage = await three_buckets(in_order=False)
    async with stage.run(most_buckets=1):
        await stage.idle()
        (bucket,) = stage.buckets
        assert list(bucket.counts) == [500] * 12
        stage.clock.set(10**7)
        assert await stage.drain() == [Position(ledger, entry) for entry in range(2_000) for ledger in (1, 2, 3)]


async def test_segments_of_which_something_went_are_not_copied() -> None:
    """A segment with acknowledged or delivered messages is rebuilt without them."""
    stage = await three_buckets(in_order=True)
    async with stage.run():
        await stage.mark_delete(1, 699)
    async with stage.run(most_buckets=1):
        await stage.idle()
        (bucket,) = stage.buckets
        assert sum(bucket.counts) == stage.count == 5_300
        assert list(bucket.counts) == [300] + [500] * 10


@pytest.mark.parametrize("what", ["trim", "clear", "deliver"])
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("turn", [4, 10, 25, 40])
async def test_between_slices_of_a_merge(what: str, turn: int, in_order: bool) -> None:
    """Whatever is acknowledged, cleared or delivered in the middle of merges, the rest comes out once."""
    stage = await three_buckets(in_order=in_order)
    gone: set[Position] = set()
    async with stage.run(most_buckets=1):
        async for at in slices(stage):
            if at != turn:
                continue
            if what == "trim":
                await stage.mark_delete(2, 499)
                stage.tracker.trim()
                gone = {Position(1, entry) for entry in range(2_000)} | {Position(2, entry) for entry in range(500)}
            elif what == "clear":
                await stage.tracker.clear()
            else:
                stage.clock.set(10**6 + 1_000 + 10**4 * in_order)
                gone = set(stage.get(10_000))
        stage.clock.set(10**7)
        found = await stage.drain()
        everything = {Position(ledger, entry) for ledger in (1, 2, 3) for entry in range(2_000)}
        assert len(found) == len(set(found))
        assert set(found) == (set() if what == "clear" else everything - gone)
        await stage.idle()
        assert stage.stored == []


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("turn", [4, 10, 25, 40])
async def test_close_between_slices_of_a_merge(turn: int, in_order: bool) -> None:
    """A tracker that is closed in the middle of merges leaves all stored messages, once."""
    stage = await three_buckets(in_order=in_order)
    async with stage.run(most_buckets=1):
        for _ in range(turn):
            await asyncio.sleep(0)
    async with stage.run():
        await stage.idle()
        assert stage.count == 6_000
        assert len(stage.names) == len(stage.storage.snapshots)
        stage.clock.set(10**7)
        assert len(set(await stage.drain())) == 6_000


async def test_a_segment_that_cannot_be_copied_is_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that the storage calls damaged is merged from the metadata: nothing is lost, some messages are late."""
    stage = await three_buckets(in_order=True)
    (damaged, *_) = stage.storage.snapshots
    get = stage.storage.get_bucket_snapshot_segment

    async def fail(snapshot_id: int, first: int, last: int) -> Any:
        if (snapshot_id, first) == (damaged, 2):
            raise SnapshotFormatError("snapshot segment", "damaged")
        return await get(snapshot_id, first, last)

    monkeypatch.setattr(stage.storage, "get_bucket_snapshot_segment", fail)
    async with stage.run(most_buckets=1):
        await stage.idle()
        assert len(stage.buckets) == 1
        assert stage.count == 6_000
        stage.clock.set(10**7)
        assert await stage.drain() == [Position(ledger, entry) for ledger in (1, 2, 3) for entry in range(2_000)]


# -- recovery --------------------------------------------------------------------------------------------------------


async def many_buckets(count: int) -> Stage:
    """Store ``count`` buckets of five."""
    stage = Stage()
    async with stage.run():
        await stage.fill(1, 5 * count + 1)
        await stage.idle()
        assert len(stage.buckets) == count
    return stage


async def test_some_snapshots_are_read_at_a_time() -> None:
    """Recovery reads several snapshots at the same time, and no more than the limit."""
    stage = await many_buckets(20)
    gate = stage.storage.faults.hold("metadata")
    task = asyncio.create_task(stage.run().__aenter__())
    await stage.idle_except("metadata")
    assert stage.storage.faults.calls["metadata"] == MAX_READS
    gate.set()
    await task
    assert stage.count == 100
    assert stage.storage.faults.calls["metadata"] == 20
    stage.check()
    await stage.tracker.aclose()


async def test_one_that_fails_does_not_hold_up_the_others() -> None:
    """Unreadable ones are tried again later; all others are there at once, in order."""
    stage = await many_buckets(20)
    stage.storage.faults.fail["metadata"] = 3
    async with stage.run():
        assert stage.count == 85
        assert stage.tracker.statistics().is_recovering
        stage.clock.advance(1)
        for _ in range(20):
            stage.clock.advance(200)
            await stage.idle()
        assert not stage.tracker.statistics().is_recovering


async def test_recovery_that_is_given_up() -> None:
    """Closing, or clearing, while snapshots are read ends the reading; no task is left."""
    stage = await many_buckets(20)
    gate = stage.storage.faults.hold("metadata")
    async with stage.run(recovery_timeout=0.01):
        assert stage.tracker.statistics().is_recovering
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
    async with stage.run(recovery_timeout=0.01):
        await stage.tracker.clear()
        gate.set()
        await stage.idle()
        assert (stage.count, stage.stored) == (0, [])


async def test_a_damaged_segment_comes_at_its_latest_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that the storage calls damaged is derived from the metadata, like one with bad bytes."""
    stage = await many_buckets(1)

    async def fail(*_arguments: int) -> Any:
        raise SnapshotFormatError("snapshot segment", "damaged")

    monkeypatch.setattr(stage.storage, "get_bucket_snapshot_segment", fail)
    async with stage.run():
        assert stage.count == 5
        stage.clock.set(50)
        assert await stage.drain() == positions(1, 2, 3, 4, 5)


# -- backlogs --------------------------------------------------------------------------------------------------------


async def test_a_backlog_is_not_loaded_at_once() -> None:
    """Of many due buckets only the next ones are in memory, and all come out in order of time."""
    async with Stage(least=10, step=10**6, most_indexes=5, prefetch=0.1).run() as stage:
        for ledger in range(1, 41):
            stage.tracker.add_entries(ledger, range(10), [ledger * 1_000 + entry for entry in range(10)])
        stage.add(41, 0, 10**6)
        await stage.idle()
        assert len(stage.buckets) == 40
        stage.clock.set(100_000)
        await stage.idle()
        assert sum(bucket.loaded for bucket in stage.buckets) == 5
        assert stage.storage.faults.calls["segment"] == 1
        stage.clock.advance(0)
        assert len(stage.woken) == 1
        stage.clock.advance(10_000)
        await stage.idle()
        assert (len(stage.woken), stage.clock.alarms) == (1, 0)
        assert stage.storage.faults.calls["segment"] == 1
        found: list[Position] = []
        while len(found) < 400:
            assert stage.has()
            assert sum(bucket.loaded for bucket in stage.buckets) <= 10
            found += stage.get(3)
            await stage.idle()
        assert found == [Position(ledger, entry) for ledger in range(1, 41) for entry in range(10)]


async def test_some_segments_are_loaded_at_a_time() -> None:
    """Of many buckets needed at once a few are loaded at the same time; late ones make room for more."""
    async with Stage(least=10, step=10**6, most_indexes=5, prefetch=1).run() as stage:
        for ledger in range(1, 41):
            stage.tracker.add_entries(ledger, range(10), [10_000 + entry for entry in range(10)])
        stage.add(41, 0, 10**6)
        await stage.idle()
        gate = stage.storage.faults.hold("segment")
        stage.clock.set(10_005)
        await stage.idle_except("segment")
        assert stage.storage.faults.calls["segment"] == MAX_READS
        stage.clock.advance(99)
        await stage.idle_except("segment")
        assert stage.storage.faults.calls["segment"] == MAX_READS
        stage.clock.advance(1)
        await stage.idle_except("segment")
        assert stage.storage.faults.calls["segment"] == 3 * MAX_READS
        gate.set()
        await stage.idle()
        assert len(set(await stage.drain())) == 400
        assert stage.stored == []
