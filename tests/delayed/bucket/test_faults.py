"""Storage that fails, is slow, or answers late; and leftovers of a crash."""

from __future__ import annotations

import asyncio

import pytest

from pulsar_nack import Position
from pulsar_nack.delayed.format import SegmentRow, decode_metadata, encode_indexes, encode_metadata
from pulsar_nack.errors import InjectedError
from pulsar_nack.index import PositionSet

from .stage import Stage, positions

pytestmark = pytest.mark.usefixtures("home")


async def test_one_failure_of_each() -> None:
    """D21: one failure of each operation does not change the output: all messages, once, in order of time."""
    stage = Stage(most_buckets=10)
    for name in ("create", "metadata", "segment", "delete"):
        stage.storage.faults.fail[name] = 1
    stage.cursor.faults.fail["put"] = stage.cursor.faults.fail["remove"] = 1
    async with stage.run():
        await stage.fill(1, 110, wait=True, base=100_000)
        for _ in range(20):
            stage.clock.advance(1_000)
            await stage.idle()
        assert stage.count == 110
        assert len(stage.buckets) == len(stage.names) == len(stage.storage.snapshots) == 10
        counts = stage.tracker.statistics().operations
        assert all(counts[kind, "failed"] for kind in ("create", "merge", "delete"))
        assert isinstance(stage.tracker.statistics().last_error, InjectedError)
    stage.storage.faults.fail["metadata"] = stage.storage.faults.fail["segment"] = 1
    async with stage.run():
        assert stage.tracker.statistics().is_recovering
        await stage.fill(1, 110, base=100_000)
        assert stage.count == 110
        stage.clock.set(101_100)
        found = await stage.drain()
        while stage.count:
            stage.clock.advance(200)
            found += await stage.drain()
        assert found == positions(*range(1, 111))
        assert stage.tracker.statistics().operations["load", "failed"] == 1


async def test_reads_that_fail_for_a_while() -> None:
    """D21: four failures of a read: no message of that bucket comes, retries back off, then all come."""
    async with Stage(prefetch=0).run() as stage:
        await stage.fill(1, 5)
        assert stage.add(6, 6, 10_000)
        await stage.idle()
        stage.storage.faults.fail["segment"] = 4
        stage.clock.set(50)
        assert stage.get(10) == []
        await stage.idle()
        tried = []
        for _ in range(1_900):
            assert stage.has()
            assert stage.get(10) == []
            stage.clock.advance(1)
            await stage.idle()
            tried.append(stage.storage.faults.calls["segment"])
            if tried[-1] == 5:
                break
        waits = [tried.count(number) for number in (1, 2, 3, 4)]
        for wait, longest in zip(waits, (100, 200, 400, 800), strict=True):
            assert longest / 2 - 2 <= wait <= longest + 2
        woken = len(stage.woken)
        stage.clock.advance(0)
        assert len(stage.woken) == woken + 1
        assert await stage.drain() == positions(1, 2, 3, 4, 5)


async def test_others_go_on_while_one_bucket_fails() -> None:
    """D21: a bucket that cannot be read does not delay messages in memory or in other buckets."""
    async with Stage(prefetch=0).run() as stage:
        await stage.fill(1, 11)
        await stage.idle()
        broken = stage.buckets[0]
        kept = stage.storage.snapshots.pop(broken.named.snapshot_id)
        stage.clock.set(110)
        assert await stage.drain() == []
        stage.clock.advance(1_000)
        assert await stage.drain() == positions(*range(6, 12))
        assert stage.buckets == [broken]
        stage.storage.snapshots[broken.named.snapshot_id] = kept
        stage.clock.advance(60_000)
        await stage.idle()
        assert await stage.drain() == positions(*range(1, 6))


async def test_slow_reads_are_waited_for_a_while_only() -> None:
    """Order is kept while a segment is being loaded, but not for longer than a second."""
    async with Stage(prefetch=0).run() as stage:
        await stage.fill(1, 6)
        await stage.idle()
        gate = stage.storage.faults.hold("segment")
        stage.clock.set(60)
        assert stage.get(10) == []
        await stage.idle_except("segment")
        assert stage.has()
        stage.clock.set(1_059)
        assert stage.get(10) == []
        woken = len(stage.woken)
        stage.clock.set(1_061)
        assert len(stage.woken) == woken + 1
        assert stage.get(10) == positions(6)
        gate.set()
        await stage.idle()
        assert await stage.drain() == positions(1, 2, 3, 4, 5)


async def test_creation_that_always_fails() -> None:
    """D22: without storage all messages stay in memory, are delivered from there, and are not lost."""
    async with Stage().run() as stage:
        stage.storage.faults.fail["create"] = -1
        await stage.fill(1, 6)
        await stage.idle()
        assert stage.buckets == []
        stage.clock.set(50)
        await stage.idle()
        assert stage.count == 6
        assert stage.get(5) == positions(1, 2, 3, 4, 5)
        assert stage.stored == []
        stage.clock.set(60)
        assert await stage.drain() == positions(6)
        assert stage.tracker.statistics().loaded == 0


async def test_creation_backs_off() -> None:
    """A creation that fails is tried again, less and less often, and works in the end."""
    async with Stage().run() as stage:
        stage.storage.faults.fail["create"] = -1
        await stage.fill(1, 6, base=10**6)
        for _ in range(120):
            stage.clock.advance(1_000)
            await stage.idle()
        assert 10 <= stage.storage.faults.calls["create"] <= 16
        counts = stage.tracker.statistics().operations
        assert counts["create", "failed"] == counts["create", "all"] == stage.storage.faults.calls["create"]
        stage.storage.faults.fail["create"] = 0
        stage.clock.advance(30_000)
        await stage.idle()
        assert [bucket.size for bucket in stage.buckets] == [5]


async def test_pauses_while_storage_takes_nothing() -> None:
    """D22: above the limit of unstored messages deliveries pause, until storage answers."""
    async with Stage(max_unsealed_indexes=20).run() as stage:
        stage.storage.faults.fail["create"] = -1
        await stage.fill(1001, 1020, wait=True)
        assert not stage.tracker.should_pause_all_deliveries()
        await stage.fill(1021, 1021)
        assert stage.tracker.should_pause_all_deliveries()
        stage.storage.faults.fail["create"] = 0
        for _ in range(4):
            stage.clock.advance(1_000)
            await stage.idle()
        assert not stage.tracker.should_pause_all_deliveries()
        assert len(stage.buckets) == 4
        assert stage.count == 21
        assert len(stage.woken) == 1


@pytest.mark.parametrize("least", [8, 50])
async def test_a_bound_below_the_size_of_a_bucket(least: int) -> None:
    """D22: deliveries continue while storage answers, also if a bucket would be larger than the limit."""
    async with Stage(least=least, max_unsealed_indexes=10).run() as stage:
        for entry in range(100):
            stage.add(1, entry, 10**6)
            await stage.idle()
            assert not stage.tracker.should_pause_all_deliveries()
        assert stage.tracker.statistics().unsealed <= 10


async def test_a_merge_that_cannot_be_written() -> None:
    """D26: the sources stay, delivery continues, and the merge is counted as failed."""
    stage = Stage(prefetch=0)
    async with stage.run():
        await stage.fill(1, 16)
        await stage.idle()
        assert len(stage.buckets) == 3
    stage.storage.faults.fail["create"] = -1
    async with stage.run(most_buckets=1):
        await stage.idle()
        counts = stage.tracker.statistics().operations
        assert counts["merge", "failed"] == counts["merge", "all"] == 1
        assert counts.get(("merge", "succeed"), 0) == 0
        assert len(stage.buckets) == len(stage.names) == 3
        stage.clock.set(150)
        assert await stage.drain() == positions(*range(1, 16))
        await stage.idle()
        assert stage.stored == []


async def test_a_merge_that_never_works_keeps_no_others_from_it() -> None:
    """A bucket whose snapshot is damaged throughout stays; the others are merged to about the maximum."""
    stage = Stage(prefetch=0, most_buckets=4)
    async with stage.run():
        await stage.fill(1, 21, base=1_000_000)
        await stage.idle()
        assert len(stage.buckets) == 4
        damaged = stage.buckets[1]
        entries = stage.storage.snapshots[damaged.named.snapshot_id]
        stage.storage.snapshots[damaged.named.snapshot_id] = (b"\xff",) * len(entries)
        for ten in range(4):
            await stage.fill(22 + 10 * ten, 31 + 10 * ten, base=1_000_000)
            await stage.idle()
            stage.clock.advance(1_000)
            await stage.idle()
        assert damaged in stage.buckets
        assert len(stage.buckets) <= 7
        assert stage.count == 61


async def fill_and_clear(stage: Stage, name: str) -> None:
    """Clear a tracker while the snapshot of its only bucket is being created (create) or named (put)."""
    faults = stage.storage.faults if name == "create" else stage.cursor.faults
    gate = faults.hold(name)
    await stage.fill(1, 6)
    while not faults.calls[name]:
        await asyncio.sleep(0)
    clearing = asyncio.create_task(stage.tracker.clear())
    await asyncio.sleep(0)
    gate.set()
    await clearing


@pytest.mark.parametrize("name", ["create", "put"])
async def test_clear_while_a_snapshot_is_stored(name: str) -> None:
    """A snapshot whose creation ends after a clear is deleted again, with its property."""
    async with Stage().run() as stage:
        await fill_and_clear(stage, name)
        await stage.idle()
        assert stage.stored == []
        assert stage.count == len(stage.buckets) == 0


async def test_clear_that_cannot_delete() -> None:
    """A clear returns though nothing can be deleted now; the deletion happens later."""
    async with Stage().run() as stage:
        await stage.fill(1, 11)
        await stage.idle()
        stage.storage.faults.fail["delete"] = 3
        await stage.tracker.clear()
        assert stage.count == 0
        assert stage.names == {}
        assert stage.storage.snapshots
        for _ in range(3):
            stage.clock.advance(1000)
            await stage.idle()
        assert stage.stored == []


@pytest.mark.parametrize("held", [None, "create", "put"], ids=["stored", "being created", "being named"])
async def test_what_was_cleared_does_not_come_back(held: str | None, caplog: pytest.LogCaptureFixture) -> None:
    """O22: storage deletes nothing, or a snapshot is just being stored: no message comes back after a clear."""
    stage = Stage()
    async with stage.run():
        if held is None:
            await stage.fill(1, 6)
            await stage.idle()
            stage.storage.faults.fail["delete"] = -1
            await stage.tracker.clear()
            assert stage.storage.snapshots
        else:
            await fill_and_clear(stage, held)
        await stage.tracker.aclose()
    named = [record.args[1] for record in caplog.records if isinstance(record.args, tuple) and "cleared" in record.msg]
    assert set(named) <= {0}
    assert named or held is not None  # else it depends on whether the file was closed before it was to be deleted
    stage.storage.faults.heal()
    async with stage.run():
        await stage.idle()
        assert (stage.count, stage.stored) == (0, [])


async def test_a_clear_that_no_cursor_takes(caplog: pytest.LogCaptureFixture) -> None:
    """O22: if even the cursor cannot be written, the log says that the messages will be held again."""
    stage = Stage()
    async with stage.run():
        await stage.fill(1, 11)
        await stage.idle()
        stage.cursor.faults.fail["remove"] = -1
        await stage.tracker.clear()
        await stage.tracker.aclose()
    assert "2 cleared snapshots could" in caplog.text
    assert "the cursor still names 2 of them" in caplog.text
    stage.cursor.faults.heal()
    async with stage.run():
        assert stage.count == 10


async def test_clear_that_is_cancelled() -> None:
    """A cancelled clear has dropped everything, and continues deleting."""
    async with Stage().run() as stage:
        await stage.fill(1, 21)
        await stage.idle()
        gate = stage.storage.faults.hold("delete")
        task = asyncio.create_task(stage.tracker.clear())
        await stage.idle_except("delete")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert stage.count == 0
        gate.set()
        await stage.idle()
        assert stage.stored == []


async def test_close_while_clearing() -> None:
    """Closing ends a clear that waits for storage; the next run finds the rest."""
    stage = Stage()
    async with stage.run():
        await stage.fill(1, 21)
        await stage.idle()
        stage.storage.faults.hold("delete")
        task = asyncio.create_task(stage.tracker.clear())
        await asyncio.sleep(0)
        await stage.tracker.aclose()
        await task
    async with stage.run():
        assert stage.count == 20


async def test_the_end_of_time() -> None:
    """The latest possible times can be stored and read again; such messages never come out."""
    stage = Stage()
    async with stage.run():
        for i in range(1, 7):
            assert stage.add(i, i, 2**63 - 1)
        await stage.idle()
        assert not stage.has()
        assert len(stage.buckets) == 1
    async with stage.run():
        assert stage.count == 5
        assert await stage.drain() == []


@pytest.mark.parametrize("what", ["clear", "trim"])
async def test_a_segment_that_comes_late(what: str) -> None:
    """A segment that arrives after a clear or trim is dropped."""
    async with Stage(prefetch=0).run() as stage:
        gate = stage.storage.faults.hold("segment")
        await stage.fill(1, 6)
        await stage.idle()
        stage.clock.set(50)
        assert stage.get(10) == []
        await stage.idle_except("segment")
        if what == "clear":
            await stage.tracker.clear()
        else:
            await stage.mark_delete(6, 6)
            stage.tracker.trim()
        gate.set()
        await stage.idle()
        assert await stage.drain() == []
        assert stage.count == stage.tracker.statistics().loaded == 0
        assert stage.storage.snapshots == {}


async def test_recovers_the_older_form() -> None:
    """D29: a snapshot without min_schedule_timestamp is recovered like one with it, without due messages."""
    stage = Stage()
    async with stage.run():
        await stage.fill(1, 6)
        await stage.idle()
    ((snapshot_id, entries),) = stage.storage.snapshots.items()
    rows = [SegmentRow(None, row.max_at, row.bitmaps) for row in decode_metadata(entries[0])]
    stage.storage.snapshots[snapshot_id] = (encode_metadata(rows), *entries[1:])
    stage.clock.set(20)
    async with stage.run():
        assert stage.count == 3
        stage.clock.set(60)
        assert await stage.drain() == positions(3, 4, 5)


async def test_reads_what_pulsar_names() -> None:
    """The property of a broker is understood, and a snapshot of two ledgers in one segment is read."""
    stage = Stage()
    sets = PositionSet()
    for position in ((400, 1), (403, 7)):
        sets.add(*position)
    metadata = encode_metadata([SegmentRow(1000, 1005, sets.dump())])
    stage.storage.snapshots[9] = (metadata, encode_indexes([(1000, 403, 7), (1005, 400, 1)]))
    await stage.put_all({"#pulsar.internal.delayed.bucket_400_403": "9"})
    async with stage.run():
        assert stage.count == 2
        stage.clock.set(2000)
        assert await stage.drain() == [Position(403, 7), Position(400, 1)]
    assert stage.names == {}


@pytest.mark.parametrize("damage", ["metadata", "bitmap", "gone", "segment"])
async def test_damaged_snapshots(damage: str) -> None:
    """A damaged or missing snapshot is left to normal dispatch; a damaged segment comes at its latest time."""
    stage = Stage(step=100)
    async with stage.run():
        await stage.fill(1, 6)
        await stage.idle()
    ((snapshot_id, entries),) = stage.storage.snapshots.items()
    rows = decode_metadata(entries[0])
    bad: dict[str, tuple[bytes, ...]] = {
        "metadata": (entries[0][:-1], *entries[1:]),
        "bitmap": (encode_metadata([SegmentRow(10, 50, {1: b"bad"})]), *entries[1:]),
        "segment": (entries[0], entries[1][:-1]),
    }
    assert len(rows) == 1
    if damage == "gone":
        stage.storage.snapshots.clear()
    else:
        stage.storage.snapshots[snapshot_id] = bad[damage]
    async with stage.run():
        await stage.idle()
        if damage == "segment":
            assert stage.count == 5
            stage.clock.set(49)
            assert await stage.drain() == []
            stage.clock.set(50)
            assert await stage.drain() == positions(1, 2, 3, 4, 5)
        assert stage.count == 0
        await stage.idle()
        assert stage.stored == []
        assert stage.tracker.statistics().last_error is not None


@pytest.mark.parametrize("when", ["loading", "recovering", "merging"])
async def test_segments_that_were_cut_between_two_indexes(when: str) -> None:
    """A segment with fewer indexes than the metadata say is damaged, even if readable: nothing is held for ever."""
    stage = Stage(step=1000, prefetch=0)
    async with stage.run():
        await stage.fill(1, 11)
        await stage.idle()
    snapshot_id = min(stage.storage.snapshots)
    metadata, segment = stage.storage.snapshots[snapshot_id]
    stage.storage.snapshots[snapshot_id] = metadata, segment[: 2 * len(segment) // 5]
    if when == "recovering":
        stage.clock.set(10)
    async with stage.run(most_buckets=1 if when == "merging" else 50):
        await stage.idle()
        stage.clock.set(49)
        early = await stage.drain()
        stage.clock.set(100)
        assert sorted(early + await stage.drain()) == positions(*range(1, 11))
        assert early == []
        assert stage.count == 0
        assert "2 indexes are left of 5" in str(stage.tracker.statistics().last_error)
        await stage.idle()
        assert stage.stored == []


async def test_orphans_are_deleted() -> None:
    """D27: a snapshot that no property names, as after a crash, is deleted when the tracker is opened."""
    stage = Stage()
    stage.storage.snapshots[77] = (b"", b"")
    async with stage.run():
        await stage.idle()
        assert stage.storage.snapshots == {}


async def test_sources_that_outlive_a_merge() -> None:
    """D27: a crash after naming a merge and before deleting its sources: all is there once, the sources go."""
    stage = Stage(prefetch=0)
    async with stage.run():
        await stage.fill(1, 16)
        await stage.idle()
        old, names = dict(stage.storage.snapshots), dict(stage.names)
    async with stage.run(most_buckets=1):
        await stage.idle()
        assert len(stage.names) == 1
    stage.storage.snapshots.update(old)
    await stage.put_all(names)
    async with stage.run():
        assert stage.count == 15
        await stage.idle()
        assert len(stage.names) == len(stage.storage.snapshots) == 1
        stage.clock.set(150)
        assert await stage.drain() == positions(*range(1, 16))


async def test_recovery_that_is_slow() -> None:
    """Opening does not wait for ever for storage; messages that are read again meanwhile count once."""
    stage = Stage()
    async with stage.run():
        await stage.fill(1, 6)
        await stage.idle()
    stage.storage.faults.fail["metadata"] = 1
    async with stage.run():
        assert stage.tracker.statistics().is_recovering
        assert stage.count == 0
        await stage.fill(1, 3)
        assert stage.count == 3
        stage.clock.advance(20)
        assert await stage.drain() == positions(1, 2)
        stage.clock.advance(100)
        await stage.idle()
        assert not stage.tracker.statistics().is_recovering
        assert stage.count == 1  # all of the snapshot is due by now: normal dispatch has it
        assert await stage.drain() == positions(3)


async def test_what_comes_due_while_it_is_read() -> None:
    """Messages that are due between reading a snapshot and using it are left to normal dispatch."""
    stage = Stage(step=1000)
    async with stage.run():
        await stage.fill(1, 6)
        await stage.idle()
    stage.clock.set(10)
    gate = stage.storage.faults.hold("segment")

    async def later() -> None:
        while not stage.storage.faults.calls["segment"]:
            await asyncio.sleep(0)
        stage.clock.set(30)
        gate.set()

    task = asyncio.create_task(later())
    async with stage.run():
        await task
        assert stage.count == 2
        assert not stage.tracker.contains_message(3, 3)
        stage.clock.set(50)
        assert await stage.drain() == positions(4, 5)
