"""How failed and slow operations and cancellation affect a log, on real files with injected faults."""

from __future__ import annotations

import asyncio
import errno
import gc
import math
import os
import threading
import weakref
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import anyio
import pytest

from pulsar_nack.errors import LogLockedError, LogNotFoundError, LogStorageError
from pulsar_nack.ledger import LocalLog, LocalLogStore
from pulsar_nack.ledger import files as file_operations
from pulsar_nack.ledger._local import LogDirectory
from pulsar_nack.ledger._log import GroupCommit
from pulsar_nack.ledger.faults import FaultyFiles, SimulatedCrash
from pulsar_nack.ledger.files import OsFiles
from pulsar_nack.ledger.memory import MemoryFiles
from tests.patience import patience

from .homes import content, reopened

FULL = "No space left on device"


class SlowFiles(FaultyFiles):
    """Real files whose syncs wait while they are held."""

    def __init__(self) -> None:
        super().__init__(OsFiles())
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.syncs = 0

    def sync(self, descriptor: int) -> None:
        """Wait, then sync."""
        self.syncs += 1
        assert self.may_sync.wait(20)
        super().sync(descriptor)

    async def until_syncing(self, count: int) -> None:
        """Wait until ``count`` syncs have begun."""
        while self.syncs < count:
            await asyncio.sleep(0.001)


@pytest.fixture
def files() -> SlowFiles:
    """Return real files that can be made slow or faulty."""
    return SlowFiles()


@pytest.fixture
async def store(tmp_path: Path, files: SlowFiles) -> AsyncIterator[LocalLogStore]:
    """Open a store over these files."""
    async with await LocalLogStore.open(tmp_path / "logs", max_segment_bytes=2048, files=files) as store:
        yield store
        files.may_sync.set()


async def test_disk_full(store: LocalLogStore, files: SlowFiles, tmp_path: Path) -> None:
    """A full disk fails the append with a clear error; nothing of it stays, and the log works once there is room."""
    log = await store.create("a")
    await log.append(b"x")
    (file,) = (tmp_path / "logs" / "a.log").glob("*.segment")
    before = file.read_bytes()
    files._most_per_write = 10
    files.fail(errno.ENOSPC, "write", skip=2, times=math.inf)
    for _ in range(3):
        with pytest.raises(LogStorageError, match=f"log a: cannot append: {FULL}") as caught:
            await log.append(b"too much for the disk")
        assert isinstance(caught.value.__cause__, OSError)
        assert file.read_bytes() == before
    assert (log.length, await content(log)) == (1, [b"x"])
    files.heal()
    assert await log.append(b"y") == 1
    assert len(list(file.parent.iterdir())) == 1
    assert await content(await reopened(store, log)) == [b"x", b"y"]


async def test_each_waiting_append_gets_its_own_error(store: LocalLogStore, files: SlowFiles) -> None:
    """When a shared write fails, every append in it fails, each with its own error object."""
    log = await store.create("a")
    files.fail(errno.ENOSPC, "write")
    results = await asyncio.gather(*(log.append(b"x") for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [LogStorageError] * 3
    assert len(set(map(id, results))) == 3


async def test_failed_sync_is_not_tried_again(store: LocalLogStore, files: SlowFiles, tmp_path: Path) -> None:
    """After a failed sync the file is not written again: the log continues in a new one, without that record."""
    log = await store.create("a")
    await log.append(b"x")
    files.fail(errno.EIO, "sync")
    files.fail(errno.EIO, "truncate")
    with pytest.raises(LogStorageError, match="Input/output error"):
        await log.append(b"lost")
    assert await content(log) == [b"x"]
    first = tmp_path / "logs" / "a.log" / "00000000000000000000.segment"
    before = first.read_bytes()
    assert b"lost" in before
    assert await log.append(b"y") == 1
    assert first.read_bytes() == before
    assert sorted(path.name for path in first.parent.iterdir()) == [first.name, "00000000000000000001.segment"]
    for _ in range(2):
        assert await content(log) == [b"x", b"y"]
        log = await reopened(store, log)


async def test_failed_sync_of_the_first_record(store: LocalLogStore, files: SlowFiles, tmp_path: Path) -> None:
    """A segment in which nothing is durable is replaced by the new one, which has the same name."""
    log = await store.create("a")
    files.fail(errno.EIO, "sync")
    with pytest.raises(LogStorageError):
        await log.append(b"lost")
    assert await log.append(b"y") == 0
    assert len(list((tmp_path / "logs" / "a.log").iterdir())) == 1
    assert await content(await reopened(store, log)) == [b"y"]


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename", "sync_folder", "open"])
async def test_failed_new_segment(store: LocalLogStore, files: SlowFiles, operation: str) -> None:
    """If no new segment can be created the append fails, and every later one tries again, until it works."""
    log = await store.create("a")
    await log.append(b"x" * 1500)
    files.fail(errno.ENOSPC, operation, times=3)
    for _ in range(3):
        with pytest.raises(LogStorageError, match=FULL):
            await log.append(b"y" * 1500)
    assert log.length == 1
    assert await log.append(b"z" * 1500) == 1
    log = await reopened(store, log)
    assert await content(log) == [b"x" * 1500, b"z" * 1500]
    assert await log.append(b"more") == 2


@pytest.mark.parametrize(
    "operation", ["lock", "make_folder", "create", "write", "sync", "rename", "sync_folder", "open"]
)
@pytest.mark.parametrize("skip", [0, 1, 2])
async def test_failed_creation(
    store: LocalLogStore, files: SlowFiles, operation: str, skip: int, tmp_path: Path
) -> None:
    """A failed creation leaves nothing behind, and the log can be created afterwards."""
    files.fail(errno.EACCES, operation, skip=skip)
    (log,) = await asyncio.gather(store.create("a"), return_exceptions=True)
    files.heal()
    if not isinstance(log, LocalLog):
        assert isinstance(log, LogStorageError)
        assert "Permission denied" in str(log)
        assert await store.names() == []
        assert list((tmp_path / "logs").iterdir()) == []
        log = await store.create("a")
    assert await log.append(b"x") == 0


@pytest.mark.parametrize("operation", ["lock", "open", "read", "write", "sync", "names"])
async def test_failed_opening(store: LocalLogStore, files: SlowFiles, operation: str) -> None:
    """A failed opening changes and locks nothing."""
    log = await store.create("a")
    await log.append(b"x")
    await log.aclose()
    files.fail(errno.EACCES, operation)
    with pytest.raises(LogStorageError, match="Permission denied"):
        await store.open_log("a")
    assert await content(await store.open_log("a")) == [b"x"]


class BlindFiles(FaultyFiles):
    """Real files in a folder that must not be read."""

    def is_folder(self, path: Path) -> bool:
        """Refuse."""
        raise PermissionError(errno.EACCES, "Permission denied", str(path))


async def test_place_without_rights(tmp_path: Path) -> None:
    """If the folder must not even be read, the error says that, not that the log does not exist."""
    (tmp_path / "a.log").mkdir()
    files = BlindFiles(OsFiles())
    store = LocalLogStore(LogDirectory(files, tmp_path, 4096), ThreadPoolExecutor(1))
    for refused in (store.create("a"), store.open_log("a"), store.delete("a"), store.names()):
        with pytest.raises(LogStorageError, match="Permission denied"):
            await refused
    await store.aclose()


async def test_failed_read(store: LocalLogStore, files: SlowFiles) -> None:
    """A failed read raises, and the next one works."""
    log = await store.create("a")
    await log.append(b"x")
    files.fail(errno.EIO, "read")
    with pytest.raises(LogStorageError, match="cannot read it: Input/output error"):
        await log.read(0, 0)
    assert await log.read(0, 0) == [b"x"]


@pytest.mark.parametrize("operation", ["rename", "remove", "remove_folder"])
async def test_failed_deletion(store: LocalLogStore, files: SlowFiles, operation: str, tmp_path: Path) -> None:
    """A log that could not be renamed is still there; one that could is gone, and the next call removes its files."""
    log = await store.create("a")
    await log.append(b"x")
    files.fail(errno.EACCES, operation)
    if operation == "rename":
        with pytest.raises(LogStorageError, match="cannot delete it"):
            await log.delete()
        await log.aclose()
        assert await content(await store.open_log("a")) == [b"x"]
        return
    await log.delete()
    with pytest.raises(LogNotFoundError):
        await store.open_log("a")
    log = await store.create("a")
    assert log.length == 0
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {"a.log", "a.lock"}


class UnclosableFiles(MemoryFiles):
    """Files in memory; one close raises, as on a network file system."""

    fails = False

    def close(self, descriptor: int) -> None:
        """Close, and raise the error once."""
        super().close(descriptor)
        if self.fails:
            self.fails = False
            raise OSError(errno.EIO, "Input/output error")


async def test_deletion_with_a_failed_close() -> None:
    """A log is deleted and unlocked although closing its file, whose content was synced, fails."""
    files = UnclosableFiles()
    async with await LocalLogStore.open(Path("/logs"), files=files) as store:
        log = await store.create("a")
        await log.append(b"x")
        files.fails = True
        await log.delete()
        assert not files.fails
        assert (await store.create("a")).length == 0


@pytest.mark.parametrize("seed", range(20))
async def test_deletion_that_may_not_be_durable(seed: int) -> None:
    """If it is unknown whether the name is gone for good, the files stay: a crash leaves the log whole or gone."""
    files = FaultyFiles(MemoryFiles(Random(seed)))
    async with await LocalLogStore.open("/logs", files=files) as store:
        log = await store.create("a")
        await log.append(b"x")
        files.fail(errno.EIO, "sync_folder", times=math.inf)
        with pytest.raises(LogStorageError, match="cannot delete it"):
            await log.delete()
    assert isinstance(files.inner, MemoryFiles)
    async with await LocalLogStore.open("/logs", files=files.inner.after_crash()) as store:
        if await store.names():
            assert await content(await store.open_log("a")) == [b"x"]


def test_lock_file_that_is_removed_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock on a file that its last owner has removed before does not count."""
    path = tmp_path / "a.lock"
    lock = file_operations._lock
    removed: list[int] = []

    def lock_after_removal(descriptor: int) -> None:
        if not removed:
            path.unlink()
            removed.append(descriptor)
        lock(descriptor)

    monkeypatch.setattr(file_operations, "_lock", lock_after_removal)
    descriptor = OsFiles().lock(path)
    assert removed
    with pytest.raises(BlockingIOError):
        OsFiles().lock(path)
    os.close(descriptor)


async def test_folders_that_cannot_be_swept(tmp_path: Path, files: SlowFiles) -> None:
    """A store opens though leftovers cannot be removed."""
    (tmp_path / "b.log.gone").mkdir()
    files.fail(errno.EACCES, "remove_folder", times=math.inf)
    async with await LocalLogStore.open(tmp_path, files=files) as store:
        assert await store.names() == []
    assert (tmp_path / "b.log.gone").exists()
    files.heal()
    async with await LocalLogStore.open(tmp_path, files=files):
        assert list(tmp_path.iterdir()) == []


async def test_cancelled_while_in_line(store: LocalLogStore, files: SlowFiles) -> None:
    """An append that is cancelled before its write has begun is not in the log; those beside it are."""
    log = await store.create("a")
    files.may_sync.clear()
    syncs = files.syncs
    first = asyncio.ensure_future(log.append(b"first"))
    await files.until_syncing(syncs + 1)
    rest = [asyncio.ensure_future(log.append(b"%d" % number)) for number in range(3)]
    await asyncio.sleep(0)
    rest[1].cancel()
    await asyncio.wait([rest[1]])
    files.may_sync.set()
    assert [await task for task in (first, rest[0], rest[2])] == [0, 1, 2]
    assert await content(log) == [b"first", b"0", b"2"]


async def test_cancelled_while_being_written(store: LocalLogStore, files: SlowFiles) -> None:
    """An append that is cancelled while it is being written returns at once and is carried out; so is the next."""
    log = await store.create("a")
    files.may_sync.clear()
    syncs = files.syncs
    first = asyncio.ensure_future(log.append(b"first"))
    await files.until_syncing(syncs + 1)
    first.cancel()
    await asyncio.wait([first])
    assert first.cancelled()
    assert log.length == 0
    second = asyncio.ensure_future(log.append(b"second"))
    await asyncio.sleep(0)
    files.may_sync.set()
    assert await second == 1
    assert await content(log) == [b"first", b"second"]


async def test_cancelled_close(store: LocalLogStore, files: SlowFiles) -> None:
    """A cancelled close continues: earlier calls are carried out, and the lock is released."""
    log = await store.create("a")
    files.may_sync.clear()
    append = asyncio.ensure_future(log.append(b"x"))
    with anyio.move_on_after(0.01):
        await asyncio.sleep(0)
        await log.aclose()
    closing = asyncio.ensure_future(log.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    with pytest.raises(LogLockedError):
        await store.open_log("a")
    files.may_sync.set()
    assert await append == 0
    await log.aclose()
    assert await content(await store.open_log("a")) == [b"x"]


async def test_cancelled_creation(store: LocalLogStore, files: SlowFiles, tmp_path: Path) -> None:
    """A log whose creation is cancelled is created and closed again: nothing stays locked."""
    files.may_sync.clear()
    creating = asyncio.ensure_future(store.create("a"))
    await files.until_syncing(1)
    creating.cancel()
    await asyncio.wait([creating])
    assert creating.cancelled()
    files.may_sync.set()
    await store.aclose()
    folder = tmp_path / "logs"
    async with await LocalLogStore.open(folder) as other:
        assert (await other.open_log("a")).length == 0


async def test_creation_that_is_cancelled_as_the_store_closes(tmp_path: Path) -> None:
    """A log that is created just when the call is cancelled and the store closed is closed silently."""
    heard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
    store = await LocalLogStore.open(tmp_path)
    creating = asyncio.ensure_future(store.create("a"))
    while not store._opening:
        await asyncio.sleep(0)
    (opening,) = store._opening
    is_made = asyncio.Event()
    opening.add_done_callback(creating.cancel)
    opening.add_done_callback(lambda _: is_made.set())
    del opening
    await is_made.wait()
    await store.aclose()
    for _ in range(5):
        await asyncio.sleep(0)
    assert creating.cancelled()
    del store, creating  # nothing waits any more for the result of closing the log
    gc.collect()
    assert heard == []
    async with await LocalLogStore.open(tmp_path) as other:
        assert (await other.open_log("a")).length == 0


async def test_what_ends_after_the_store_is_reported() -> None:
    """Without threads a log is closed in the loop's thread, appends are refused, and the caller gets errors."""
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    commit = GroupCommit(executor)
    assert await commit.run_after_pending(lambda: 7) == 7
    with pytest.raises(RuntimeError, match="shutdown"):
        await commit.append([b"x"], lambda _: 0)
    with pytest.raises(ZeroDivisionError):
        await commit.run_after_pending(lambda: 1 // 0)


async def test_a_closed_log_is_free_when_the_next_opens(store: LocalLogStore) -> None:
    """It needs no garbage collection, as a tracker opens thousands of logs one after another."""
    log = await store.create("a")
    await log.append(b"x")
    await log.seal()
    await log.aclose()
    kept = weakref.ref(log)
    gc.disable()
    try:
        del log
        await store.create("b")
        with anyio.fail_after(patience(1)):
            while kept() is not None:
                await asyncio.sleep(0.001)  # the thread that closed it releases it
    finally:
        gc.enable()


async def test_writes_are_shared(store: LocalLogStore, files: SlowFiles) -> None:
    """A thousand appends during one sync take one more, also if their callers append again."""
    log = await store.create("a")
    files.may_sync.clear()
    syncs = files.syncs
    first = asyncio.ensure_future(log.append(b"first"))
    await files.until_syncing(syncs + 1)

    async def append_twice() -> None:
        await log.append(b"x")
        await log.append(b"y")

    rest = asyncio.gather(*(append_twice() for _ in range(20)))
    await asyncio.sleep(0)
    files.may_sync.set()
    await asyncio.gather(first, rest)
    assert files.syncs - syncs == 3


def test_on_uvloop(tmp_path: Path) -> None:
    """Logs work on uvloop too."""
    uvloop = pytest.importorskip("uvloop")

    async def main() -> list[bytes]:
        async with await LocalLogStore.open(tmp_path) as store:
            log = await store.create("a")
            assert await asyncio.gather(*(log.append(b"x") for _ in range(50))) == list(range(50))
            log = await reopened(store, log)
            return await content(log)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == [b"x"] * 50


async def test_crash_reaches_the_caller(tmp_path: Path) -> None:
    """A simulated crash ends every call, and leaves real files as they were written."""
    files = FaultyFiles(OsFiles())
    store = await LocalLogStore.open(tmp_path, files=files)
    log = await store.create("a")
    await log.append(b"x")
    files.crash(len(files.history) + 1, after=True)
    for _ in range(2):
        with pytest.raises(SimulatedCrash):
            await log.append(b"y")
    with pytest.raises(SimulatedCrash):
        await store.create("b")
    files.release()
    await store.aclose()
    async with await LocalLogStore.open(tmp_path) as again:
        assert await content(await again.open_log("a")) == [b"x", b"y"]


async def test_a_sync_whose_answer_is_lost(store: LocalLogStore, files: SlowFiles) -> None:
    """An append whose sync was carried out, but reported as failed, has added nothing."""
    log = await store.create("a")
    next_ones: list[str] = []
    files.call(len(files.history), lambda: next_ones.append(files.history[-1]))
    files.fail(errno.EIO, "sync", is_done=True)
    with pytest.raises(LogStorageError):
        await log.append(b"x")
    assert next_ones == ["write"]
    assert await log.append(b"y") == 0
    assert await content(await reopened(store, log)) == [b"y"]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("skip", range(4))
async def test_an_opening_that_failed_while_it_made_folders(skip: int, seed: int) -> None:
    """Records stored after an opening survive a crash, also if an earlier opening created folders and failed."""
    files, folder = FaultyFiles(MemoryFiles(Random(seed))), Path("/a/b/c/logs")
    files.fail(errno.EIO, "sync_folder", skip=skip)
    try:
        await (await LocalLogStore.open(folder, files=files)).aclose()
    except LogStorageError:
        assert len(files.history) < 15
    files.heal()
    async with await LocalLogStore.open(folder, files=files) as store:
        await (await store.create("a")).append(b"x")
    assert isinstance(files.inner, MemoryFiles)
    async with await LocalLogStore.open(folder, files=files.inner.after_crash()) as store:
        assert await content(await store.open_log("a")) == [b"x"]
