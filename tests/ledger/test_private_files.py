"""Files that other users cannot read, and locks that cannot be removed or kept by mistake."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsar_nack import Cursor, LocalTopic
from pulsar_nack.config import TraceConfig
from pulsar_nack.errors import LogLockedError, LogStorageError
from pulsar_nack.ledger import LocalLogStore, ObjectLogStore
from pulsar_nack.ledger._local import LogDirectory
from pulsar_nack.observe._trace import TraceFiles
from pulsar_nack.testing import FaultyFiles, MemoryFiles, OsFiles
from tests.inspection.folders import write_buckets, write_nacks, write_plain
from tests.processes import started_python

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="rights and flock are POSIX's")

OWNER = """
import asyncio, os, sys, time
from pulsar_nack.ledger import LocalLogStore

async def main():
    store = await LocalLogStore.open(sys.argv[1], threads=1)
    return store, await store.create("a")

kept = asyncio.run(main())
child = os.fork()
if not child:
    print(os.getpid(), flush=True)
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""
"""A process that makes a log, and has a forked child, which prints its process number once it runs."""


@pytest.fixture
def no_umask() -> Iterator[None]:
    """Let the process give all rights that it does not withhold itself."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("no_umask")
async def test_everything_durable_is_private(tmp_path: Path) -> None:
    """O38: only the process's user may read what it creates, whatever the umask allows."""
    home = tmp_path / "made" / "here"
    await write_plain(home / "logs", seal=True)
    await write_buckets(home / "tracker", 1_200)
    await write_nacks(home / "nacks")
    async with await Cursor.open_local(home / "cursor", {1: 20}) as cursor:
        await cursor.acknowledge([(1, 3)])
    async with await LocalTopic.open(home / "topic") as topic:
        await topic.create_subscription("s")
        await topic.publish(b"payload")
    trace = TraceFiles(TraceConfig(folder=home / "trace"))
    trace.append(b"{}\n")
    trace.close()
    async with await ObjectLogStore.from_url(f"file://{home}/objects") as store, await store.create("a") as log:
        await log.append(b"record")
    assert stat.S_IMODE((home / "objects").stat().st_mode) == 0o700
    shutil.rmtree(home / "objects")  # files in it have the rights that obstore gives
    found = [home.parent, home, *home.rglob("*")]
    assert len(found) > 20
    rights = {(each.is_dir(), stat.S_IMODE(each.stat().st_mode)) for each in found}
    assert rights == {(True, 0o700), (False, 0o600)}


@pytest.mark.usefixtures("no_umask")
def test_a_built_index_is_private(tmp_path: Path) -> None:
    """O38: so may files of build-index, with which a tracker continues."""
    from pulsar_nack.pipeline._build_folder import INDEX, building, commit, write_log

    with building(tmp_path / "made" / "index") as staging:
        write_log(staging, "cursor-1.log", b"log")
        assert (staging / INDEX).is_dir()
        commit(staging, tmp_path / "made" / "index", overwrite=False)
    found = [tmp_path / "made", *(tmp_path / "made").rglob("*")]
    assert {(each.is_dir(), stat.S_IMODE(each.stat().st_mode)) for each in found} == {(True, 0o700), (False, 0o600)}


async def test_a_lock_file_that_is_removed(tmp_path: Path) -> None:
    """O38: a cleanup job that removes seemingly unused files takes no log from its owner."""
    async with await LocalLogStore.open(tmp_path) as store, await LocalLogStore.open(tmp_path) as other:
        made = await store.create("a")
        for owned in (made, None):
            log = owned or await store.open_log("a")
            (tmp_path / "a.lock").unlink()
            with pytest.raises(LogLockedError, match="another writer has it open"):
                await other.open_log("a")
            with pytest.raises(LogLockedError):
                await other.delete("a")
            assert await log.append(b"x") == log.length - 1
            await log.aclose()
        async with await other.open_log("a") as log:
            assert log.length == 2
            await log.delete()
        assert list(tmp_path.iterdir()) == []


@pytest.mark.smoke
async def test_a_process_and_its_child(tmp_path: Path) -> None:
    """O38: the error names the process that holds the lock, and a child that outlives a killed owner keeps no lock."""
    with started_python("-c", OWNER, tmp_path) as process:
        assert process.stdout is not None
        child = int(await asyncio.to_thread(process.stdout.readline))
        try:
            async with await LocalLogStore.open(tmp_path) as store:
                with pytest.raises(LogLockedError) as caught:
                    await store.open_log("a")
                assert (caught.value.owner, caught.value.folder) == (process.pid, str(tmp_path))
                assert f"process {process.pid} has it ({tmp_path})" in str(caught.value)
                process.kill()
                process.wait()
                os.kill(child, 0)
                async with await store.open_log("a") as log:
                    assert await log.append(b"mine") == 0
        finally:
            os.kill(child, 9)


async def test_a_lock_that_is_given_up_after_a_fork(tmp_path: Path) -> None:
    """O38: closing releases a lock though a child has a copy of the descriptor."""
    async with await LocalLogStore.open(tmp_path) as store:
        log = await store.create("a")
        lock = log._files.lock
        assert lock is not None
        copies = [os.dup(each) for each in lock]  # what a child has that does not know of it
        await log.aclose()
        async with await store.open_log("a"):
            for each in copies:
                os.close(each)
            with pytest.raises(LogLockedError):
                await store.open_log("a")


def test_folders_that_cannot_be_locked() -> None:
    """O38: if the file system locks no folders, the lock file suffices; other errors are raised."""
    files = FaultyFiles(MemoryFiles())
    home = LogDirectory(files, Path("/logs"), 1 << 20)
    home.open()
    files.fail(9, "lock", skip=1)  # EBADF, as NFS reports it
    opened = home.create("a")
    assert opened.lock is not None
    assert len(opened.lock) == 1
    with pytest.raises(LogLockedError):
        home.open_log("a", read_only=False)
    home.close(opened)
    files.fail(5, "lock")
    with pytest.raises(LogStorageError, match=r"log a: cannot lock it: .* \(/logs\)"):
        home.open_log("a", read_only=False)
    home.close(home.open_log("a", read_only=False))


async def test_errors_name_the_folder(tmp_path: Path) -> None:
    """Errors of the disk name the folder, whatever was being done."""
    files = FaultyFiles(OsFiles())
    async with await LocalLogStore.open(tmp_path, files=files) as store, await store.create("a") as log:
        for operation, call in (("write", log.append), ("sync", log.append)):
            files.fail(28, operation)
            with pytest.raises(LogStorageError) as caught:
                await call(b"x")
            assert (caught.value.folder, str(tmp_path) in str(caught.value)) == (str(tmp_path), True)
