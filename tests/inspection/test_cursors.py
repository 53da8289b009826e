"""An inspection of a cursor finds the same as the next opening of the cursor."""

from __future__ import annotations

import asyncio
import random
import shutil
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import pytest

from pulsar_nack import Position
from pulsar_nack.config import CursorConfig
from pulsar_nack.cursor import BatchSet, Cursor
from pulsar_nack.errors import LedgerError
from pulsar_nack.inspection import CursorReport, inspect_folder
from pulsar_nack.ledger import LocalLogStore

from .folders import everything, segments

pytest.importorskip("google.protobuf")

from pulsar_nack.cursor.format._marker import Marker, MarkerContents, encode_marker

LEDGERS = dict.fromkeys(range(1, 9), 100)
QUIET = CursorConfig(flush_interval=3_600)


async def write(folder: Path, *steps: Iterable[tuple[int, int]], config: CursorConfig = QUIET) -> None:
    """Acknowledge, and flush after each step."""
    async with await Cursor.open_local(folder, LEDGERS, config) as cursor:
        for step in steps:
            await cursor.acknowledge(list(step))
            await cursor.flush()


def only(folder: Path) -> CursorReport:
    """Return the one cursor of a folder."""
    (store,) = inspect_folder(folder).stores
    (cursor,) = store.cursors
    return cursor


async def test_other_logs_are_not_kept_in_memory(tmp_path: Path) -> None:
    """A foreign log with the name of a cursor's log is read piece by piece."""
    async with await LocalLogStore.open(tmp_path) as store, await store.create("events-0000000001") as log:
        for _ in range(24):
            await log.append(b"x" * 2**20)
    tracemalloc.start()
    try:
        (store_report,) = inspect_folder(tmp_path).stores
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()
    assert [(each.kind, each.records) for each in store_report.logs] == [("plain", 24)]


async def test_state(tmp_path: Path) -> None:
    """A cursor's mark-delete position, properties, and for each ledger its ranges, holes and batches."""
    async with await Cursor.open_local(tmp_path, LEDGERS, QUIET) as cursor:
        await cursor.acknowledge([(1, entry) for entry in (0, 1, 2, 5, 6, 9)])
        await cursor.acknowledge([(3, 0), (3, 4)])
        await cursor.acknowledge([(3, 7)], batch_sets={Position(3, 7): BatchSet.acked(10, [1, 2])})
        await cursor.put_property("colour", "blue")
    report = only(tmp_path)
    assert (report.name, report.form, report.mark_delete) == ("cursor", "ledgers", (1, 2))
    assert report.properties == {"colour": "blue"}
    found = [(each.ledger, each.acked, each.ranges, each.holes, each.batches) for each in report.ledgers]
    assert found == [(1, 3, 2, 2, 0), (3, 2, 2, 1, 1)]
    assert all(each.records and each.bytes for each in report.ledgers)
    assert report.size_bytes > sum(each.bytes for each in report.ledgers)
    assert not inspect_folder(tmp_path).is_damaged
    assert {log.kind for log in inspect_folder(tmp_path).stores[0].logs} == {"cursor"}


@pytest.mark.parametrize("pattern", ["every second", "random", "batches", "many ledgers", "properties"])
async def test_size_is_what_was_written(pattern: str, tmp_path: Path) -> None:
    """K47: a cursor's reported size is within 1 % of its size on storage once all is written, evicted too."""
    ledgers = dict.fromkeys(range(1, 400), 5_000)
    config = QUIET.model_copy(update={"max_individual_ack_cache_bytes_per_cursor": 20_000})
    rnd = random.Random(pattern)
    async with await Cursor.open_local(tmp_path, ledgers, config) as cursor:
        if pattern == "every second":
            await cursor.acknowledge([(ledger, entry) for ledger in range(1, 9) for entry in range(1, 5_000, 2)])
        elif pattern == "random":
            await cursor.acknowledge([(rnd.randint(2, 20), rnd.randint(0, 4_999)) for _ in range(5_000)])
        elif pattern == "batches":
            sets = {Position(rnd.randint(2, 9), rnd.randint(0, 999)): BatchSet.acked(100, [3, 70]) for _ in range(500)}
            await cursor.acknowledge(list(sets), batch_sets=sets)
        elif pattern == "many ledgers":
            await cursor.acknowledge([(ledger, 3) for ledger in range(1, 400)])
        else:
            await asyncio.gather(*(cursor.put_property(f"property {number}", "x" * 100) for number in range(500)))
        await cursor.put_property("colour", "blue" * 10)
        await cursor.flush()
        told = cursor.metadata_size_bytes
    report = only(tmp_path)
    assert report.mark_delete[0] == 1
    statistics = cursor.statistics()
    assert len(report.ledgers) == statistics.ledgers_in_memory + statistics.ledgers_on_storage
    assert (statistics.ledgers_on_storage > 0) == (pattern != "properties")
    assert abs(told - whole_size(report)) <= 0.01 * told


def whole_size(report: CursorReport) -> int:
    """Return what the ledgers take, with a full marker for them: the last one may be a delta."""
    contents = MarkerContents(Position(*report.mark_delete), {}, report.properties)
    marker = Marker(1 << 40, contents, {each.ledger: each.records for each in report.ledgers})
    return sum(each.bytes for each in report.ledgers) + sum(map(len, encode_marker(marker, limit=5 << 20)))


async def test_empty_cursor(tmp_path: Path) -> None:
    """A cursor of which everything is acknowledged in order has a position and no ledgers."""
    await write(tmp_path, [(1, entry) for entry in range(30)])
    report = only(tmp_path)
    assert (report.mark_delete, report.ledgers) == ((1, 29), ())


async def test_old_form(tmp_path: Path) -> None:
    """A cursor in the legacy format is reported as such, with its ledgers."""
    config = QUIET.model_copy(update={"enable_lru_cache_max_unacked_ranges": False})
    await write(tmp_path, [(1, 3), (2, 5)], [(2, 7)], config=config)
    report = only(tmp_path)
    assert (report.form, report.mark_delete) == ("single", (1, -1))
    assert [(each.ledger, each.acked) for each in report.ledgers] == [(1, 1), (2, 2)]


async def test_several_cursors(tmp_path: Path) -> None:
    """Cursors of one store are distinguished by their names."""
    async with await LocalLogStore.open(tmp_path) as store:
        for name in ("billing", "audit-2"):
            async with await Cursor.open(store, LEDGERS, QUIET, name=name) as cursor:
                await cursor.acknowledge([(1, 1)])
    (found,) = inspect_folder(tmp_path).stores
    assert [cursor.name for cursor in found.cursors] == ["audit-2", "billing"]


async def test_damaged_marker(tmp_path: Path) -> None:
    """If the last write is torn, the marker before it is reported, with the damage."""
    await write(tmp_path, [(1, 1)], [(1, 3)], [(1, 5)])
    file = segments(tmp_path, "cursor-0000000001")[-1]
    whole = only(tmp_path)
    file.write_bytes(file.read_bytes()[:-3])
    report = only(tmp_path)
    assert report.marker < whole.marker
    assert [each.acked for each in report.ledgers] == [2]
    assert [damage.kind for damage in inspect_folder(tmp_path).damage] == ["torn"]


async def test_no_usable_marker(tmp_path: Path) -> None:
    """Without a usable marker the last snapshot's position is reported."""
    await write(tmp_path, [(1, 0), (1, 1), (1, 5)])
    for file in segments(tmp_path, "cursor-0000000001"):
        data = bytearray(file.read_bytes())
        data[60] ^= 1
        file.write_bytes(data)
    report = only(tmp_path)
    assert (report.form, report.mark_delete, report.ledgers) == ("snapshot", (1, 1), ())
    assert "no marker of the cursor cursor can be used" in [each.reason for each in inspect_folder(tmp_path).damage]


async def as_opened(folder: Path, copy: Path) -> tuple[tuple[int, int], list[tuple[Position, Position]]] | None:
    """Return the position and the ranges of a cursor opened on a copy, None if it cannot be opened."""
    shutil.copytree(folder, copy)
    try:
        async with await Cursor.open_local(copy, LEDGERS, QUIET) as cursor:
            return cursor.mark_delete_position, await cursor.individually_deleted()
    except LedgerError:
        return None
    finally:
        shutil.rmtree(copy)


@pytest.mark.parametrize("seed", range(12))
async def test_agrees_with_the_next_opening(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With any byte wrong, or cut off anywhere, position and counts are those with which the cursor is opened."""
    monkeypatch.setattr("pulsar_nack.inspection._store._PAUSE_S", 0)  # nothing writes here
    rnd = random.Random(seed)
    folder = tmp_path / "cursor"
    steps = [[(rnd.randint(1, 4), rnd.randint(0, 30)) for _ in range(rnd.randint(1, 25))] for _ in range(6)]
    await write(folder, *steps)
    (file,) = segments(folder, "cursor-0000000001")
    whole = file.read_bytes()
    for _ in range(12):
        data = bytearray(whole)
        at = rnd.randrange(len(whole))
        if rnd.random() < 0.5:
            data[at] ^= 1 << rnd.randrange(8)
        else:
            del data[max(at, 30) :]
        file.write_bytes(data)
        before = everything(folder)
        (store,) = inspect_folder(folder).stores
        assert everything(folder) == before
        opened = await as_opened(folder, tmp_path / "copy")
        if opened is None or not store.cursors:
            assert opened is None or opened == ((1, -1), [])
            continue
        position, ranges = opened
        (report,) = store.cursors
        assert report.mark_delete == position
        counts: dict[int, int] = {}
        for after, last in ranges:
            counts[last.ledger] = counts.get(last.ledger, 0) + last.entry - after.entry
        assert {each.ledger: each.acked for each in report.ledgers} == counts
