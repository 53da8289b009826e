"""Storage under a trace that is full, hangs, or fails at a sync or rename: nothing waits, losses are counted."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pulsar_nack import MessageId
from pulsar_nack.config import TraceConfig
from pulsar_nack.observe import TraceStatistics, TraceWriter
from tests.patience import patience
from tests.small_disk import small_disk

from .test_trace import lines


async def until(is_so: Callable[[], bool]) -> None:
    """Wait until a condition holds, with the loop running."""
    async with asyncio.timeout(patience(30)):
        while not is_so():
            await asyncio.sleep(0.002)


def is_counted(statistics: TraceStatistics, events: int) -> bool:
    """Return whether every event is written, lost for a full buffer, or lost for the storage."""
    return statistics.written + statistics.failed + statistics.dropped + statistics.buffered == events


async def test_full_disk(tmp_path: Path) -> None:
    """On a full disk the trace loses events and counts them, leaves whole lines, and continues when there is room."""
    with small_disk(tmp_path / "disk", 64) as disk:
        (disk.folder / "other").write_bytes(bytes(40_000))
        async with TraceWriter(TraceConfig(folder=disk.folder, flush_seconds=0.005)) as writer:
            note = writer.source("t", "s", "c")
            count = 0
            async with asyncio.timeout(patience(30)):
                while not writer.statistics().failures:
                    for _ in range(20):
                        note("ack", MessageId(1, count), 0)
                        count += 1
                    await asyncio.sleep(0.01)
            statistics = writer.statistics()
            assert statistics.last_error is not None
            assert "No space left on device" in statistics.last_error
            assert 0 < statistics.written < 300
            (disk.folder / "other").unlink()
            await until(lambda: not writer.statistics().buffered)
            first = count
            for _ in range(50):
                note("ack", MessageId(1, count), 0)
                count += 1
        statistics = writer.statistics()
        assert is_counted(statistics, count)
        assert statistics.dropped == 0
        found = [each["entry"] for each in lines(disk.folder)]
        assert len(found) == statistics.written
        assert found == sorted(found)
        assert found[-50:] == list(range(first, count))


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
async def test_storage_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """While storage does not answer the loop runs: the buffer fills, the rest is dropped; then it is written."""
    real, may_go, hangs = getattr(os, call), threading.Event(), threading.Event()

    def wait(*arguments: Any) -> Any:
        hangs.set()
        assert may_go.wait(patience(30))
        return real(*arguments)

    config = TraceConfig(folder=tmp_path, max_buffered_events=100, flush_seconds=0.001, max_file_bytes=1_024)
    async with TraceWriter(config) as writer:
        monkeypatch.setattr(os, call, wait)
        note = writer.source("t", "s", "c")
        count = 0
        while not hangs.is_set():
            note("ack", MessageId(1, count))
            count += 1
            await asyncio.sleep(0.001)
        for entry in range(count, count + 500):
            note("ack", MessageId(1, entry))  # would not end if it waited
        statistics = writer.statistics()
        assert (statistics.buffered, statistics.failures) == (100, 0)
        assert statistics.dropped >= 400
        may_go.set()
        await until(lambda: not writer.statistics().buffered)
        note("ack", MessageId(2, 0))
    monkeypatch.undo()
    statistics = writer.statistics()
    assert is_counted(statistics, count + 501)
    assert len(lines(tmp_path)) == statistics.written
    assert lines(tmp_path)[-1]["ledger"] == 2


def fail_once(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Let the first sync of a file, its rename, or the first sync of the folder fail."""
    owner, name = {
        "sync": (os, "fdatasync"),
        "rename": (Path, "rename"),
        "sync of the folder": (os, "fsync"),
    }[where]
    real, calls = getattr(owner, name), [0]

    def fail(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            raise OSError(errno.EIO, "Input/output error")
        return real(*arguments)

    monkeypatch.setattr(owner, name, fail)


@pytest.mark.parametrize("where", ["sync", "rename", "sync of the folder"])
async def test_a_file_that_cannot_be_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """A file that cannot be synced or renamed keeps its name and lines; nothing is lost, and another one follows."""
    fail_once(monkeypatch, where)
    async with TraceWriter(TraceConfig(folder=tmp_path, max_file_bytes=60_000, flush_seconds=3_600)) as writer:
        note = writer.source("t", "s", "c")
        for entry in range(1_000):
            note("ack", MessageId(1, entry))
    monkeypatch.undo()
    statistics = writer.statistics()
    assert (statistics.written, statistics.failed, statistics.dropped, statistics.failures) == (1_000, 0, 0, 1)
    assert statistics.last_error == "OSError(5, 'Input/output error')"
    is_left = where != "sync of the folder"
    left = [path for path in tmp_path.iterdir() if path.suffix == ".open"]
    assert len(left) == is_left
    assert statistics.files_closed == len(list(tmp_path.glob("*.jsonl"))) == 2 - is_left
    assert [each["entry"] for each in lines(tmp_path, "*.jsonl*")] == list(range(1_000))
    for path in left:
        assert all(json.loads(line)["v"] == 1 for line in path.read_text().splitlines())


async def test_a_folder_that_goes_away(tmp_path: Path) -> None:
    """A folder that was removed between two files is created again."""
    folder = tmp_path / "traces"
    config = TraceConfig(folder=folder, max_file_seconds=0.01, flush_seconds=0.005)
    async with TraceWriter(config) as writer:
        note = writer.source()
        note("ack", MessageId(1, 1))
        await until(lambda: writer.statistics().files_closed == 1)
        shutil.rmtree(folder)
        note("ack", MessageId(1, 2))
        await until(lambda: writer.statistics().files_closed == 2)
    assert [each["entry"] for each in lines(folder)] == [2]
    assert writer.statistics().failures == 0
