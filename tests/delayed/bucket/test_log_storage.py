"""The storage of snapshots on logs: atomic creation, ids, cancelling, open handles, damage."""

from __future__ import annotations

import asyncio
import errno
import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from pulsar_nack import BucketSnapshotStorage, ClosedError, InvalidArgumentError
from pulsar_nack.delayed import LogSnapshotStorage, SupportsSnapshotListing
from pulsar_nack.delayed.format import Footer, decode_footer, split_entries
from pulsar_nack.errors import (
    LogForeignFilesError,
    LogStorageError,
    LogVersionError,
    SnapshotFormatError,
    SnapshotNotFoundError,
)
from pulsar_nack.ledger import LocalLogStore
from pulsar_nack.ledger.format import group_records
from pulsar_nack.testing import FaultyFiles, ManualClock, MemoryFiles, OsFiles

ENTRIES = (b"metadata", [b"one", b"", b"three" * 100])


@pytest.fixture
def files() -> FaultyFiles:
    """Return real files that fail on demand."""
    return FaultyFiles(OsFiles())


@pytest.fixture
async def store(tmp_path: Path, files: FaultyFiles) -> AsyncIterator[LocalLogStore]:
    """Open a store of logs over them."""
    async with await LocalLogStore.open(tmp_path / "logs", files=files) as store:
        yield store


@pytest.fixture
async def storage(store: LocalLogStore) -> AsyncIterator[LogSnapshotStorage]:
    """Open a storage with small limits."""
    async with LogSnapshotStorage(store, max_open=2, max_append=128) as storage:
        yield storage


async def make(storage: LogSnapshotStorage, topic: str = "t", cursor: str = "c") -> int:
    """Create a snapshot."""
    return await storage.create_bucket_snapshot(*ENTRIES, "key", topic, cursor)


def the_file(tmp_path: Path) -> Path:
    """Return the file of the only snapshot."""
    (file,) = tmp_path.glob("logs/snapshot-*.log/*.segment")
    return file


async def reopened(store: LocalLogStore) -> LogSnapshotStorage:
    """Return another storage on the same store, as after a restart."""
    storage = LogSnapshotStorage(store)
    await storage.start()
    return storage


async def test_what_was_stored_is_read(storage: LogSnapshotStorage, store: LocalLogStore) -> None:
    """Entries are equal when read, singly and together, however they were split, after a restart too."""
    assert isinstance(storage, BucketSnapshotStorage)
    assert isinstance(storage, SupportsSnapshotListing)
    snapshot_id = await make(storage)
    for each in (storage, await reopened(store)):
        assert await each.get_bucket_snapshot_metadata(snapshot_id) == b"metadata"
        assert await each.get_bucket_snapshot_segment(snapshot_id, 1, 3) == ENTRIES[1]
        assert await each.get_bucket_snapshot_segment(snapshot_id, 3, 3) == [ENTRIES[1][2]]
        assert await each.get_bucket_snapshot_segment(snapshot_id, 3, 9) == [ENTRIES[1][2]]
        assert await each.get_bucket_snapshot_segment(snapshot_id, 4, 4) == []
        assert await each.get_bucket_snapshot_length(snapshot_id) > 500
    (name,) = await store.names()
    log = await store.open_log(name, read_only=True)
    assert log.is_sealed
    assert (await log.read(0, 1)) == [b"metadata", b"one"]


async def test_more_than_a_log_takes_at_once(store: LocalLogStore) -> None:
    """Entries of more than 16 MiB, singly and together, are stored."""
    async with LogSnapshotStorage(store) as storage:
        large = [bytes([i]) * (9 << 20) for i in range(2)] + [b"x" * (17 << 20)]
        snapshot_id = await storage.create_bucket_snapshot(large[2], large, "key", "", "")
        assert await storage.get_bucket_snapshot_metadata(snapshot_id) == large[2]
        assert await storage.get_bucket_snapshot_segment(snapshot_id, 1, 3) == large


async def test_ids_are_not_used_again(store: LocalLogStore) -> None:
    """Ids grow, also if the clock stands, goes back or is far off, and after all snapshots were deleted."""
    ids: list[int] = []
    deleted: set[int] = set()
    for now in (10**12, 10**12 - 5, 10**12, 1 << 45, 1 << 50):
        async with LogSnapshotStorage(store, clock=ManualClock(now)) as storage:
            ids += [await make(storage) for _ in range(3)]
            assert ids == sorted(ids)
            deleted.add(ids[-2])
            await storage.delete_bucket_snapshot(ids[-2])
            assert set(await storage.list_bucket_snapshots("t", "c")) == set(ids) - deleted
    assert len(set(ids)) == 15
    assert all(0 < each < 2**63 for each in ids)


async def test_deletes(storage: LogSnapshotStorage, store: LocalLogStore) -> None:
    """A deleted snapshot is gone for all calls and from the store; a missing one raises an error."""
    snapshot_id = await make(storage)
    await storage.get_bucket_snapshot_metadata(snapshot_id)
    await storage.delete_bucket_snapshot(snapshot_id)
    assert await store.names() == []
    for missing in (snapshot_id, 7):
        with pytest.raises(SnapshotNotFoundError, match=str(missing)):
            await storage.get_bucket_snapshot_metadata(missing)
        with pytest.raises(SnapshotNotFoundError):
            await storage.get_bucket_snapshot_length(missing)
        with pytest.raises(SnapshotNotFoundError):
            await storage.delete_bucket_snapshot(missing)


async def test_lists_those_of_a_cursor(storage: LogSnapshotStorage, store: LocalLogStore) -> None:
    """The list has the snapshots of a topic and cursor, and nothing else in the store."""
    await (await store.create("cursor-1")).aclose()
    mine = [await make(storage), await make(storage)]
    other = await make(storage, cursor="d")
    await make(storage, "t,c", "")
    for each in (storage, await reopened(store)):
        assert await each.list_bucket_snapshots("t", "c") == mine
        assert await each.list_bucket_snapshots("t", "d") == [other]
        assert await each.list_bucket_snapshots("", "") == []


async def test_unfinished_ones_are_listed_once_nobody_makes_them(store: LocalLogStore, files: FaultyFiles) -> None:
    """A snapshot being created is not listed; a crash's leftover is listed, cannot be read, and can be deleted."""
    storage = LogSnapshotStorage(store)
    task = asyncio.create_task(make(storage))
    while not await store.names():
        await asyncio.sleep(0)
    listed = await storage.list_bucket_snapshots("t", "c")
    assert listed in ([], [await task])
    name = f"snapshot-{(await store.names())[0].split('-')[1]}-5"
    await (await store.create(name)).aclose()
    storage = await reopened(store)
    assert await storage.list_bucket_snapshots("t", "c") == [5, task.result()]
    with pytest.raises(SnapshotFormatError, match="never finished"):
        await storage.get_bucket_snapshot_metadata(5)
    await storage.delete_bucket_snapshot(5)
    assert await storage.list_bucket_snapshots("t", "c") == [task.result()]


@pytest.mark.parametrize("operation", ["make_folder", "create", "write", "sync", "rename", "sync_folder"])
@pytest.mark.parametrize("skip", range(4))
async def test_full_disk(
    storage: LogSnapshotStorage, store: LocalLogStore, files: FaultyFiles, operation: str, skip: int
) -> None:
    """A creation that fails at any step leaves nothing behind, says why, and works when there is room."""
    files.fail(errno.ENOSPC, operation, skip=skip)
    (found,) = await asyncio.gather(make(storage), return_exceptions=True)
    if not isinstance(found, int):
        assert isinstance(found, LogStorageError)
        assert "No space left on device" in str(found)
        assert await store.names() == []
    files.heal()
    snapshot_id = await make(storage)
    assert snapshot_id in await storage.list_bucket_snapshots("t", "c")
    assert await storage.get_bucket_snapshot_segment(snapshot_id, 1, 3) == ENTRIES[1]


async def test_what_could_not_be_deleted_is_deleted_later(
    storage: LogSnapshotStorage, store: LocalLogStore, files: FaultyFiles
) -> None:
    """Leftovers of a failed creation are deleted before the next one."""
    files.fail(errno.EIO, "write", "rename", skip=3, times=math.inf)
    with pytest.raises(LogStorageError):
        await make(storage)
    assert len(await store.names()) == 1
    files.heal()
    snapshot_id = await make(storage)
    assert await storage.list_bucket_snapshots("t", "c") == [snapshot_id]
    assert len(await store.names()) == 1


@pytest.mark.parametrize("rounds", range(0, 60, 5))
async def test_cancelled_creations(store: LocalLogStore, rounds: int) -> None:
    """A creation that is cancelled at any time has created nothing when the storage is closed; others continue."""
    async with LogSnapshotStorage(store, max_append=64) as storage:
        kept = await make(storage)
        task = asyncio.create_task(make(storage))
        for _ in range(rounds):
            await asyncio.sleep(0.0001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await storage.list_bucket_snapshots("t", "c") == [kept] if task.cancelled() else [kept, task.result()]
    assert len(await store.names()) == (1 if task.cancelled() else 2)


async def test_the_end_of_a_block_closes_as_the_storage_does(store: LocalLogStore) -> None:
    """A user's subclass of this storage is closed by its own method."""
    closed: list[str] = []

    class Noting(LogSnapshotStorage):
        async def close(self) -> None:
            closed.append("before")
            await super().close()
            closed.append("after")

    async with Noting(store) as storage:
        await make(storage)
    assert closed == ["before", "after"]
    with pytest.raises(ClosedError):
        await make(storage)


async def test_cancelled_reads(storage: LogSnapshotStorage) -> None:
    """A cancelled read does not affect the others, which use the same handle."""
    snapshot_id = await make(storage)
    for _ in range(10):
        tasks = [asyncio.create_task(storage.get_bucket_snapshot_metadata(snapshot_id)) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert results[1:] == [b"metadata"] * 2
        storage._open_snapshots.drop_all()


async def test_few_are_open(storage: LogSnapshotStorage, files: FaultyFiles) -> None:
    """At most the limit stay open, the last ones used; many can still be read at the same time."""
    ids = [await make(storage) for _ in range(6)]
    await asyncio.gather(*(storage.get_bucket_snapshot_metadata(each) for each in ids * 3))
    assert len(storage._open_snapshots) == 2
    for each in (ids[0], ids[1], ids[0]):
        await storage.get_bucket_snapshot_metadata(each)
    opened = files.history.count("open")
    await storage.get_bucket_snapshot_segment(ids[0], 1, 3)
    assert files.history.count("open") == opened + 1  # the read itself; opening looks at the file first
    await storage.delete_bucket_snapshot(ids[0])
    assert len(storage._open_snapshots) == 1


async def test_a_failed_opening_is_tried_again(storage: LogSnapshotStorage, files: FaultyFiles) -> None:
    """A snapshot that could not be opened is opened again by the next call."""
    snapshot_id = await make(storage)
    files.fail(errno.EIO, "open")
    with pytest.raises(LogStorageError, match="Input/output error"):
        await storage.get_bucket_snapshot_metadata(snapshot_id)
    assert await storage.get_bucket_snapshot_metadata(snapshot_id) == b"metadata"


async def test_closed(store: LocalLogStore) -> None:
    """After closing calls are refused; closing twice is harmless; the store stays open."""
    storage = await reopened(store)
    snapshot_id = await make(storage)
    await storage.close()
    await storage.close()
    with pytest.raises(ClosedError):
        await make(storage)
    with pytest.raises(ClosedError):
        await storage.get_bucket_snapshot_metadata(snapshot_id)
    with pytest.raises(ClosedError):
        await storage.delete_bucket_snapshot(snapshot_id)
    assert len(await store.names()) == 1


async def test_bad_arguments(storage: LogSnapshotStorage, store: LocalLogStore) -> None:
    """Invalid limits are refused by name."""
    snapshot_id = await make(storage)
    with pytest.raises(InvalidArgumentError, match="first"):
        await storage.get_bucket_snapshot_segment(snapshot_id, -1, 1)
    with pytest.raises(InvalidArgumentError, match="last"):
        await storage.get_bucket_snapshot_segment(snapshot_id, 2, 1)
    with pytest.raises(InvalidArgumentError, match="max_open"):
        LogSnapshotStorage(store, max_open=0)
    with pytest.raises(InvalidArgumentError, match="max_append"):
        LogSnapshotStorage(store, max_append=16 << 20)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
async def test_damaged(storage: LogSnapshotStorage, store: LocalLogStore, tmp_path: Path, part: float) -> None:
    """Any changed byte is detected, and reported as damage of this snapshot, which can be deleted."""
    snapshot_id = await make(storage)
    data = bytearray(the_file(tmp_path).read_bytes())
    data[int(part * len(data))] ^= 1
    the_file(tmp_path).write_bytes(data)
    for each in (storage, await reopened(store)):
        with pytest.raises(SnapshotFormatError, match=rf"snapshot {snapshot_id}"):
            await each.get_bucket_snapshot_segment(snapshot_id, 0, 3)
    await storage.delete_bucket_snapshot(snapshot_id)
    assert await store.names() == []


async def test_cut_anywhere(storage: LogSnapshotStorage, store: LocalLogStore, tmp_path: Path) -> None:
    """A file that was cut at any byte is not read as a snapshot."""
    snapshot_id = await make(storage)
    file = the_file(tmp_path)
    data = file.read_bytes()
    for size in [0, *range(5, len(data), 37), len(data) - 1]:
        file.write_bytes(data[:size])
        with pytest.raises(SnapshotFormatError, match=rf"snapshot {snapshot_id}"):
            await (await reopened(store)).get_bucket_snapshot_metadata(snapshot_id)


async def test_foreign_files(storage: LogSnapshotStorage, tmp_path: Path) -> None:
    """A snapshot whose folder contains a foreign file is read, and not deleted before that file is moved away."""
    snapshot_id = await make(storage)
    foreign = the_file(tmp_path).with_name("notes.txt")
    foreign.touch()
    assert await storage.get_bucket_snapshot_metadata(snapshot_id) == b"metadata"
    with pytest.raises(LogForeignFilesError, match=r"notes\.txt"):
        await storage.delete_bucket_snapshot(snapshot_id)
    foreign.unlink()
    await storage.delete_bucket_snapshot(snapshot_id)


FOOTER = {"format": 1, "key": "", "topic": "", "cursor": "", "entries": 1, "parts": {}}


@pytest.mark.parametrize(
    "footer",
    [
        b"no footer",
        b"[]",
        {},
        {**FOOTER, "format": "1"},
        {**FOOTER, "entries": 2},
        {**FOOTER, "entries": -1},
        {**FOOTER, "entries": 10**12},
        {**FOOTER, "parts": {"0": 2}},
        {**FOOTER, "parts": {"7": 2}},
        {**FOOTER, "parts": {"0": 0}},
        {**FOOTER, "parts": 3},
        {**FOOTER, "more": 3},
    ],
)
async def test_sealed_logs_that_are_no_snapshots(store: LocalLogStore, footer: bytes | dict[str, object]) -> None:
    """A sealed log without a snapshot's footer is refused as a snapshot."""
    async with await store.create(f"snapshot-{'0' * 32}-5") as log:
        await log.append_many([b"metadata", footer if isinstance(footer, bytes) else json.dumps(footer).encode()])
        await log.seal()
    with pytest.raises(SnapshotFormatError, match="snapshot 5: its"):
        await (await reopened(store)).get_bucket_snapshot_metadata(5)


async def test_a_later_release(store: LocalLogStore) -> None:
    """A snapshot of a later release is distinguished from a damaged one."""
    async with await store.create(f"snapshot-{'0' * 32}-5") as log:
        await log.append_many([b"metadata", json.dumps({"format": 2}).encode()])
        await log.seal()
    with pytest.raises(LogVersionError, match="version 2"):
        await (await reopened(store)).get_bucket_snapshot_metadata(5)


async def test_holds_on_simulated_files_too() -> None:
    """A stored snapshot is complete after an immediate crash."""
    files = MemoryFiles(Random(3))
    folder = Path("/some/logs")
    store = await LocalLogStore.open(folder, files=files)
    snapshot_id = await make(LogSnapshotStorage(store))
    async with await LocalLogStore.open(folder, files=files.after_crash()) as store:
        assert await (await reopened(store)).get_bucket_snapshot_segment(snapshot_id, 1, 3) == ENTRIES[1]


def test_splits_and_groups() -> None:
    """Records are no larger than asked for, groups only if they are a single record, and nothing is lost."""
    records, parts = split_entries([b"abc", b"", b"0123456789", b"x"], 4)
    assert (records, parts) == ([b"abc", b"", b"0123", b"4567", b"89", b"x"], {2: 3})
    assert list(group_records(records, 12)) == [[b"abc", b""], [b"0123"], [b"4567"], [b"89", b"x"]]
    assert list(group_records([], 12)) == []
    footer = Footer("k", "t", "c", 4, parts)
    assert decode_footer(footer.encode(), "log") == footer
    assert footer.records == len(records)
