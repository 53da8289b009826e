"""The cursor: acknowledgements survive, only changes are written, and memory is bounded."""

from __future__ import annotations

import asyncio
import errno
import gc
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pulsar_nack import (
    BucketConfig,
    BucketDelayedDeliveryTracker,
    ClosedError,
    InvalidArgumentError,
    MessageId,
    Position,
    WouldBlockError,
)
from pulsar_nack.config import CursorConfig
from pulsar_nack.cursor import BatchSet, Cursor, _opening
from pulsar_nack.cursor.format._ledger import LedgerAcks
from pulsar_nack.delayed import DelayedCursor, SupportsForgetting
from pulsar_nack.errors import LogFencedError, LogLockedError, LogStorageError, MissingExtraError
from pulsar_nack.ledger._log import AsyncLog
from pulsar_nack.testing import ManualClock, MemorySnapshotStorage, virtual_time
from tests.for_each import for_each

from .stage import Home, acked, config_of, faulty_home, local_home, memory_home, object_home, positions

TWENTY = {1: 20}


@pytest.fixture(params=["memory", "local", "object"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    """Return a home for logs: files in memory, real ones, or object storage."""
    makers: dict[str, Callable[[], Home]] = {
        "memory": memory_home,
        "local": lambda: local_home(tmp_path),
        "object": object_home,
    }
    return makers[request.param]()


# -- recovery --------------------------------------------------------------------------------------------------------


async def test_comes_back_after_close(home: Home) -> None:
    """K20: 20 entries, 2, 5, 7, 8 and 9 acknowledged, closed and reopened: backlog 15, and these are acked."""
    async with home.cursor(TWENTY) as cursor:
        for entry in (2, 5, 7, 8, 9):
            await cursor.acknowledge([Position(1, entry)])
        assert cursor.backlog == 15
    async with home.cursor(TWENTY) as cursor:
        assert cursor.backlog == 15
        assert cursor.mark_delete_position == (1, -1)
        unacked = [entry for entry in range(20) if not await cursor.is_acked((1, entry))]
        assert unacked == [0, 1, 3, 4, 6, *range(10, 20)]


async def test_comes_back_without_close() -> None:
    """K20: the same without a close, after a reported flush, when the machine loses everything unsynced."""
    home, files = faulty_home()
    store = await home.open()
    cursor = await Cursor.open(store, TWENTY, config_of())
    await cursor.acknowledge(positions(1, (2, 5, 7, 8, 9)))
    await cursor.flush()
    found = memory_home(files.inner.after_crash())  # type: ignore[attr-defined]
    async with found.cursor(TWENTY) as other:
        assert await acked(other) == [(1, 2), (1, 5), (1, 7), (1, 8), (1, 9)]
        assert other.backlog == 15
    await cursor.aclose()
    await store.aclose()


async def test_batches_come_back(home: Home) -> None:
    """K15: partials on p6 {1-3} and p5 {3-6}, p0..p4 whole; after a restart the same, and p5 whole moves on."""
    sets = {
        Position(1, 6): BatchSet.acked(10, range(1, 4)),
        Position(1, 5): BatchSet.acked(10, range(3, 7)),
    }
    async with home.cursor(TWENTY) as cursor:
        await cursor.acknowledge([*positions(1, range(5)), *sets], batch_sets=sets)
    async with home.cursor(TWENTY) as cursor:
        assert cursor.mark_delete_position == (1, 4)
        assert [index for index in range(10) if await cursor.is_acked((1, 5), index)] == [3, 4, 5, 6]
        assert await cursor.is_acked((1, 5), 99)  # an ack set says what is left, and not always how many there are
        rest = BatchSet.acked(10, [0, 1, 2, 7, 8, 9])
        await cursor.acknowledge([Position(1, 5)], batch_sets={Position(1, 5): rest})
        assert cursor.mark_delete_position == (1, 5)
        assert [index for index in range(10) if await cursor.is_acked((1, 6), index)] == [1, 2, 3]


async def test_reset_comes_back(home: Home) -> None:
    """K17: after a reset to p, what lies before p counts as acked and nothing from p on, also after a restart."""
    async with home.cursor(TWENTY) as cursor:
        await cursor.acknowledge_cumulative((1, 12))
        await cursor.acknowledge([Position(1, 15)])
        await cursor.flush()
        await cursor.reset((1, 4))
        assert cursor.backlog == 16
    async with home.cursor(TWENTY) as cursor:
        assert cursor.mark_delete_position == (1, 3)
        assert await acked(cursor) == []


async def test_begins_at_a_given_position(home: Home) -> None:
    """A new cursor begins before the first ledger, or after the position that it is given."""
    async with home.cursor({4: 5, 6: 5}) as cursor:
        assert cursor.mark_delete_position == (4, -1)
    async with home.cursor({4: 5, 6: 5}, name="other", start=(4, 3)) as cursor:
        assert (cursor.mark_delete_position, cursor.backlog) == ((4, 3), 6)


async def test_several_cursors_in_one_store() -> None:
    """Cursors of other names, and other logs, are left alone."""
    home = memory_home()
    async with await home.open() as store:
        await (await store.create("topic-0000000001")).aclose()
        async with (
            await Cursor.open(store, TWENTY, name="a") as one,
            await Cursor.open(store, TWENTY, name="a-b") as other,
        ):
            await one.acknowledge([Position(1, 3)])
            await other.acknowledge([Position(1, 5)])
        async with await Cursor.open(store, TWENTY, name="a") as one:
            assert await acked(one) == [(1, 3)]
        assert "topic-0000000001" in await store.names()


# -- writing ---------------------------------------------------------------------------------------------------------


async def test_each_change_is_written() -> None:
    """K21: an ack, a mark-delete move, a property, a partial batch, an emptied ledger: each writes a marker."""
    home = memory_home()
    async with home.cursor({1: 3, 2: 5}) as cursor:
        written = cursor.statistics().flushes

        async def check() -> None:
            nonlocal written
            await cursor.flush()
            assert cursor.statistics().flushes == written + 1
            written += 1

        await cursor.acknowledge([Position(2, 3)])
        await check()
        await cursor.acknowledge([Position(1, 0)])
        await check()
        await cursor.put_property("key", "value")
        written += 1
        await check_nothing(cursor, written)
        await cursor.acknowledge([Position(2, 1)], batch_sets={Position(2, 1): BatchSet.acked(4, [2])})
        await check()
        await cursor.acknowledge_cumulative((2, 3))
        await check()
        assert cursor._log.index == {}
    assert (await home.kinds()).count("m") >= 5
    async with home.cursor({1: 3, 2: 5}) as cursor:
        assert (cursor.mark_delete_position, dict(cursor.properties())) == ((2, 3), {"key": "value"})


async def check_nothing(cursor: Cursor, written: int) -> None:
    """Check that a flush without a change writes nothing."""
    await cursor.flush()
    assert cursor.statistics().flushes == written


async def test_only_dirty_ledgers_are_written() -> None:
    """K22: an ack in ledger 3 of {1, 2, 3}: one entry and one marker, which names the old entries of 1 and 2."""
    home = memory_home()
    async with home.cursor(dict.fromkeys((1, 2, 3), 10)) as cursor:
        await cursor.acknowledge([Position(1, 3), Position(2, 3), Position(3, 3)])
        await cursor.flush()
        before = dict(cursor._log.index)
        await cursor.acknowledge([Position(3, 5)])
        await cursor.flush()
        after = dict(cursor._log.index)
    assert await home.kinds() == "eeemem"
    assert {ledger: stored.numbers for ledger, stored in before.items()} == {1: (0,), 2: (1,), 3: (2,)}
    assert {ledger: stored.numbers for ledger, stored in after.items()} == {1: (0,), 2: (1,), 3: (4,)}


async def test_ledgers_behind_the_mark_delete_position_go() -> None:
    """K23: the position moves to the end of ledger 1: the marker names only ledger 2; short of it, 1 as well."""
    home = memory_home()
    ledgers = {0: 5, 1: 11, 2: 10}
    async with home.cursor(ledgers) as cursor:
        await cursor.acknowledge([Position(0, 2), Position(1, 4), Position(2, 4)])
        await cursor.flush()
        assert sorted(cursor._log.index) == [0, 1, 2]
        await cursor.acknowledge_cumulative((1, 10))
        await cursor.flush()
        assert sorted(cursor._log.index) == [2]
    async with home.cursor({0: 5, 1: 20, 2: 10}, name="other") as cursor:
        await cursor.acknowledge([Position(0, 2), *positions(1, (13, 14, 15)), Position(2, 4)])
        await cursor.acknowledge_cumulative((1, 10))
        await cursor.flush()
        assert sorted(cursor._log.index) == [1, 2]


async def test_flushes_share_writes() -> None:
    """Flushes called together share a write, and those during a write share the next one."""
    async with memory_home().cursor(TWENTY) as cursor:
        await cursor.acknowledge([Position(1, 3)])
        await asyncio.gather(*(cursor.flush() for _ in range(50)))
        assert cursor.statistics().flushes == 1
        await cursor.acknowledge([Position(1, 5)])
        first = asyncio.create_task(cursor.flush())
        while not cursor._writer.in_flight:
            await asyncio.sleep(0)
        await cursor.acknowledge([Position(1, 7)])
        await asyncio.gather(first, *(cursor.flush() for _ in range(50)))
        assert cursor.statistics().flushes == 3
        assert cursor.statistics().dirty_ledgers == 0


async def test_what_is_acked_during_a_write_is_written_next() -> None:
    """An ack in the ledger that is being written makes it dirty, and is not lost."""
    home, files = faulty_home()
    async with home.cursor(TWENTY) as cursor:
        await cursor.acknowledge([Position(1, 3)])
        flush = asyncio.create_task(cursor.flush())
        while not cursor._writer.in_flight:
            await asyncio.sleep(0)
        await cursor.acknowledge([Position(1, 5)])
        await flush
        assert cursor.statistics().dirty_ledgers == 1
        await cursor.flush()
        async with memory_home(files.inner.after_crash()).cursor(TWENTY) as other:  # type: ignore[attr-defined]
            assert await acked(other) == [(1, 3), (1, 5)]


@virtual_time
async def test_written_without_a_flush() -> None:
    """Without a flush, a change is written ``flush_interval`` later, once, and then nothing more."""
    loop = asyncio.get_running_loop()
    async with memory_home().cursor(TWENTY, CursorConfig(flush_interval=1)) as cursor:
        begun = loop.time()
        await cursor.acknowledge([Position(1, 3)])
        await cursor.acknowledge([Position(1, 5)])
        while not cursor.statistics().flushes:
            await asyncio.sleep(0.01)
        assert loop.time() - begun == pytest.approx(1, abs=0.02)
        await asyncio.sleep(100)
        assert cursor.statistics().flushes == 1


@virtual_time
async def test_written_without_a_flush_after_a_repeated_ack() -> None:
    """An entry that is acknowledged again while it is written does not prevent later writes."""
    async with memory_home().cursor(TWENTY, CursorConfig(flush_interval=1)) as cursor:
        await cursor.acknowledge([Position(1, 3)])
        flushing = asyncio.create_task(cursor.flush())
        while cursor.statistics().dirty_ledgers:
            await asyncio.sleep(0)
        await cursor.acknowledge([Position(1, 3)])
        await flushing
        await cursor.acknowledge([Position(1, 5)])
        await asyncio.sleep(2)
        assert (cursor.statistics().flushes, cursor.statistics().dirty_ledgers) == (2, 0)


@virtual_time
async def test_written_without_a_flush_after_a_rollover() -> None:
    """Acks that a write includes because it rolls over first do not prevent later writes."""
    async with memory_home().cursor({1: 9_999}, CursorConfig(flush_interval=1, rollover_bytes=1024)) as cursor:
        entries = iter(range(1, 9_999, 2))
        while not cursor.statistics().rollovers:
            await cursor.acknowledge([Position(1, next(entries))])
            flushing = asyncio.create_task(cursor.flush())
            while not flushing.done():
                if cursor.statistics().dirty_ledgers:
                    await cursor.acknowledge([Position(1, next(entries))])
                await asyncio.sleep(0)
        await cursor.acknowledge([Position(1, next(entries))])
        await asyncio.sleep(2)
        assert cursor.statistics().dirty_ledgers == 0


# -- order -----------------------------------------------------------------------------------------------------------


async def test_reset_and_ack_in_line() -> None:
    """K31: a reset that waits, then an ack that waits, then one flush: both are applied, in that order."""
    home = memory_home()
    async with home.cursor({1: 20, 2: 20, 3: 20}, config_of(max_individual_ack_cache_bytes_per_cursor=0)) as cursor:
        await cursor.acknowledge([Position(1, 3), Position(2, 3), Position(3, 3)])
        await cursor.flush()
        (evicted, *_) = cursor._state.table.evicted
        await asyncio.gather(
            cursor.acknowledge([Position(evicted, 9)]),
            cursor.reset((2, 0)),
            cursor.acknowledge([Position(2, 7)]),
            cursor.flush(),
        )
        assert cursor.statistics().dirty_ledgers == 0
    async with home.cursor({1: 20, 2: 20, 3: 20}) as cursor:
        assert cursor.mark_delete_position == (1, 19)
        assert await acked(cursor) == [(2, 7)]


async def test_cancelled_in_line() -> None:
    """A call that is cancelled while it waits for a ledger changes nothing, and later calls continue."""
    home = memory_home()
    async with home.cursor({1: 20, 2: 20}, config_of(max_individual_ack_cache_bytes_per_cursor=0)) as cursor:
        await cursor.acknowledge([Position(1, 3), Position(2, 3)])
        await cursor.flush()
        (evicted,) = cursor._state.table.evicted
        waiting = [asyncio.create_task(cursor.acknowledge([Position(evicted, entry)])) for entry in (5, 7, 9)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        waiting[1].cancel()
        await asyncio.wait(waiting)
        assert [task.cancelled() for task in waiting] == [True, True, False]
        assert [entry for ledger, entry in await acked(cursor) if ledger == evicted] == [3, 9]


async def test_cancelled_while_its_ledgers_are_loaded() -> None:
    """A call that is cancelled when some of its ledgers are loaded changes nothing, and does not cancel others."""
    ledgers = dict.fromkeys(range(10), 20)
    async with memory_home().cursor(ledgers, config_of(max_individual_ack_cache_bytes_per_cursor=0)) as cursor:
        await cursor.acknowledge([Position(ledger, 3) for ledger in ledgers])
        await cursor.flush()
        begun = asyncio.create_task(cursor.acknowledge([Position(ledger, 5) for ledger in ledgers]))
        behind = asyncio.create_task(cursor.acknowledge([Position(2, 7)]))
        while not cursor.statistics().loads:
            await asyncio.sleep(0)
        begun.cancel()
        await asyncio.wait([begun, behind])
        assert (begun.cancelled(), behind.cancelled()) == (True, False)
        assert set(await acked(cursor)) == {(2, 7), *((ledger, 3) for ledger in ledgers)}


async def test_cancelled_flush() -> None:
    """A cancelled flush stops no write; the next one only waits for it."""
    home = memory_home()
    async with home.cursor(TWENTY) as cursor:
        await cursor.acknowledge([Position(1, 3)])
        flush = asyncio.create_task(cursor.flush())
        while not cursor._writer.in_flight:
            await asyncio.sleep(0)
        flush.cancel()
        await asyncio.wait([flush])
        await cursor.flush()
        assert cursor.statistics().flushes == 1


# -- failures --------------------------------------------------------------------------------------------------------


@virtual_time
async def test_failed_write_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """K32: a write fails: the flush raises, nothing is durable, and it is written later without another ack."""
    home, files = faulty_home()
    async with home.cursor(TWENTY, CursorConfig(flush_interval=1)) as cursor:
        await cursor.acknowledge([Position(1, 3)])
        files.fail(errno.ENOSPC, "write", times=math.inf)
        with pytest.raises(LogStorageError):
            await cursor.flush()
        assert cursor.statistics().dirty_ledgers == 1
        async with memory_home(files.inner.after_crash()).cursor(TWENTY) as other:  # type: ignore[attr-defined]
            assert await acked(other) == []
        await asyncio.sleep(60)
        failures = cursor.statistics().failed_flushes
        assert 5 <= failures <= 15
        assert len([record for record in caplog.records if record.name == "pulsar_nack.cursor"]) == 1
        files.heal()
        await asyncio.sleep(11)
        assert cursor.statistics().failed_flushes == failures
        assert cursor.statistics().dirty_ledgers == 0
        async with memory_home(files.inner.after_crash()).cursor(TWENTY) as other:  # type: ignore[attr-defined]
            assert await acked(other) == [(1, 3)]


async def test_failed_property() -> None:
    """K32: a property that could not be written has not changed, nor after a restart."""
    home, files = faulty_home()
    async with home.cursor(TWENTY) as cursor:
        await cursor.put_property("a", "1")
        files.fail(errno.ENOSPC, "write")
        with pytest.raises(LogStorageError) as caught:
            await cursor.put_property("a", "2")
        assert isinstance(caught.value.__cause__, OSError)
        assert cursor.properties() == {"a": "1"}
        await cursor.put_property("b", "3")
        await cursor.remove_property("a")
    async with home.cursor(TWENTY) as cursor:
        assert cursor.properties() == {"b": "3"}


@pytest.mark.parametrize(
    "settings",
    [pytest.param({"rollover_bytes": 0}, marks=pytest.mark.slow), {"enable_lru_cache_max_unacked_ranges": False}],
)
async def test_more_properties_than_can_be_stored_are_refused(settings: dict[str, Any]) -> None:
    """K32: also for several that are set together; those that fit are stored, and a cursor full of them continues."""
    home = memory_home()
    limit = 1 << 24 if "rollover_bytes" in settings else CursorConfig().max_entry_bytes
    count, value = 9, "\N{PILE OF POO}" * (limit // 32)  # an eighth of the limit
    async with home.cursor(TWENTY, config_of(**settings)) as cursor:
        puts = await asyncio.gather(
            *(cursor.put_property(f"key {number}", value) for number in range(count)), return_exceptions=True
        )
        assert puts[:7] == [None] * 7
        for number in (7, 8):
            refused = puts[number]
            assert isinstance(refused, InvalidArgumentError)
            assert f"properties: expected at most {limit // 1000_000}," in str(refused)
            assert f"bytes with 'key {number}'" in str(refused)
        with pytest.raises(InvalidArgumentError, match="properties"):
            await cursor.put_property("key 7", value)
        await cursor.put_property("key 0", value)  # as it was
        for entry in (3, 7):
            await cursor.acknowledge([Position(1, entry)])
            await cursor.flush()
        await cursor.reset((1, 0))
        await cursor.flush()
        await cursor.remove_property("key 0")
        await cursor.put_property("key 7", value)
        assert cursor.statistics().failed_flushes == 0
    async with home.cursor(TWENTY, config_of(**settings)) as cursor:
        assert list(cursor.properties()) == [f"key {number}" for number in range(1, 8)]


@virtual_time
async def test_what_no_write_can_hold_is_not_tried_again_and_again() -> None:
    """K32: properties of another format, too large for this one: a flush raises, and works once some are removed."""
    home = memory_home()
    async with home.cursor(TWENTY) as cursor:
        for key in ("a", "b"):
            await cursor.put_property(key, "x" * 800)
    small = CursorConfig(flush_interval=1, enable_lru_cache_max_unacked_ranges=False, max_entry_bytes=1024)
    async with home.cursor(TWENTY, small) as cursor:
        await cursor.acknowledge([Position(1, 3)])
        with pytest.raises(InvalidArgumentError, match=r"properties: expected at most .*1,024 bytes.*1,6\d\d bytes"):
            await cursor.flush()
        await asyncio.sleep(1000)
        assert cursor.statistics().failed_flushes == 1
        await cursor.acknowledge([Position(1, 5)])
        await asyncio.sleep(1000)
        assert cursor.statistics().failed_flushes == 2
        with pytest.raises(InvalidArgumentError, match="properties"):
            await cursor.put_property("c", "")
        await cursor.remove_property("a")
        assert (cursor.statistics().dirty_ledgers, cursor.statistics().failed_flushes) == (0, 2)
    async with home.cursor(TWENTY) as cursor:
        assert (await acked(cursor), list(cursor.properties())) == ([(1, 3), (1, 5)], ["b"])


async def test_failed_load_changes_nothing() -> None:
    """A call fails if a ledger cannot be read, none of it is applied, and the next attempt works."""
    home, files = faulty_home()
    async with home.cursor({1: 20, 2: 20}, config_of(max_individual_ack_cache_bytes_per_cursor=0)) as cursor:
        await cursor.acknowledge([Position(1, 3), Position(2, 3)])
        await cursor.flush()
        (evicted,) = cursor._state.table.evicted
        files.fail(errno.EIO, "read")
        with pytest.raises(LogStorageError):
            await cursor.acknowledge([Position(1, 5), Position(2, 5)])
        await cursor.acknowledge([Position(evicted, 7)])
        assert sorted(await acked(cursor)) == sorted([(1, 3), (2, 3), (evicted, 7)])


async def test_taken_over(caplog: pytest.LogCaptureFixture) -> None:
    """On object storage the last opener owns it: the other one gets an error, and writes nothing any more."""
    home = object_home()
    async with await home.open() as store:
        one = await Cursor.open(store, TWENTY, config_of())
        await one.acknowledge([Position(1, 3)])
        await one.flush()
        async with home.cursor(TWENTY) as other:
            await one.acknowledge([Position(1, 5)])
            with pytest.raises(LogFencedError):
                await one.flush()
            with pytest.raises(LogFencedError):
                await one.acknowledge([Position(1, 7)])
            await other.acknowledge([Position(1, 9)])
            await other.flush()
        await one.aclose()
    assert "taken over" in caplog.text
    async with home.cursor(TWENTY) as cursor:
        assert await acked(cursor) == [(1, 3), (1, 9)]


async def test_open_twice() -> None:
    """In a folder, a cursor can be open once."""
    home = memory_home()
    async with home.cursor(TWENTY):
        with pytest.raises(LogLockedError, match="one owner at a time"):
            async with home.cursor(TWENTY):
                pass


# -- memory ----------------------------------------------------------------------------------------------------------


async def test_recovery_loads_newest_first(home: Home) -> None:
    """K29: limit 0, ledgers 5, 6, 7: the newest is loaded, the others stay on storage and are loaded on demand."""
    ledgers = dict.fromkeys((5, 6, 7), 50)
    tight = config_of(max_individual_ack_cache_bytes_per_cursor=0)
    async with home.cursor(ledgers) as cursor:
        await cursor.acknowledge([Position(5, 3), Position(6, 3), Position(7, 3)])
    async with home.cursor(ledgers, tight) as cursor:
        assert list(cursor._state.table.states) == [7]
        assert sorted(cursor._log.index) == [5, 6, 7]
        await cursor.acknowledge([Position(7, 9)])
        await cursor.flush()
        assert sorted(cursor._log.index) == [5, 6, 7]
        assert cursor.statistics().loads == 0
        await cursor.acknowledge([Position(5, 9)])
        assert cursor.statistics().loads == 1
        assert await cursor.is_acked((6, 3))
        assert cursor.backlog == 150 - 5
    async with home.cursor(ledgers) as cursor:
        assert await acked(cursor) == [(5, 3), (5, 9), (6, 3), (7, 3), (7, 9)]


async def test_cache_smaller_than_a_ledger() -> None:
    """K30: a cache smaller than one ledger's state: saved and restored right, dirty ledgers are written first."""
    ledgers = dict.fromkeys(range(1, 6), 10_000)
    home = memory_home()
    async with home.cursor(ledgers, config_of(max_individual_ack_cache_bytes_per_cursor=100)) as cursor:
        expected = []
        for around in range(3):
            for ledger in ledgers:
                entries = range(around * 500, around * 500 + 500, 2)
                for entry in entries:
                    await cursor.acknowledge([Position(ledger, entry)])
                expected += positions(ledger, [entry for entry in entries if entry or ledger > 1])
                await cursor.flush()
        statistics = cursor.statistics()
        assert (statistics.ledgers_in_memory, statistics.ledgers_on_storage) == (1, 4)
        assert statistics.loads >= 8
        found = await acked(cursor)
        assert found == sorted(expected)
    async with home.cursor(ledgers) as cursor:
        assert await acked(cursor) == found


async def test_a_load_that_evicts_two() -> None:
    """K30: one large ledger is loaded, two small ones evicted; the dirty one is stored first."""
    ledgers = dict.fromkeys((1, 2, 3), 100_000)
    home = memory_home()
    async with home.cursor(ledgers, config_of(max_individual_ack_cache_bytes_per_cursor=9_500)) as cursor:
        await cursor.acknowledge(positions(1, range(1, 30_000, 7)))
        await cursor.flush()
        await cursor.acknowledge(positions(2, range(1, 9_000, 5)))
        await cursor.acknowledge(positions(3, range(1, 9_000, 5)))
        await cursor.flush()
        assert sorted(cursor._state.table.evicted) == [1]
        await cursor.acknowledge([Position(3, 50_001)])
        await cursor.lru_switch(1)
        await cursor.flush()
        assert sorted(cursor._state.table.states) == [1]
        assert await cursor.is_acked((3, 50_001))
        assert cursor.statistics().evictions >= 3


async def test_ranges_of_evicted_ledgers() -> None:
    """K16: ranges in 3 and 5, one of them evicted: two lists, in ledger order, and nothing stays in memory."""
    ledgers = {3: 20, 5: 20}
    async with memory_home().cursor(ledgers, config_of(max_individual_ack_cache_bytes_per_cursor=0)) as cursor:
        await cursor.acknowledge([*positions(5, (4, 5)), *positions(3, (2, 7, 8))])
        await cursor.flush()
        assert len(cursor._state.table.evicted) == 1
        found = await cursor.build_individual_deleted_message_ranges()
        assert found == [[((3, 1), (3, 2)), ((3, 6), (3, 8))], [((5, 3), (5, 5))]]
        assert len(cursor._state.table.evicted) == 1


async def test_two_acks_in_many_ledgers() -> None:
    """K46: 5 000 ledgers of 50 000 entries, the first and the very last acked: at most 64 bytes of ranges."""
    ledgers = dict.fromkeys(range(1, 5_001), 50_000)
    home = memory_home()
    async with home.cursor(ledgers) as cursor:
        await cursor.acknowledge([Position(1, 0)])
        await cursor.acknowledge([Position(5_000, 49_999)])
        await cursor.flush()
        assert cursor._state.table.size_bytes <= 64
        assert cursor.mark_delete_position == (1, 0)
    first, last = BatchSet.acked(1_000, [0]), BatchSet.acked(1_000, [999])
    async with home.cursor(ledgers, name="other") as cursor:
        sets = {Position(1, 0): first, Position(5_000, 49_999): last}
        await cursor.acknowledge(list(sets), batch_sets=sets)
        await cursor.flush()
        assert await cursor.individually_deleted() == []
        assert cursor.metadata_size_bytes < 1_024
        assert [await cursor.batch_set(position) for position in sets] == [first, last]


async def test_remote_topic(home: Home) -> None:
    """K50: without ledgers there is no end, no ledger end and no backlog; the rest holds, also after a restart."""
    async with home.cursor(None) as cursor:
        await cursor.acknowledge([Position(7, 0), Position(7, 1), Position(10**12, 2**40)])
        assert cursor.backlog is None
        await cursor.acknowledge_cumulative((7, 5))
    async with home.cursor(None) as cursor:
        assert cursor.mark_delete_position == (7, 5)
        assert await acked(cursor) == [(10**12, 2**40)]


async def acknowledge_one_by_one(cursor: Cursor, several: Sequence[Position]) -> None:
    """Acknowledge positions, each with a separate call."""
    for position in several:
        await cursor.acknowledge([position])


@pytest.mark.slow
async def test_acks_wait_when_memory_is_full() -> None:
    """Memory is bounded while a write is slow: acks wait for it; if it fails, they raise."""
    home, files = faulty_home()
    ledgers = dict.fromkeys(range(1, 2_001), 1_000)
    settings = config_of(max_individual_ack_cache_bytes_per_cursor=50_000)
    async with home.cursor(ledgers, settings) as cursor:
        largest = 0
        for ledger in ledgers:
            await cursor.acknowledge([Position(ledger, 5)])
            largest = max(largest, cursor.statistics().memory_bytes)
        assert largest < 50_000 * 2 + 300 * 600
        assert cursor.range_count == 2_000
        files.fail(errno.ENOSPC, "write", times=math.inf)
        with pytest.raises(LogStorageError):
            await acknowledge_one_by_one(cursor, [Position(ledger, 7) for ledger in ledgers])
        with pytest.raises(WouldBlockError):
            cursor.acknowledge_nowait([Position(1, 9)])
        acked_by_then = cursor.range_count
        files.heal()
        with suppress(LogStorageError):  # a write that was open
            await cursor.flush()
        await cursor.acknowledge([Position(2_000, 9)])
        assert cursor.range_count == acked_by_then + 1
    async with home.cursor(ledgers) as cursor:
        assert cursor.range_count == acked_by_then + 1


# -- the calls -------------------------------------------------------------------------------------------------------


async def test_bad_positions() -> None:
    """K6: a position beyond the end, also among good ones, is refused, and nothing of the call is applied."""
    async with memory_home().cursor(TWENTY) as cursor:
        for wrong in ([Position(1, 20)], [Position(1, 3), Position(1, 20)], [Position(2, 0)], [Position(1, -1)]):
            with pytest.raises(InvalidArgumentError):
                await cursor.acknowledge(wrong)
            with pytest.raises(InvalidArgumentError):
                cursor.acknowledge_nowait(wrong)
        with pytest.raises(InvalidArgumentError):
            await cursor.acknowledge_cumulative((1, 20))
        with pytest.raises(InvalidArgumentError):
            await cursor.reset((1, 22))
        await cursor.acknowledge_cumulative((1, 5))
        with pytest.raises(InvalidArgumentError):
            await cursor.acknowledge_cumulative((1, 3))
        assert cursor.mark_delete_position == (1, 5)
        assert await acked(cursor) == []


async def test_deleted_ledgers_are_passed_while_they_are_read() -> None:
    """A call skips ledgers that are passed and deleted before it has read them."""
    ledgers = dict.fromkeys(range(100), 4)
    async with memory_home().cursor(ledgers, config_of(max_individual_ack_cache_bytes_per_cursor=0)) as cursor:
        await cursor.acknowledge([Position(ledger, entry) for ledger in ledgers for entry in (0, 2)])
        await cursor.flush()
        reading = asyncio.create_task(acked(cursor))
        for _ in range(5):
            await asyncio.sleep(0)  # it has begun to read the first ones
        for ledger in range(98):
            del ledgers[ledger]
        cursor.settle()
        await cursor.put_property("written", "without waiting for calls that read")
        assert not reading.done()
        assert (await reading)[-3:] == await acked(cursor) == [(98, 2), (99, 0), (99, 2)]


async def test_entries_of_one_ledger() -> None:
    """Many entries of a ledger are acknowledged in one call, and the remaining ones are returned as ranges."""
    ledgers = {1: 100, 2: 100}
    async with memory_home().cursor(ledgers, config_of(max_individual_ack_cache_bytes_per_cursor=0)) as cursor:
        await cursor.acknowledge_entries(1, range(0, 100, 2))
        await cursor.acknowledge_entries(2, [5])
        await cursor.flush()
        assert list(cursor._state.table.evicted) == [1]
        assert await cursor.unacked(1, 1, 5) == [(1, 1), (3, 3), (5, 5)]
        assert await cursor.unacked(2, 0, 99) == [(0, 4), (6, 99)]
        assert (cursor.next_position, cursor.highest_acked, cursor.range_count) == ((1, 1), (2, 5), 50)
        assert not cursor.adds_range((1, 1))
        assert cursor.adds_range((2, 50))
        with pytest.raises(InvalidArgumentError):
            await cursor.acknowledge_entries(1, [3, 100])


async def test_batch_sets_can_be_asked_for() -> None:
    """A batch's unacknowledged members are returned, also if its ledger is not in memory."""
    ledgers = {1: 10, 2: 10}
    async with memory_home().cursor(ledgers, config_of(max_individual_ack_cache_bytes_per_cursor=0)) as cursor:
        sets = {Position(1, 3): BatchSet.acked(4, [1]), Position(2, 3): BatchSet.acked(4, [2])}
        await cursor.acknowledge(list(sets), batch_sets=sets)
        await cursor.flush()
        assert len(cursor._state.table.evicted) == 1
        assert [await cursor.batch_set(position) for position in sets] == list(sets.values())
        assert await cursor.batch_set((1, 4)) is None


async def test_deleted_ledgers_are_passed() -> None:
    """After a ledger was deleted from the topic, ``settle`` moves the mark-delete position past it."""
    ledgers = {1: 10, 2: 10}
    async with memory_home().cursor(ledgers) as cursor:
        await cursor.acknowledge(positions(2, range(4)))
        del ledgers[1]
        cursor.settle()
        assert cursor.mark_delete_position == (2, 3)


@for_each(
    "wrong",
    [
        *[5, None, [5], [(1,)], [(1, 2, 3)], [("a", 1)], [None], [(1, 2.5)], "ab", (True, 1), (1, True), b"\x01\x02"],
        *[range(1, 3), {1: 2, 3: 4}, {1, 3}, MessageId(1, 3), (1, 2**63), (1, -2)],
    ],
)
async def test_what_only_looks_like_a_position(wrong: Any) -> None:
    """K6: invalid positions, and values that only resemble one, are refused by each call."""
    async with memory_home().cursor(TWENTY) as cursor:
        for call in (
            cursor.acknowledge([wrong]),
            cursor.acknowledge([Position(1, 1), wrong]),
            cursor.acknowledge_cumulative(wrong),
            cursor.reset(wrong),
            cursor.is_acked(wrong),
            cursor.batch_set(wrong),
        ):
            with pytest.raises(InvalidArgumentError, match="position"):
                await call
        lists: list[Any] = [[wrong], wrong, None, [5], "ab", (1, 2)]
        for several in lists:
            with pytest.raises(InvalidArgumentError, match="position"):
                await cursor.acknowledge(several)
            with pytest.raises(InvalidArgumentError, match="position"):
                cursor.acknowledge_nowait(several)
        assert (cursor.mark_delete_position, cursor.range_count, cursor.statistics().dirty_ledgers) == ((1, -1), 0, 0)


@for_each("wrong", ["x", True, 1.5, -2, [1]])
async def test_what_are_no_numbers(wrong: Any) -> None:
    """K6: an invalid ledger, entry, batch index or batch set is refused by name, and nothing is applied."""
    async with memory_home().cursor(TWENTY) as cursor:
        for call, field in (
            (cursor.is_acked((1, 3), wrong), "batch_index"),
            (cursor.lru_switch(wrong), "ledger_id"),
            (cursor.unacked(wrong, 0, 5), "ledger"),
            (cursor.unacked(1, wrong, 5), "first"),
            (cursor.unacked(1, 0, wrong), "last"),
            (cursor.acknowledge_entries(wrong, [3]), "ledger"),
            (cursor.acknowledge_entries(1, [3, *([] if wrong is True else [wrong]), 9, 2**63]), "entries"),
            (cursor.acknowledge_entries(1, None), "entries"),  # type: ignore[arg-type]
            (cursor.acknowledge([Position(1, 3)], batch_sets=wrong), "batch_sets"),
            (cursor.acknowledge([Position(1, 3)], batch_sets=BatchSet.full(3)), "batch_sets"),  # type: ignore[arg-type]
        ):
            with pytest.raises(InvalidArgumentError, match=field):
                await call
        assert (cursor.range_count, cursor.statistics().dirty_ledgers) == (0, 0)


async def test_a_list_that_changes_while_it_waits() -> None:
    """The list as it was at the call is acknowledged, however it changes until its turn."""
    async with memory_home().cursor({1: 20, 2: 20}, config_of(max_individual_ack_cache_bytes_per_cursor=0)) as cursor:
        await cursor.acknowledge([(1, 3), (2, 3)])
        await cursor.flush()
        (evicted,) = cursor._state.table.evicted
        wanted = [Position(evicted, 5)]
        waiting = asyncio.create_task(cursor.acknowledge(wanted))
        await asyncio.sleep(0)
        wanted[0] = Position(evicted, 7)
        await waiting
        assert (await cursor.is_acked((evicted, 5)), await cursor.is_acked((evicted, 7))) == (True, False)


async def test_without_waiting() -> None:
    """``acknowledge_nowait`` does what it can at once, and otherwise says that it would have to wait."""
    async with memory_home().cursor({1: 20, 2: 20}, config_of(max_individual_ack_cache_bytes_per_cursor=0)) as cursor:
        cursor.acknowledge_nowait([Position(1, 3)])
        cursor.acknowledge_nowait(positions(2, (4, 5)))
        await cursor.flush()
        (evicted,) = cursor._state.table.evicted
        with pytest.raises(WouldBlockError):
            cursor.acknowledge_nowait([Position(evicted, 9)])
        waiting = asyncio.create_task(cursor.acknowledge([Position(evicted, 9)]))
        await asyncio.sleep(0)
        with pytest.raises(WouldBlockError):
            cursor.acknowledge_nowait(iter([Position(3 - evicted, 9)]))  # type: ignore[arg-type]
        await waiting
        assert sorted(await acked(cursor)) == sorted([(1, 3), (2, 4), (2, 5), (evicted, 9)])


async def test_closed() -> None:
    """Closing writes all changes and may be repeated; later calls raise the closed error."""
    home = memory_home()
    async with await home.open() as store:
        cursor = await Cursor.open(store, TWENTY, config_of())
        await cursor.acknowledge([Position(1, 3)])
        await asyncio.gather(cursor.aclose(), cursor.aclose())
        await cursor.aclose()
        for call in (
            cursor.acknowledge([Position(1, 5)]),
            cursor.acknowledge_cumulative((1, 5)),
            cursor.reset((1, 5)),
            cursor.flush(),
            cursor.is_acked((1, 5)),
            cursor.individually_deleted(),
            cursor.lru_switch(1),
            cursor.put_property("a", "b"),
        ):
            with pytest.raises(ClosedError):
                await call
        with pytest.raises(ClosedError):
            cursor.acknowledge_nowait([Position(1, 5)])
    async with home.cursor(TWENTY) as cursor:
        assert await acked(cursor) == [(1, 3)]


async def test_close_that_cannot_write() -> None:
    """Closing raises the error of the last write, and still releases everything."""
    home, files = faulty_home()
    async with await home.open() as store:
        cursor = await Cursor.open(store, TWENTY, config_of())
        await cursor.acknowledge([Position(1, 3)])
        files.fail(errno.ENOSPC, "write", times=math.inf)
        with pytest.raises(LogStorageError):
            await cursor.aclose()
        files.heal()
        async with await Cursor.open(store, TWENTY, config_of()) as again:
            assert await acked(again) == []


@virtual_time
async def test_close_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that does not end delays closing by ``close_timeout``, and no longer."""
    home, is_free = memory_home(), asyncio.Event()
    append = AsyncLog.append_many

    async def hang(log: AsyncLog, records: Sequence[bytes]) -> int:
        await is_free.wait()
        return await append(log, records)

    async with await home.open() as store:
        cursor = await Cursor.open(store, TWENTY, config_of(close_timeout=7))
        await cursor.acknowledge([Position(1, 3)])
        monkeypatch.setattr(AsyncLog, "append_many", hang)
        begun = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError):
            await cursor.aclose()
        assert asyncio.get_running_loop().time() - begun == pytest.approx(7, abs=0.1)
        is_free.set()
        assert cursor._operations._releasing is not None
        await cursor._operations._releasing
    async with home.cursor(TWENTY) as cursor:
        assert await acked(cursor) == [(1, 3)]


async def test_unclosed(tmp_path: Path) -> None:
    """A cursor that is dropped without being closed warns."""
    cursor = await Cursor.open_local(tmp_path, TWENTY, config_of())
    owned = cursor._owned
    del cursor
    with pytest.warns(ResourceWarning, match="unclosed <Cursor open"):
        gc.collect()
    assert owned is not None
    await owned.aclose()


async def test_in_a_folder(tmp_path: Path) -> None:
    """``open_local`` has its own store, and closes it."""
    for entry in (3, 5):
        async with await Cursor.open_local(tmp_path / "new", TWENTY) as cursor:
            await cursor.acknowledge([Position(1, entry)])
            assert await cursor.is_acked((1, 3))
    async with await Cursor.open_local(tmp_path / "new", TWENTY) as cursor:
        assert await acked(cursor) == [(1, 3), (1, 5)]


async def test_bad_arguments(tmp_path: Path) -> None:
    """An invalid store, settings, name, ledgers or start are refused before anything is created."""
    home = memory_home()
    async with await home.open() as store:
        for arguments, options in (
            ((None, TWENTY), {}),
            ((store, TWENTY, object()), {}),
            ((store, TWENTY), {"name": "a/b"}),
            ((store, {"a": 1}), {}),
            ((store, 7), {}),
            ((store, TWENTY), {"start": (-2, 0)}),
            ((store, TWENTY), {"start": 5}),
            ((store, TWENTY), {"start": (1,)}),
            ((store, TWENTY), {"start": (1, 20)}),
            ((store, TWENTY), {"start": (9, 0)}),
        ):
            with pytest.raises(InvalidArgumentError, match="|".join(options) or None):
                await Cursor.open(*arguments, **options)
        assert await store.names() == []
        async with await Cursor.open(store, TWENTY) as cursor:
            with pytest.raises(InvalidArgumentError):
                await cursor.put_property("a", 1)  # type: ignore[arg-type]


async def test_carries_a_bucket_tracker() -> None:
    """It works as the cursor of a bucket tracker: the snapshots' ids are its properties."""
    home, storage, clock = memory_home(), MemorySnapshotStorage(), ManualClock(0)
    settings = BucketConfig(delayed_delivery_min_index_count_per_bucket=2, delayed_delivery_tick_time_millis=1)
    ledgers = dict.fromkeys(range(1, 9), 10)
    async with home.cursor(ledgers) as cursor:
        assert isinstance(cursor, DelayedCursor)
        assert isinstance(cursor, SupportsForgetting)
        async with await BucketDelayedDeliveryTracker.open(storage, cursor, settings, clock=clock) as tracker:
            for ledger in ledgers:
                assert tracker.add_message(ledger, 0, 10_000)
            await tracker.wait_until_idle()
        assert len(cursor.properties()) >= 3
    async with home.cursor(ledgers) as cursor:
        async with await BucketDelayedDeliveryTracker.open(storage, cursor, settings, clock=clock) as tracker:
            await tracker.wait_until_idle()
            assert tracker.number_of_delayed_messages >= 6
            clock.advance(10_000)
            while tracker.number_of_delayed_messages:
                tracker.get_scheduled_messages(10)
                await tracker.wait_until_idle()
            await tracker.clear()
            await tracker.wait_until_idle()
        assert cursor.properties() == {}


async def test_forgetting_a_snapshot() -> None:
    """On object storage a former owner of the cursor gets an error before it deletes anything."""
    home = object_home()
    key = "#pulsar.internal.delayed.bucket_1_2"
    async with await home.open() as store:
        one = await Cursor.open(store, TWENTY, config_of())
        await one.put_property(key, "7")
        await one.put_property("other", "7")
        await one.forget(7)
        assert dict(one.properties()) == {"other": "7"}
        async with home.cursor(TWENTY):
            with pytest.raises(LogFencedError):
                await one.forget(8)
        await one.aclose()


async def test_nearly_everything_is_acked() -> None:
    """K33: 30 million acked entries with few holes take some hundred bytes, in memory too, and are equal when read."""
    home, ledgers = memory_home(), {1: 30_000_000}
    async with home.cursor(ledgers) as cursor:
        for begin in range(0, 30_000_000, 3_000_000):
            cursor._state.table.states.setdefault(1, LedgerAcks()).ranges.add_range(begin + 1, begin + 2_999_999)
        await cursor.acknowledge([Position(1, 3_000_000)])
        await cursor.flush()
        assert cursor.statistics().bytes_written < 300
        assert (cursor.range_count, cursor.backlog) == (9, 9)
    async with home.cursor(ledgers) as cursor:
        assert (cursor.range_count, cursor.backlog) == (9, 9)
        assert cursor.statistics().memory_bytes < 100_000


async def test_without_protobuf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without protobuf opening names the extra, before anything is created."""

    def missing() -> None:
        raise MissingExtraError("the cursor", "protobuf>=5", "cursor")

    monkeypatch.setattr(_opening, "messages", missing)
    home = memory_home()
    with pytest.raises(MissingExtraError, match=r"pulsar-nack\[cursor\]"):
        async with home.cursor(TWENTY):
            pass
    assert await home.names() == []


def test_metadata_limits() -> None:
    """K40: below 1 the limit is off, 1 to 1 023 is refused, 1 024 is on; the draft's name is accepted too."""
    for name in ("max_per_cursor_metadata_size_in_bytes", "maxUnPersistAckRecordsBytesPerSubscription"):
        for value in (-1, 0, 1_024):
            assert CursorConfig(**{name: value}).max_per_cursor_metadata_size_in_bytes == value
        for value in (1, 1_023, True):
            with pytest.raises(ValueError, match="at least 1,024"):
                CursorConfig(**{name: value})
    with pytest.raises(ValueError, match="given once"):
        CursorConfig(maxPerCursorMetadataSizeInBytes=0, maxUnPersistAckRecordsBytesPerSubscription=0)
