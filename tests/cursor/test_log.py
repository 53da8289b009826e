"""The cursor's log: which marker counts, which records are skipped, and continuing in a new log."""

from __future__ import annotations

import asyncio
import errno
import logging

import pytest

from pulsar_nack import Position
from pulsar_nack.cursor import BatchSet, Cursor
from pulsar_nack.cursor.format._ledger import encode_ledger
from pulsar_nack.cursor.format._marker import Marker, MarkerContents, decode_marker, encode_marker
from pulsar_nack.cursor.format._record import messages, read_record
from pulsar_nack.cursor.logs import CursorLog
from pulsar_nack.errors import LogStorageError, LogVersionError
from pulsar_nack.ledger import LocalLogStore
from pulsar_nack.testing import FaultyFiles, MemoryFiles
from tests.tiers import sample, size

from .stage import (
    FOLDER,
    DamagedLog,
    Home,
    acked,
    config_of,
    damaged_home,
    faulty_home,
    memory_home,
    object_home,
    positions,
)

LEDGERS = dict.fromkeys((1, 2, 3), 20)
LOG = "cursor-0000000001"


async def three_flushes(home: Home) -> list[list[tuple[int, int]]]:
    """Make a log of three flushes, each with an entry for ledgers 1 and 2; return what each makes durable."""
    durable = []
    async with home.cursor(LEDGERS) as cursor:
        for entry in (3, 5, 7):
            await cursor.acknowledge([Position(1, entry), Position(2, entry)])
            await cursor.flush()
            durable.append(await acked(cursor))
    assert await home.kinds() == "eemeemeem"
    return durable


@pytest.mark.parametrize("kind", ["memory", "object"])
async def test_entries_without_a_marker(kind: str) -> None:
    """K24: entries without a marker, of one crash and of another one after it, do not count."""
    home = memory_home() if kind == "memory" else object_home()
    durable = await three_flushes(home)
    for _ in range(2):
        async with await home.open() as store, await store.open_log(LOG) as log:
            async with memory_home().cursor(LEDGERS) as other:
                await other.acknowledge(positions(1, range(3, 20)))
                records = encode_ledger(1, other._state.table.states[1])
            await log.append_many(records)
        async with home.cursor(LEDGERS) as cursor:
            assert await acked(cursor) == durable[-1]
    async with home.cursor(LEDGERS) as cursor:
        await cursor.acknowledge([Position(1, 9)])
    async with home.cursor(LEDGERS) as cursor:
        assert await acked(cursor) == sorted([*durable[-1], (1, 9)])


@pytest.mark.parametrize("instead", [None, b"", b"\xff\x00garbage"], ids=["damaged", "empty", "garbage"])
@pytest.mark.parametrize(("number", "state"), [(8, 1), (7, 1), (6, 1)])
async def test_damaged_record(number: int, state: int, instead: bytes | None, caplog: pytest.LogCaptureFixture) -> None:
    """K25: the last marker, or an entry that it names, is damaged or replaced: the marker before it counts."""
    home = memory_home()
    durable = await three_flushes(home)
    async with damaged_home(home, LOG, {number: instead}).cursor(LEDGERS) as cursor:
        assert await acked(cursor) == durable[state]
    assert [record.levelno for record in caplog.records if record.name == "pulsar_nack.cursor"] == [logging.WARNING]


async def test_damage_all_over(caplog: pytest.LogCaptureFixture) -> None:
    """K25: two markers, and an entry of the third from the end: recovery goes back to the first one."""
    home = memory_home()
    durable = await three_flushes(home)
    async with damaged_home(home, LOG, {8: None, 5: b"", 4: None}).cursor(LEDGERS) as cursor:
        assert await acked(cursor) == durable[0]
        await cursor.acknowledge([Position(3, 3)])
    async with home.cursor(LEDGERS) as cursor:
        assert await acked(cursor) == [*durable[0], (3, 3)]
    assert "searching for an older state" in caplog.text


async def test_entry_of_another_ledger() -> None:
    """K25: a marker that names the entry of another ledger is not used."""
    home = memory_home()
    durable = await three_flushes(home)
    records = await home.records()
    async with damaged_home(home, LOG, {6: records[7]}).cursor(LEDGERS) as cursor:
        assert await acked(cursor) == durable[1]


async def test_names_an_entry_that_is_not_there() -> None:
    """K25: a marker that names later records is not used."""
    home = memory_home()
    await three_flushes(home)
    records = await home.records()
    async with damaged_home(home, LOG, {2: records[8], 5: b"", 8: b""}).cursor(LEDGERS) as cursor:
        assert await acked(cursor) == []


async def test_torn_tail() -> None:
    """K25: the last record is cut anywhere: the state before it, or the whole one, is found."""
    files = MemoryFiles()
    home = memory_home(files)
    durable = await three_flushes(home)
    path = f"{FOLDER}/{LOG}.log/00000000000000000000.segment"
    whole = files.tree()[path]
    sizes = {}
    for cut in [1, *sample(range(2, 160))]:
        torn = MemoryFiles()
        async with await LocalLogStore.open(FOLDER, files=torn) as store:
            await (await store.create(LOG)).aclose()
        descriptor = torn.open(FOLDER / f"{LOG}.log" / "00000000000000000000.segment", writable=True)
        torn.truncate(descriptor, 0)
        torn.write(descriptor, memoryview(whole[:-cut]), 0)
        torn.sync(descriptor)
        torn.close(descriptor)
        async with memory_home(torn).cursor(LEDGERS) as cursor:
            found = await acked(cursor)
        assert found in (durable[0], durable[1])
        sizes[cut] = len(found)
    assert sizes[1] == len(durable[1])


@pytest.mark.parametrize("instead", [None, b"\xffgarbage", "the log"])
async def test_no_usable_marker(instead: bytes | str | None, caplog: pytest.LogCaptureFixture) -> None:
    """K26, K34: no marker is usable: the snapshot's mark-delete position, no individual acks, and a warning."""
    home = memory_home()
    async with home.cursor(LEDGERS) as cursor:
        await cursor.acknowledge([*positions(1, range(6)), Position(1, 9), Position(2, 3)])
        await cursor.put_property("key", "value")
    damage = None if isinstance(instead, str) else dict.fromkeys(range(len(await home.records())), instead)
    async with damaged_home(home, LOG, damage).cursor(LEDGERS) as cursor:
        assert cursor.mark_delete_position == (1, 5)
        assert await acked(cursor) == []
        assert dict(cursor.properties()) == {"key": "value"}
        assert cursor.backlog == 54
    assert "no marker of the cursor cursor can be used: it continues after (1, 5)" in caplog.text


async def test_damaged_log_goes_on_in_a_new_one(caplog: pytest.LogCaptureFixture) -> None:
    """K26: a log that cannot be opened is left where it is, and later records go to another one."""
    home = memory_home()
    async with home.cursor(LEDGERS) as cursor:
        await cursor.acknowledge([*positions(1, range(6)), Position(1, 9)])
    async with damaged_home(home, LOG, None).cursor(LEDGERS) as cursor:
        await cursor.acknowledge([Position(1, 6), Position(3, 3)])
    assert "cursor-0000000002" in await home.names()
    assert LOG in await home.names()
    async with damaged_home(home, LOG, None).cursor(LEDGERS) as cursor:
        assert cursor.mark_delete_position == (1, 6)
        assert await acked(cursor) == [(3, 3)]
    assert "is damaged" in caplog.text


async def test_nothing_usable_at_all(caplog: pytest.LogCaptureFixture) -> None:
    """K26: neither a marker nor a snapshot: it begins again, nothing is acknowledged, and a warning says so."""
    home = memory_home()
    async with await home.open() as store:
        log = await store.create(LOG)
        await log.append(b"\xffsomething else")
    async with home.cursor(LEDGERS) as cursor:
        assert (cursor.mark_delete_position, cursor.backlog) == ((1, -1), 60)
    assert "it continues at its beginning" in caplog.text


async def test_snapshot_is_never_ahead(caplog: pytest.LogCaptureFixture) -> None:
    """K26: after a reset to before the last snapshot, the snapshot claims no more than the reset left."""
    files = MemoryFiles()
    home = memory_home(files)
    async with home.cursor(LEDGERS) as cursor:
        await cursor.acknowledge_cumulative((2, 9))
        await cursor.flush()
        await cursor.reset((1, 4))
        await cursor.flush()
        count = len(await home_records(cursor))
        killed = memory_home(files.after_crash())
    async with damaged_home(killed, LOG, dict.fromkeys(range(count))).cursor(LEDGERS) as cursor:
        assert cursor.mark_delete_position == (1, 3)
    assert "no marker" in caplog.text


async def home_records(cursor: Cursor) -> list[bytes]:
    """Return all records of a cursor's log."""
    log = cursor._log._log
    return [record.data async for record in log.records()]


async def test_state_that_cannot_be_decoded_later(caplog: pytest.LogCaptureFixture) -> None:
    """K34: an evicted ledger turns out to be damaged: only its individual acks are dropped, with a warning."""
    home = memory_home()
    async with home.cursor(LEDGERS, config_of(max_individual_ack_cache_bytes_per_cursor=0)) as cursor:
        await cursor.acknowledge([Position(1, 0), Position(1, 5), Position(2, 5), Position(3, 5)])
        await cursor.flush()
        evicted = min(cursor._state.table.evicted)
        (number,) = cursor._log.index[evicted].numbers
        cursor._log._log = DamagedLog(cursor._log._log, {number: b"\xff"})
        await cursor.acknowledge([Position(evicted, 9)])
        found = [position for position in await acked(cursor) if position[0] == evicted]
        assert found == [(evicted, 9)]
        assert cursor.mark_delete_position == (1, 0)
    assert f"in ledger {evicted} after the mark-delete position (1, 0) cannot be read" in caplog.text


async def test_later_release() -> None:
    """A later release's log is refused: continuing with an older state would lose newer changes."""
    home = memory_home()
    await three_flushes(home)
    records = await home.records()
    for number in (8, 7):
        info = read_record(records[number])
        info.part.version = 99
        with pytest.raises(LogVersionError, match=f"record {number} has version 99"):
            async with damaged_home(home, LOG, {number: info.SerializeToString()}).cursor(LEDGERS):
                pass
    async with home.cursor(LEDGERS) as cursor:
        assert len(await acked(cursor)) == 6


async def test_record_of_pulsar() -> None:
    """K27: a record as Pulsar writes it, without our mark, is recovered; one with another mark is not."""
    pulsar = messages().PositionInfo(ledgerId=1, entryId=4)
    interval = pulsar.individualDeletedMessages.add()
    interval.lowerEndpoint.ledgerId, interval.lowerEndpoint.entryId = 1, 7
    interval.upperEndpoint.ledgerId, interval.upperEndpoint.entryId = 1, 9
    batch = pulsar.batchedEntryDeletionIndexInfo.add(deleteSet=[0b0011])
    batch.position.ledgerId, batch.position.entryId = 2, 3
    pulsar.properties.add(name="count", value=7)
    other = messages().PositionInfo(ledgerId=3, entryId=9)
    other.properties.add(name="entry-type", value=1)
    home = memory_home()
    async with await home.open() as store:
        log = await store.create(LOG)
        await log.append_many([pulsar.SerializeToString(), other.SerializeToString()])
    for _ in range(2):
        async with home.cursor(LEDGERS) as cursor:
            assert cursor.mark_delete_position == (1, 4)
            assert await acked(cursor) == [(1, 8), (1, 9)]
            assert [index for index in range(4) if await cursor.is_acked((2, 3), index)] == [2, 3]
            await cursor.acknowledge([Position(1, 4)])
            await cursor.put_property("key", "value")
    decoded = decode_marker([(await home.records())[-1]])
    assert decoded.contents.properties == {"count": 7}


# -- rollover --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "object"])
async def test_rollover(kind: str) -> None:
    """K28: marker {0, 1, 2} and an ack in 3: three entries and a marker are copied, then the pending flush follows."""
    home = memory_home() if kind == "memory" else object_home()
    ledgers = dict.fromkeys(range(4), 50)
    async with home.cursor(ledgers) as cursor:
        for entry in (3, 5, 7, 9):
            await cursor.acknowledge([Position(ledger, entry) for ledger in (0, 1, 2)])
            await cursor.flush()
        before = await acked(cursor)
    settings = config_of(managed_ledger_cursor_max_entries_per_ledger=2)
    async with home.cursor(ledgers, settings) as cursor:
        await cursor.acknowledge([Position(3, 3)])
        await cursor.flush()
        assert cursor.statistics().rollovers == 1
        assert {ledger: stored.numbers for ledger, stored in cursor._log.index.items()} == {
            0: (0,),
            1: (1,),
            2: (2,),
            3: (4,),
        }
    assert await home.kinds() == "eeemem"
    assert [name for name in await home.names() if not name.endswith("-snapshot")] == ["cursor-0000000002"]
    async with home.cursor(ledgers) as cursor:
        assert await acked(cursor) == [*before, (3, 3)]


async def test_rollover_that_fails() -> None:
    """K28: a failure at any step of a rollover loses nothing: the flush goes to the old log, or is retried."""
    for skip in range(16):
        home, files = faulty_home()
        ledgers = dict.fromkeys(range(4), 50)
        async with home.cursor(ledgers, config_of(managed_ledger_cursor_max_entries_per_ledger=10)) as cursor:
            for entry in (3, 5, 7):
                await cursor.acknowledge([Position(ledger, entry) for ledger in (0, 1, 2)])
                await cursor.flush()
            files.fail(errno.ENOSPC, "create", "write", "sync", "rename", "sync_folder", "make_folder", skip=skip)
            await cursor.acknowledge([Position(3, 3)])
            try:
                await cursor.flush()
            except LogStorageError:
                await cursor.flush()
            files.heal()
            expected = await acked(cursor)
            found = memory_home(files.inner.after_crash())  # type: ignore[attr-defined]
            async with found.cursor(ledgers) as other:
                assert await acked(other) == expected
        async with home.cursor(ledgers) as cursor:
            assert await acked(cursor) == expected


async def test_rollover_keeps_the_log_small() -> None:
    """Many flushes of a small state do not make storage grow."""
    files = MemoryFiles()
    home = memory_home(files)
    async with home.cursor(LEDGERS, config_of(rollover_bytes=2_000)) as cursor:
        for around in range(300):
            await cursor.reset((1, 0))
            await cursor.acknowledge([Position(1, 1 + around % 18), Position(2, around % 20)])
            await cursor.flush()
        assert cursor.statistics().rollovers > 5
        assert sum(map(len, files.tree().values())) < 10_000
        assert len(await home_names(cursor)) <= 2


async def home_names(cursor: Cursor) -> list[str]:
    """Return the names of all logs beside a cursor's."""
    return await cursor._log._store.names()


async def test_reads_while_it_rolls_over() -> None:
    """A ledger that is read while the log rolls over is found in the new one."""
    ledgers = dict.fromkeys(range(1, 30), 50)
    settings = config_of(managed_ledger_cursor_max_entries_per_ledger=2, max_individual_ack_cache_bytes_per_cursor=0)
    async with memory_home().cursor(ledgers, settings) as cursor:
        for entry in range(1, 40, 2):
            await cursor.acknowledge([Position(ledger, entry) for ledger in ledgers])
            await cursor.flush()
            assert await cursor.is_acked((1, entry))
            assert len(await cursor.individually_deleted()) == len(ledgers) * (entry + 1) // 2
        assert cursor.statistics().rollovers > 1


# -- parts, deltas, and the legacy format ------------------------------------------------------------------------------


async def test_many_deltas() -> None:
    """Deltas are read back to the full marker; now and then a full one is written."""
    home = memory_home()
    ledgers = dict.fromkeys(range(100), 1_000)
    async with home.cursor(ledgers) as cursor:
        await cursor.acknowledge([Position(ledger, 5) for ledger in ledgers])
        await cursor.flush()
        whole = cursor.statistics().bytes_written
        for entry in range(7, 407, 2):
            await cursor.acknowledge([Position(entry % 100, entry)])
            await cursor.flush()
        each = (cursor.statistics().bytes_written - whole) / 200
        expected = await acked(cursor)
    assert each < 200
    async with home.cursor(ledgers) as cursor:
        assert await acked(cursor) == expected


async def test_many_properties() -> None:
    """A changed property is written without the others; now and then all are, and only further ones roll over."""
    home = memory_home()
    expected = {f"name {at}": "x" * 50 for at in range(300)}
    async with home.cursor(LEDGERS, config_of(rollover_bytes=1_000)) as cursor:
        await asyncio.gather(*(cursor.put_property(name, text) for name, text in expected.items()))
        whole = cursor.statistics().bytes_written
        for at in range(0, 200, 2):
            await cursor.put_property(f"name {at}", "y")
            await cursor.put_property(f"name {300 + at}", "z")
            await cursor.remove_property(f"name {at + 1}")
            expected |= {f"name {at}": "y", f"name {300 + at}": "z"}
            del expected[f"name {at + 1}"]
        assert cursor.properties() == expected
        assert (cursor.statistics().bytes_written - whole) / 300 < 400 < whole / 20
        assert cursor.statistics().rollovers < 5
    async with home.cursor(LEDGERS) as cursor:
        assert cursor.properties() == expected


async def test_ledger_in_parts() -> None:
    """K33: a ledger whose state is over the entry limit is cut into parts, and complete when read."""
    home = memory_home()
    ledgers = {1: 200_000}
    async with home.cursor(ledgers, config_of(max_entry_bytes=1_024)) as cursor:
        await cursor.acknowledge(positions(1, range(1, size(100_000, fast=40_000), 3)))
        await cursor.acknowledge(positions(1, range(150_001, 150_400, 2)))
        await cursor.flush()
        assert len(cursor._log.index[1].numbers) > 3
        expected = await acked(cursor)
    assert all(len(record) <= 1_024 for record in await home.records())
    for limit in (0, 3 << 20):
        settings = config_of(max_individual_ack_cache_bytes_per_cursor=limit)
        async with home.cursor(ledgers, settings) as cursor:
            assert await acked(cursor) == expected


async def test_marker_in_parts() -> None:
    """A marker over the entry limit is cut into parts; if one of them is missing it is not used."""
    home = memory_home()
    ledgers = dict.fromkeys(range(1_000), 50)
    async with home.cursor(ledgers, config_of(max_entry_bytes=1_024)) as cursor:
        await cursor.acknowledge([Position(ledger, 5) for ledger in ledgers])
        await cursor.flush()
        first = await acked(cursor)
        await cursor.acknowledge([Position(ledger, 7) for ledger in ledgers])
        await cursor.flush()
        second = await acked(cursor)
    records = await home.records()
    assert all(len(record) <= 1_024 for record in records)
    async with home.cursor(ledgers) as cursor:
        assert await acked(cursor) == second
    async with damaged_home(home, LOG, {len(records) - 2: None}).cursor(ledgers) as cursor:
        assert await acked(cursor) == first


async def test_old_form() -> None:
    """K27: the last record is in the legacy format: it is recovered, and from then on the new format is written."""
    home = memory_home()
    old = config_of(enable_lru_cache_max_unacked_ranges=False)
    sets = {Position(2, 4): BatchSet.acked(10, [2])}
    async with home.cursor(LEDGERS, old) as cursor:
        await cursor.acknowledge([*positions(1, (0, 1, 4, 5, 7)), *sets], batch_sets=sets)
        await cursor.put_property("key", "value")
        expected = await acked(cursor)
    assert set(await home.kinds()) == {"o"}
    for settings in (old, config_of(), config_of(max_individual_ack_cache_bytes_per_cursor=0), old):
        async with home.cursor(LEDGERS, settings) as cursor:
            assert await acked(cursor) == expected
            assert cursor.mark_delete_position == (1, 1)
            assert [index for index in range(10) if await cursor.is_acked((2, 4), index)] == [2]
            assert dict(cursor.properties()) == {"key": "value"}
            await cursor.acknowledge([Position(3, 9 + len(expected))])
            expected = await acked(cursor)
    assert (await home.kinds())[-1] == "o"


async def test_old_form_has_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    """K52: in the legacy format exactly 10 000 ranges are written, lowest first; others are counted, with a warning."""
    home = memory_home()
    ledgers = {1: 100_000}
    async with home.cursor(ledgers, config_of(enable_lru_cache_max_unacked_ranges=False)) as cursor:
        await cursor.acknowledge(positions(1, range(1, 24_001, 2)))
        await cursor.flush()
        assert cursor.statistics().dropped_ranges == 2_000
        await cursor.acknowledge([Position(1, 50_001)])
        await cursor.flush()
        assert cursor.statistics().dropped_ranges == 2_001
        assert len(await cursor.individually_deleted()) == 12_001
    warnings = [record for record in caplog.records if record.name == "pulsar_nack.cursor"]
    assert len(warnings) == 1
    async with home.cursor(ledgers) as cursor:
        found = await acked(cursor)
    assert len(found) == 10_000
    assert found == [(1, entry) for entry in range(1, 20_000, 2)]


async def test_without_the_limit_of_the_old_form() -> None:
    """K52: with one entry for each ledger there is no such limit."""
    home = memory_home()
    async with home.cursor({1: 100_000}) as cursor:
        await cursor.acknowledge(positions(1, range(1, 24_001, 2)))
    async with home.cursor({1: 100_000}) as cursor:
        assert len(await cursor.individually_deleted()) == 12_000


async def test_sequence_decides() -> None:
    """Of two logs with markers, which a failed rollover may leave, the one written last counts."""
    files = FaultyFiles(MemoryFiles())
    home = memory_home(files)
    async with home.cursor(LEDGERS) as cursor:
        await cursor.acknowledge([Position(1, 3)])
        await cursor.flush()
        log: CursorLog = cursor._log
        new, _ = await log._create()
        contents = MarkerContents(Position(1, -1), {}, {})
        await new.append_many(encode_marker(Marker(log.next_sequence(), contents)))
        await new.aclose()
        async with memory_home(files.inner.after_crash()).cursor(LEDGERS) as other:  # type: ignore[attr-defined]
            assert await acked(other) == []
        await cursor.acknowledge([Position(1, 5)])
        await cursor.flush()
        async with memory_home(files.inner.after_crash()).cursor(LEDGERS) as other:  # type: ignore[attr-defined]
            assert await acked(other) == [(1, 3), (1, 5)]
