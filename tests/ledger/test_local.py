"""Logs in local folders: appending, reading, sealing, deleting, locking, and bad input, on the real file system."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from pulsar_nack.errors import (
    InvalidArgumentError,
    LogCorruptedError,
    LogExistsError,
    LogForeignFilesError,
    LogLockedError,
    LogStorageError,
    LogVersionError,
)
from pulsar_nack.ledger import LocalLogStore
from pulsar_nack.ledger.format import FRAME_HEADER_SIZE, SEGMENT_HEADER_SIZE

from .homes import content, reopened


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LocalLogStore]:
    """Open a store with small segments."""
    async with await LocalLogStore.open(tmp_path / "logs", max_segment_bytes=2048) as store:
        yield store


def segments(tmp_path: Path, name: str = "a") -> list[Path]:
    """Return a log's segment files in order."""
    return sorted((tmp_path / "logs" / f"{name}.log").glob("*.segment"))


async def test_many_segments(store: LocalLogStore, tmp_path: Path) -> None:
    """A log continues in new files, none larger than the limit, and its size is theirs, also after reopening."""
    log = await store.create("a")
    for number in range(100):
        await log.append_many([b"%d" % number * (number % 70)] * 3)
    files = segments(tmp_path)
    assert len(files) > 5
    assert max(file.stat().st_size for file in files) <= 2048
    for again in range(3):
        if again:
            log = await reopened(store, log, read_only=again == 2)
        assert (log.length, log.size) == (300, sum(file.stat().st_size for file in files))


async def test_index_of_a_large_segment(tmp_path: Path) -> None:
    """Records deep inside a large segment are found through its index, before and after reopening."""
    async with await LocalLogStore.open(tmp_path) as store:
        log = await store.create("a")
        records = [b"%05d" % number * 200 for number in range(2000)]
        for at in range(0, 2000, 20):
            await log.append_many(records[at : at + 20])
        for _ in range(2):
            for first in (0, 19, 20, 777, 1999):
                assert await log.read(first, first) == [records[first]]
            assert await content(log) == records
            log = await reopened(store, log)


async def test_one_writer(store: LocalLogStore, tmp_path: Path) -> None:
    """A second writer, of this store or another, and deleting are refused until the first one has closed."""
    log = await store.create("a")
    await log.append(b"x")
    async with await LocalLogStore.open(tmp_path / "logs") as other:
        for each in (store, other):
            with pytest.raises(LogLockedError, match=r"another writer.*read_only=True"):
                await each.open_log("a")
            with pytest.raises(LogLockedError):
                await each.delete("a")
            with pytest.raises(LogLockedError):
                await (await each.open_log("a", read_only=True)).delete()
        reader = await other.open_log("a", read_only=True)
        assert await content(reader) == [b"x"]
        await log.append(b"y")
        assert reader.length == 1
        await log.aclose()
        assert await content(await other.open_log("a")) == [b"x", b"y"]
        with pytest.raises(LogLockedError):
            await store.open_log("a")


async def test_folder_without_rights(store: LocalLogStore, tmp_path: Path) -> None:
    """A folder without write permission raises an error that says so, and its logs can still be read."""
    log = await store.create("a")
    await log.append(b"x")
    await log.aclose()
    (tmp_path / "logs" / "a.lock").chmod(0o444)
    (tmp_path / "logs").chmod(0o555)
    try:
        if os.access(tmp_path / "logs", os.W_OK):
            pytest.skip("this user may write everywhere")
        for call in (store.create("b"), store.open_log("a")):
            with pytest.raises(LogStorageError, match="Permission denied"):
                await call
        assert await content(await store.open_log("a", read_only=True)) == [b"x"]
    finally:
        (tmp_path / "logs").chmod(0o755)


@pytest.mark.parametrize("path", ["", "s3://bucket/logs", "file:///tmp/logs", b"logs", 7, None])
async def test_what_is_no_folder(path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL, which would become a folder of that name, and invalid paths are refused; nothing is created."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgumentError, match="path"):
        await LocalLogStore.open(path)
    assert not list(tmp_path.iterdir())


async def test_path_is_a_file(tmp_path: Path) -> None:
    """A file where the folder should be is a clear error."""
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(LogStorageError, match=r"cannot open the folder: (Not a directory|File exists)"):
            await LocalLogStore.open(path)


async def test_foreign_files_are_left_alone(store: LocalLogStore, tmp_path: Path) -> None:
    """Foreign files are neither listed nor removed; a log whose folder contains one is not deleted."""
    folder = tmp_path / "logs"
    log = await store.create("a")
    await log.append(b"x")
    mine = [
        folder / "notes.txt",
        folder / "a.log" / "notes.txt",
        folder / ".log",
        folder / "-.log.gone",
        folder / "f.log",
        folder / "a.log" / f"{9:9<20}.segment",
        folder / "a.log" / "7.segment",
    ]
    for path in mine:
        path.write_text("mine")
    assert await store.names() == ["a"]
    async with await LocalLogStore.open(folder) as other:
        assert await other.names() == ["a"]
    log = await reopened(store, log)
    with pytest.raises(LogForeignFilesError, match=r"notes\.txt"):
        await log.delete()
    assert all(path.read_text() == "mine" for path in mine)
    assert await content(await store.open_log("a", read_only=True)) == [b"x"]
    for path in mine:
        if path.parent.name == "a.log":
            path.unlink()
    await store.delete("a")
    assert await store.names() == []


async def test_leftovers_are_swept(store: LocalLogStore, tmp_path: Path) -> None:
    """Leftovers of creations and deletions are removed when the store is opened, but not while they are in use."""
    log = await store.create("a")
    folder = tmp_path / "logs"
    (folder / "a.log" / "00000000000000000007.segment.new").write_bytes(b"half")
    for name in ("b.log.new", "c.log.gone"):
        (folder / name).mkdir()
        (folder / name / "00000000000000000000.segment").write_bytes(b"half")
    (folder / "d.lock").touch()
    held = await store.create("e")
    (folder / "e.log").rename(folder / "e.log.gone")
    async with await LocalLogStore.open(folder):
        left = {path.name for path in folder.iterdir()}
    assert left == {"a.log", "a.lock", "e.log.gone", "e.lock"}
    await held.aclose()
    await reopened(store, log)
    assert {path.name for path in folder.iterdir()} == {"a.log", "a.lock"}
    assert [path.name for path in (folder / "a.log").iterdir()] == ["00000000000000000000.segment"]


async def test_torn_tail_at_every_byte(store: LocalLogStore, tmp_path: Path) -> None:
    """Cut anywhere inside the last frame, or with its end overwritten, the log opens without it, and continues."""
    log = await store.create("a")
    await log.append(b"whole")
    begin = segments(tmp_path)[0].stat().st_size
    await log.append(b"torn record")
    await log.aclose()
    (file,) = segments(tmp_path)
    data = file.read_bytes()
    torn = [data[:end] for end in range(begin + 1, len(data))] + [data[:begin] + bytes(len(data) - begin)]
    torn += [data[:at] + bytes(min(5, len(data) - at)) + data[at + 5 :] for at in range(begin + 8, len(data) - 5)]
    for content_now in torn:
        file.write_bytes(content_now)
        assert (await store.open_log("a", read_only=True)).length == 1
        assert len(file.read_bytes()) == len(content_now)
        log = await store.open_log("a")
        assert (log.length, log.cut) == (1, len(content_now) - begin)
        assert await log.append(b"next") == 1
        assert await content(log) == [b"whole", b"next"]
        await log.aclose()
        assert file.stat().st_size == begin + FRAME_HEADER_SIZE + 4 + len(b"next")


async def test_damage_elsewhere(store: LocalLogStore, tmp_path: Path) -> None:
    """A flipped bit anywhere before the last frame raises with file and offset, and nothing is changed."""
    log = await store.create("a")
    for number in range(4):
        await log.append(b"record %d" % number)
    await log.aclose()
    (file,) = segments(tmp_path)
    data = file.read_bytes()
    frame = (len(data) - SEGMENT_HEADER_SIZE) // 4
    for at in range(len(data) - frame):
        broken = data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]
        file.write_bytes(broken)
        for read_only in (True, False):
            with pytest.raises(LogCorruptedError) as caught:
                await store.open_log("a", read_only=read_only)
            begin = 0 if at < SEGMENT_HEADER_SIZE else at - (at - SEGMENT_HEADER_SIZE) % frame
            assert (caught.value.log, caught.value.file, caught.value.offset) == ("a", file.name, begin)
        assert file.read_bytes() == broken
    file.write_bytes(data)
    assert (await store.open_log("a")).length == 4


async def test_damage_in_an_earlier_segment(store: LocalLogStore, tmp_path: Path) -> None:
    """Damage of a segment before the last is found when it is read; the rest of the log can be read."""
    log = await store.create("a")
    records = [b"%03d" % number * 100 for number in range(30)]
    for record in records:
        await log.append(record)
    first, second, *_ = segments(tmp_path)
    data = first.read_bytes()
    length = int(second.name[:20])
    for broken in (data[:-1], data[:40], b"", data[:-1] + b"?"):
        first.write_bytes(broken)
        log = await reopened(store, log)
        with pytest.raises(LogCorruptedError, match=first.name):
            await content(log)
        assert await log.read(length, 29) == records[length:]
    first.write_bytes(data)
    second.unlink()
    log = await reopened(store, log)
    with pytest.raises(LogCorruptedError, match=first.name):
        await content(log)
    first.unlink()
    await log.aclose()
    with pytest.raises(LogCorruptedError, match="missing"):
        await store.open_log("a")


async def test_wrong_segments(store: LocalLogStore, tmp_path: Path) -> None:
    """A segment under another's name, one of another log, and one of a later version raise errors."""
    log = await store.create("a")
    await log.append(b"x")
    await log.aclose()
    (file,) = segments(tmp_path)
    data = file.read_bytes()
    file.with_name("00000000000000000001.segment").write_bytes(data)
    with pytest.raises(LogCorruptedError, match="begins with record 0, its name says 1"):
        await store.open_log("a")
    file.with_name("00000000000000000001.segment").unlink()
    newer = data[:4] + b"\0\2" + data[6 : SEGMENT_HEADER_SIZE - 4]
    file.write_bytes(newer + crc32(newer).to_bytes(4, "big") + data[SEGMENT_HEADER_SIZE:])
    with pytest.raises(LogVersionError, match="version 2"):
        await store.open_log("a")
    assert file.exists()


async def test_bytes_after_the_seal(store: LocalLogStore, tmp_path: Path) -> None:
    """Bytes after a seal raise."""
    log = await store.create("a")
    await log.seal()
    await log.aclose()
    (file,) = segments(tmp_path)
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(LogCorruptedError, match="after the seal"):
        await store.open_log("a")


async def test_bad_settings(tmp_path: Path) -> None:
    """Invalid settings are refused by name, and nothing is created."""
    for settings in ({"max_segment_bytes": 1}, {"max_segment_bytes": 1e6}, {"threads": 0}, {"threads": True}):
        with pytest.raises(InvalidArgumentError, match=next(iter(settings))):
            await LocalLogStore.open(tmp_path / "other", **settings)
    assert not (tmp_path / "other").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="no descriptors to count")
async def test_nothing_stays_open(tmp_path: Path) -> None:
    """Opening, reading, refusing and closing leave no descriptor behind."""
    before = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0
    for _ in range(3):
        async with await LocalLogStore.open(tmp_path, max_segment_bytes=1024) as store:
            log = await store.create("a")
            for number in range(20):
                await log.append(b"%d" % number * 50)
            with pytest.raises(LogExistsError):
                await store.create("a")
            with pytest.raises(LogLockedError):
                await store.open_log("a")
            await content(log)
            await log.delete()
    after = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0
    assert after == before
