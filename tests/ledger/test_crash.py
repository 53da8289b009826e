"""Crashes and failures at every operation of random runs, on files and on objects, and a process that is killed."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from pulsar_nack.errors import LogStorageError
from pulsar_nack.ledger import LocalLogStore
from pulsar_nack.testing import FaultyFiles, MemoryFiles
from tests.crash_homes import (
    CHANGING,
    FOLDER,
    HOMES,
    ObjectHome,
    crash_again_and_again,
    crash_everywhere,
    fail_everywhere,
    play,
)
from tests.tiers import sample, seeds

from .runs import NAMES, LogModel, Models, Run


def start(kind: str, seed: int, random: Random | None = None) -> Run:
    """Return a run on a new home."""
    return Run(HOMES[kind](random or Random(f"{seed}")), Models({name: LogModel() for name in NAMES}), seed)


@pytest.mark.parametrize("seed", seeds(range(6)))
@pytest.mark.parametrize("kind", HOMES)
def test_crash_at_every_change(kind: str, seed: int) -> None:
    """Wherever a run crashes, all durable records are found, in order, once, and nothing is left over."""
    crash_everywhere(start(kind, seed), seed, 90)


@pytest.mark.parametrize("seed", seeds(range(50, 54)))
def test_crash_while_a_put_is_on_its_way(seed: int) -> None:
    """A put that was sent before a crash may arrive when the next opening has begun, or later: never half of it."""
    run = start("object", seed)
    assert isinstance(run.home, ObjectHome)
    home = run.home
    found: list[tuple[ObjectHome, Models]] = []

    def watch(moment: str, request: str) -> None:
        if request == "create" and moment == "before":
            found.append((home.fork(Random(f"{seed} {len(found)}")), run.model.fork()))
        elif request == "create":
            there = found[-1][0].content()
            found[-1][0].objects.late += [(key, data) for key, data in home.content().items() if key not in there]

    home.faults.watch(watch)
    play(run.live())
    for left, model in sample(found):
        objects = left.objects
        objects.call(left.random.randrange(16), objects.land)
        again = Run(left, model, seed + 1)
        again.is_late = True
        play(again.play(3))
        objects.land()
        play(Run(left, again.model, seed + 2).recover())


@pytest.mark.parametrize("seed", seeds(range(100, 104)))
@pytest.mark.parametrize("kind", HOMES)
def test_crash_while_recovering(kind: str, seed: int) -> None:
    """More crashes, of process or machine, during recovery lose nothing either."""
    crash_again_and_again(start(kind, seed), seed, 40, most=30, kills=0.5)


@pytest.mark.parametrize("seed", seeds(range(200, 204)))
@pytest.mark.parametrize("kind", HOMES)
def test_failure_at_every_operation_and_a_crash_later(kind: str, seed: int) -> None:
    """Operations fail, or answers are lost, the run continues, and crashes later: reported records are there."""
    chosen = [CHANGING] if kind == "local" else [(), ("create",), ("get",), ("delete",), ("list", "get")]
    fail_everywhere(lambda random: start(kind, seed, random), seed, 30, most=60, chosen=chosen)


@pytest.mark.parametrize("seed", range(20))
async def test_a_failed_sync_that_looks_good_to_the_next_opening(seed: int) -> None:
    """Records that an opening finds are durable from then on, even one whose sync failed and that only a cache has."""
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


@pytest.mark.parametrize(
    "kills", [pytest.param([40], marks=pytest.mark.smoke), pytest.param([40, 100, 3], marks=pytest.mark.slow)]
)
async def test_killed_process(tmp_path: Path, kills: list[int]) -> None:
    """A process that is killed while it appends, once or three times: all it reported is there, once, in order."""
    reported: dict[int, bytes] = {}
    for lines in kills:
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
    assert len(reported) >= sum(kills)
    assert all(found[number] == record for number, record in reported.items())
    assert len(set(found)) == len(found)
    per_task: dict[bytes, int] = {}
    for record in found:
        task, _, count = record.rpartition(b" ")
        assert int(count) == per_task.get(task, 0)
        per_task[task] = int(count) + 1
