"""Crashes at every file operation of random runs, failures at every one, and a real process that is killed."""

from __future__ import annotations

import asyncio
import errno
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from pulsar_nack.errors import LogStorageError
from pulsar_nack.ledger import LocalLogStore
from pulsar_nack.ledger._fault import FaultyFiles, SimulatedCrash
from pulsar_nack.ledger._memory_files import MemoryFiles

from .runs import FOLDER, LogModel, Run, check_clean, count_operations

STEPS = 14


def run_until_crash(run: Run, at: int, steps: int, *, after: bool) -> None:
    """Run, and crash at an operation, unless the run ends before it."""
    run.files.crash(at, after=after)
    try:
        asyncio.run(run.play(steps))
    except SimulatedCrash:
        assert run.files.is_crashed


def recover(files: MemoryFiles, models: dict[str, LogModel], seed: int, steps: int = 3) -> MemoryFiles:
    """Open what a crash left, compare with the model, go on for some steps, close, and look for leftovers."""
    run = Run(seed, FaultyFiles(files), models)
    asyncio.run(run.play(steps))
    check_clean(files, run.models)
    return files


@pytest.mark.parametrize("seed", range(6))
def test_crash_at_every_operation(seed: int) -> None:
    """Wherever a run crashes, all that was reported durable is found, in order, once, and nothing is left over."""
    operations = count_operations(seed, STEPS)
    assert operations > 70
    for at in range(operations):
        run = Run(seed, FaultyFiles(MemoryFiles(Random(f"{seed} {at}")), most_per_write=100))
        run_until_crash(run, at, STEPS, after=bool((seed + at) % 2))
        assert isinstance(run.files.inner, MemoryFiles)
        recover(run.files.inner.after_crash(), run.models, seed + 1)


@pytest.mark.parametrize("seed", range(100, 104))
def test_crash_while_recovering(seed: int) -> None:
    """More crashes, of process or machine, while what the last one left is being opened, lose nothing either."""
    operations = count_operations(seed, STEPS)
    for at in range(0, operations, 3):
        random = Random(f"{seed} {at}")
        run = Run(seed, FaultyFiles(MemoryFiles(random)))
        run_until_crash(run, at, STEPS, after=bool(at % 2))
        for again in range(3):
            assert isinstance(run.files.inner, MemoryFiles)
            is_kill = random.random() < 0.5
            found = run.files.inner.after_kill() if is_kill else run.files.inner.after_crash()
            run = Run(seed + again, FaultyFiles(found), run.models)
            run_until_crash(run, random.randrange(25), 2, after=bool(again % 2))
        assert isinstance(run.files.inner, MemoryFiles)
        recover(run.files.inner.after_crash(), run.models, seed)


@pytest.mark.parametrize("seed", range(200, 204))
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_failure_at_every_operation_and_a_crash_later(seed: int, number: int) -> None:
    """An operation fails, the run goes on, and crashes later: what was reported durable is there all the same."""
    operations = count_operations(seed, STEPS)
    changing = (
        "create",
        "write",
        "truncate",
        "sync",
        "sync_folder",
        "rename",
        "remove",
        "make_folder",
        "remove_folder",
    )
    skip = 6
    while skip < operations:
        random = Random(f"{seed} {skip}")
        run = Run(seed, FaultyFiles(MemoryFiles(random), most_per_write=100))
        run.files.fail(number, *changing, skip=skip, times=random.choice((1, 2, 5)))
        run_until_crash(run, 2 * skip + random.randrange(operations), STEPS, after=bool(skip % 2))
        assert isinstance(run.files.inner, MemoryFiles)
        recover(run.files.inner.after_crash(), run.models, seed + 1)
        skip += 3


@pytest.mark.parametrize("seed", range(20))
async def test_a_failed_sync_that_looks_good_to_the_next_opening(seed: int) -> None:
    """What an opening finds is durable from then on, even a record whose sync failed and that only the cache has."""
    files = FaultyFiles(MemoryFiles(Random(seed)))
    async with await LocalLogStore.open(FOLDER, files=files) as store:
        log = await store.create("a")
        files.fail(errno.EIO, "sync", "truncate", times=2)
        with pytest.raises(LogStorageError):
            await log.append(b"x" * 100)
        await log.aclose()
        assert (await store.open_log("a")).length == 1
    assert isinstance(files.inner, MemoryFiles)
    async with await LocalLogStore.open(FOLDER, files=files.inner.after_crash()) as store:
        assert await (await store.open_log("a")).read(0, 0) == [b"x" * 100]


async def test_killed_process(tmp_path: Path) -> None:
    """A process that is killed while it appends, three times: all that it reported is there, once, in order."""
    reported: dict[int, bytes] = {}
    for lines in (40, 100, 3):
        command = [sys.executable, "-m", "tests.ledger.writer", str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as process:
            assert process.stdout is not None
            begun = [process.stdout.readline() for _ in range(lines)]
            process.kill()
            said = begun + process.stdout.readlines()
        for line in said:
            if line.endswith(b"\n"):
                number, _, record = line.strip().partition(b" ")
                assert int(number) not in reported
                reported[int(number)] = record
    async with await LocalLogStore.open(tmp_path) as store:
        log = await store.open_log("a")
        found = [record.data.rstrip() async for record in log.records()]
    assert len(reported) >= 143
    assert all(found[number] == record for number, record in reported.items())
    assert len(set(found)) == len(found)
    per_task: dict[bytes, int] = {}
    for record in found:
        task, _, count = record.rpartition(b" ")
        assert int(count) == per_task.get(task, 0)
        per_task[task] = int(count) + 1
