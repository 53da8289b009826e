"""The tracker in a folder: opening, a second opener, and folders that are full, without rights, or damaged."""

from __future__ import annotations

import asyncio
import errno
import json
import math
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from pulsar_nack import BucketDelayedDeliveryTracker, ClosedError, InvalidArgumentError, Position
from pulsar_nack.clock import WallClock
from pulsar_nack.delayed import LogBucketTracker
from pulsar_nack.delayed.format import decode_footer
from pulsar_nack.errors import (
    LogCorruptedError,
    LogLockedError,
    LogStorageError,
    LogVersionError,
    SnapshotFormatError,
    SnapshotNotFoundError,
)
from pulsar_nack.ledger import LocalLogStore
from pulsar_nack.ledger.format import SEGMENT_HEADER_SIZE
from pulsar_nack.testing import FaultyFiles, ManualClock, OsFiles

from .stage import config_of, drain, positions


async def open_local(path: Path, clock: ManualClock | None = None, **settings: Any) -> LogBucketTracker:
    """Open a tracker in a folder."""
    return await BucketDelayedDeliveryTracker.open_local(path, config_of(**settings), clock=clock or ManualClock(0))


async def filled(path: Path, last: int = 11) -> None:
    """Let a tracker leave buckets of five in a folder: (i, i) is due at 10 i."""
    async with await open_local(path) as tracker:
        for i in range(1, last + 1):
            assert tracker.add_message(i, i, 10 * i)
        await tracker.wait_until_idle()
        assert tracker.statistics().buckets == (last - 1) // 5


def snapshot_files(path: Path) -> list[Path]:
    """Return the files of the snapshots, in order of creation."""
    return sorted(path.glob("snapshot-*.log/*.segment"))


def everything(path: Path) -> dict[str, bytes]:
    """Return everything in a folder, except locks."""
    return {str(each): each.read_bytes() for each in path.rglob("*") if each.is_file() and each.suffix != ".lock"}


async def test_survives_a_restart(tmp_path: Path) -> None:
    """Sealed and acknowledged messages are known when the folder is opened again; a missing folder is created."""
    path = tmp_path / "new" / "delayed"
    await filled(path)
    clock = ManualClock(0)
    async with await open_local(path, clock) as tracker:
        assert isinstance(tracker, BucketDelayedDeliveryTracker)
        assert tracker.number_of_delayed_messages == 10
        await tracker.cursor.mark_delete(Position(3, 3))
        assert tracker.trim() == 3
    async with await open_local(path, clock) as tracker:
        assert tracker.cursor.mark_delete_position == Position(3, 3)
        clock.set(100)
        assert await drain(tracker) == positions(*range(4, 11))
    async with await open_local(path, clock) as tracker:
        assert tracker.number_of_delayed_messages == 0
        await tracker.wait_until_idle()
        assert snapshot_files(path) == []


async def test_a_second_opener(tmp_path: Path) -> None:
    """A second tracker on the folder is refused with an error that says so, and the first one is not disturbed."""
    async with await open_local(tmp_path) as tracker:
        for _ in range(2):
            with pytest.raises(LogLockedError, match="one owner at a time"):
                await open_local(tmp_path)
        for i in range(1, 12):
            assert tracker.add_message(i, i, 10 * i)
        await tracker.wait_until_idle()
        assert tracker.statistics().operations["create", "failed"] == 0
    async with await open_local(tmp_path) as tracker:
        assert tracker.number_of_delayed_messages == 10


async def test_closes_what_it_opened(tmp_path: Path) -> None:
    """Closing closes the cursor too, twice is harmless, and the folder is free."""
    tracker = await open_local(tmp_path)
    cursor = tracker.cursor
    await tracker.aclose()
    await tracker.aclose()
    with pytest.raises(ClosedError):
        await cursor.mark_delete(Position(1, 1))
    with pytest.raises(ClosedError):
        tracker.add_message(1, 1, 10)
    await (await open_local(tmp_path)).aclose()


async def test_closes_while_it_stores(tmp_path: Path) -> None:
    """Closing while a snapshot is being written leaves nothing that the next tracker would read as a snapshot."""
    for rounds in range(0, 40, 4):
        path = tmp_path / str(rounds)
        tracker = await open_local(path)
        for i in range(1, 12):
            assert tracker.add_message(i, i, 10 * i)
        for _ in range(rounds):
            await asyncio.sleep(0.0002)
        await tracker.aclose()
        async with await open_local(path) as tracker:
            await tracker.wait_until_idle()
            assert tracker.number_of_delayed_messages in (0, 5, 10)
            assert len(snapshot_files(path)) == tracker.statistics().buckets
            assert len(tracker.cursor.properties()) == tracker.statistics().buckets


@pytest.mark.parametrize("rounds", range(0, 40, 4))
async def test_cancelled_opening(tmp_path: Path, rounds: int) -> None:
    """An opening that is cancelled at any time leaves the folder free."""
    await filled(tmp_path)
    task = asyncio.create_task(open_local(tmp_path))
    for _ in range(rounds):
        await asyncio.sleep(0.0002)
    task.cancel()
    (found,) = await asyncio.gather(task, return_exceptions=True)
    if isinstance(found, LogBucketTracker):
        await found.aclose()
    async with await open_local(tmp_path) as tracker:
        assert tracker.number_of_delayed_messages == 10


async def test_bad_arguments(tmp_path: Path) -> None:
    """A coroutine function is refused before anything is created."""

    async def wake() -> None: ...

    with pytest.raises(InvalidArgumentError, match="on_due"):
        await BucketDelayedDeliveryTracker.open_local(tmp_path / "a", on_due=wake)
    assert list(tmp_path.iterdir()) == []


async def test_no_folder(tmp_path: Path) -> None:
    """If there can be no folder, the error says which and why."""
    (tmp_path / "file").write_text("")
    with pytest.raises(LogStorageError, match=r"file/delayed.*Not a directory"):
        await open_local(tmp_path / "file" / "delayed")


@pytest.mark.parametrize("operation", ["names", "lock", "open", "create", "make_folder"])
async def test_no_rights(tmp_path: Path, operation: str) -> None:
    """A folder without rights is refused with the system's text, and unchanged."""
    await filled(tmp_path)
    before = everything(tmp_path)
    files = FaultyFiles(OsFiles())
    files.fail(errno.EACCES, operation, times=math.inf)
    name = "fresh" if operation in ("create", "make_folder") else "."
    with pytest.raises(LogStorageError, match="Permission denied"):
        async with await LocalLogStore.open(tmp_path / name, files=files) as store:
            await LogBucketTracker.open_store(store)
    files.heal()
    assert everything(tmp_path) == before
    async with await open_local(tmp_path) as tracker:
        assert tracker.number_of_delayed_messages == 10


async def test_read_only_folder(tmp_path: Path) -> None:
    """Without write access opening fails before anything counts as recovered."""
    await filled(tmp_path)
    files = FaultyFiles(OsFiles())
    files.fail(errno.EROFS, "write", "create", "truncate", "remove", "rename", "lock", times=math.inf)
    async with await LocalLogStore.open(tmp_path, files=files) as store:
        with pytest.raises(LogStorageError, match="Read-only file system"):
            await LogBucketTracker.open_store(store)


async def test_full_disk(tmp_path: Path) -> None:
    """On a full disk messages stay in memory and come from there; with room they are stored; nothing is lost."""
    clock, files = ManualClock(0), FaultyFiles(OsFiles())
    async with (
        await LocalLogStore.open(tmp_path, files=files) as store,
        await LogBucketTracker.open_store(store, config_of(), clock=clock) as tracker,
    ):
        files.fail(errno.ENOSPC, "create", "write", times=math.inf)
        for i in range(1, 22):
            assert tracker.add_message(i, i, 10_000 * i)
        await tracker.wait_until_idle()
        statistics = tracker.statistics()
        assert (statistics.buckets, statistics.unsealed) == (0, 21)
        assert "No space left on device" in str(statistics.last_error)
        with pytest.raises(LogStorageError, match="No space left on device"):
            await tracker.cursor.mark_delete(Position(1, 1))
        clock.set(20_000)
        assert await drain(tracker) == positions(1, 2)
        files.heal()
        for _ in range(40):
            clock.advance(1_000)
            await tracker.wait_until_idle()
        assert tracker.statistics().buckets == 4
        clock.set(210_000)
        assert await drain(tracker) == positions(*range(3, 22))


@pytest.mark.parametrize("how", ["changed", "cut", "gone", "without end", "foreign"])
async def test_damaged_snapshots(tmp_path: Path, how: str) -> None:
    """A damaged snapshot is dropped, and named in the statistics; its messages are added again; others stay."""
    await filled(tmp_path)
    file = snapshot_files(tmp_path)[0]
    data = file.read_bytes()
    if how == "gone":
        file.unlink()
        file.parent.rmdir()
    else:
        changed = {"changed": data[:50] + b"?" + data[51:], "cut": data[:60], "without end": data[:-24]}
        file.write_bytes(changed.get(how, b"something else entirely"))
    clock = ManualClock(0)
    async with await open_local(tmp_path, clock) as tracker:
        await tracker.wait_until_idle()
        assert tracker.number_of_delayed_messages == 5
        expected = SnapshotNotFoundError if how == "gone" else SnapshotFormatError
        assert isinstance(tracker.statistics().last_error, expected)
        assert len(snapshot_files(tmp_path)) == len(tracker.cursor.properties()) == 1
        for i in range(1, 12):
            assert tracker.add_message(i, i, 10 * i)
        await tracker.wait_until_idle()
        clock.set(110)
        assert await drain(tracker) == positions(*range(1, 12))


async def test_snapshots_of_a_later_release(tmp_path: Path) -> None:
    """A later release's snapshot is kept, and named; its messages are added again, and come once."""
    await filled(tmp_path)
    async with await LocalLogStore.open(tmp_path) as store:
        name = next(name for name in await store.names() if name.startswith("snapshot-"))
        log = await store.open_log(name)
        *entries, footer = [record.data async for record in log.records()]
        await log.delete()
        async with await store.create(name) as log:
            newer = decode_footer(footer, name)._asdict() | {"format": 2, "parts": {}, "more": 1}
            await log.append_many([*entries, json.dumps(newer).encode()])
            await log.seal()
    clock = ManualClock(0)
    async with await open_local(tmp_path, clock) as tracker:
        assert tracker.number_of_delayed_messages == 5
        assert isinstance(tracker.statistics().last_error, LogVersionError)
        assert tracker.statistics().is_recovering
        for i in range(1, 12):
            tracker.add_message(i, i, 10 * i)
        assert tracker.number_of_delayed_messages == 11
        clock.set(110)
        assert await drain(tracker) == positions(*range(1, 12))
    assert any(name in str(file) for file in snapshot_files(tmp_path))
    async with await LocalLogStore.open(tmp_path) as store:
        await store.delete(name)
        async with await store.create(name) as log:
            await log.append_many([*entries, footer])
            await log.seal()
    async with await open_local(tmp_path) as tracker:  # the later release, at an earlier time
        assert tracker.contains_message(1, 1)


@pytest.mark.parametrize("how", ["changed", "foreign", "newer"])
async def test_damaged_cursor(tmp_path: Path, how: str) -> None:
    """A damaged cursor is refused with file and offset, and nothing in the folder is changed or dropped."""
    await filled(tmp_path)
    (file,) = tmp_path.glob("delayed.cursor-*.log/*.segment")
    data = bytearray(file.read_bytes())
    if how == "newer":
        data[4:6] = b"\x00\x02"
        end = SEGMENT_HEADER_SIZE - 4
        data[end : end + 4] = crc32(data[:end]).to_bytes(4, "big")
    else:
        data[60] ^= 1
    file.write_bytes(b"something else entirely, and long enough" if how == "foreign" else bytes(data))
    before = everything(tmp_path)
    with pytest.raises(
        LogCorruptedError if how != "newer" else LogVersionError, match=r"delayed\.cursor-0000000001.*\.segment"
    ):
        await open_local(tmp_path)
    assert everything(tmp_path) == before
    assert not list(tmp_path.glob("*.new"))


async def test_foreign_files(tmp_path: Path) -> None:
    """Foreign files in the folder are left alone and harmless."""
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "cursor-1.txt").write_text("mine")
    await filled(tmp_path)
    async with await open_local(tmp_path) as tracker:
        await tracker.clear()
        await tracker.wait_until_idle()
    names = {each.name for each in tmp_path.iterdir() if each.suffix != ".lock"}
    assert names == {"notes.txt", "snapshots", "cursor-1.txt", "delayed.cursor-0000000001.log"}


async def test_wakes_and_reads_the_wall_clock(tmp_path: Path) -> None:
    """Without a clock times are wall time, and the dispatcher is called."""
    woken = asyncio.Event()
    async with await BucketDelayedDeliveryTracker.open_local(tmp_path, on_due=woken.set) as tracker:
        assert not tracker.add_message(1, 1, 1_600_000_000_000)
        assert tracker.add_message(1, 2, WallClock().now_ms() + 1_100)
        await asyncio.wait_for(woken.wait(), 20)
        assert tracker.get_scheduled_messages(10) == [Position(1, 2)]
