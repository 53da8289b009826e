"""Durable state under faults: a crash at every file operation of random runs, and operations that fail."""

from __future__ import annotations

import asyncio
import errno
import math
from random import Random

import pytest

from pulsar_nack.ledger._fault import FaultyFiles
from pulsar_nack.ledger._memory_files import MemoryFiles
from pulsar_nack.ledger._object_fault import FaultyObjects
from pulsar_nack.testing import ManualClock
from tests.consumer.durable_runs import FOLDER, Model, Run, count_operations

STEPS = 60
SEEDS = [*range(10), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(10, 100))]


def after(files: FaultyFiles, *, is_power_lost: bool) -> MemoryFiles:
    """Return what the next process finds."""
    inner = files.inner
    assert isinstance(inner, MemoryFiles)
    return inner.after_crash() if is_power_lost else inner.after_kill()


def play_until_crash(run: Run) -> None:
    """Play to the end or to the crash, wherever that comes out; nothing else is raised."""
    try:
        asyncio.run(run.play(STEPS))
    except BaseException:
        if not run.files.is_crashed:
            raise


@pytest.mark.parametrize("is_power_lost", [True, False], ids=["power lost", "killed"])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("every", [9, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])
def test_a_crash_at_every_operation(seed: int, every: int, *, is_power_lost: bool) -> None:
    """U9: at each write, sync, rename and delete of a run: what was durable is there, what was settled stays so."""
    for at in range(seed, count_operations(seed, STEPS), every):
        files, clock, model = FaultyFiles(MemoryFiles(Random(at))), ManualClock(1_000), Model()
        files.crash(at, after=at % 2 == 1)
        play_until_crash(Run(Random(seed), files, clock, model))
        for life in range(2):
            files = FaultyFiles(after(files, is_power_lost=is_power_lost))
            run = Run(Random(at + life), files, clock, model)
            asyncio.run(run.play(STEPS // 6))
        assert_clean(files)


@pytest.mark.parametrize("seed", SEEDS)
def test_crashes_on_and_on(seed: int) -> None:
    """U9: a life after the other that ends by a crash anywhere, in recovery and compaction too."""
    random, clock, model = Random(seed), ManualClock(1_000), Model()
    files = FaultyFiles(MemoryFiles(random))
    for _ in range(12):
        files.crash(random.randrange(5, 400), after=random.random() < 0.5)
        play_until_crash(Run(random, files, clock, model))
        files = FaultyFiles(after(files, is_power_lost=random.random() < 0.5))
        clock.advance(1_000)
    asyncio.run(Run(random, files, clock, model).play(STEPS))
    assert_clean(files)


@pytest.mark.parametrize("seed", SEEDS)
def test_operations_that_fail(seed: int) -> None:
    """U22: any operation may fail, for a while: what was reported durable is there, and no more."""
    random, clock, model = Random(seed), ManualClock(1_000), Model()
    files = FaultyFiles(MemoryFiles(random))
    asyncio.run(Run(random, files, clock, model).play(5))
    for _ in range(4):
        kind = random.choice(
            ["write", "sync", "create", "rename", "remove", "truncate", "sync_folder", "remove_folder"]
        )
        files.fail(errno.EIO, kind, skip=random.randrange(20), times=random.choice((1, 2, 5, math.inf)))
        asyncio.run(Run(random, files, clock, model).play(STEPS))
        files.heal()
        files = FaultyFiles(after(files, is_power_lost=random.random() < 0.5))
        clock.advance(1_000)
    asyncio.run(Run(random, files, clock, model).play(STEPS))
    assert_clean(files)


@pytest.mark.parametrize("seed", SEEDS)
def test_on_object_storage(seed: int) -> None:
    """U9: the same on object storage: lives that end by a crash at any request; requests that fail or are in doubt."""
    store = pytest.importorskip("obstore").store.MemoryStore()
    random, clock, model = Random(seed), ManualClock(1_000), Model()
    for _ in range(8):
        objects = FaultyObjects(store, random=random)
        if random.random() < 0.7:
            objects.crash(random.randrange(5, 250), after=random.random() < 0.5)
        else:
            doubtful = random.random() < 0.5
            objects.fail(errno.EIO, skip=random.randrange(100), times=random.choice((1, 3)), is_done=doubtful)
        play_until_crash(Run(random, objects, clock, model))
        clock.advance(1_000)
    asyncio.run(Run(random, FaultyObjects(store), clock, model).play(STEPS))


def assert_clean(files: FaultyFiles) -> None:
    """Assert that no more logs lie about than a base, a log after it, and what belongs to a compaction under way."""
    assert isinstance(files.inner, MemoryFiles)
    logs = {path.removeprefix(f"{FOLDER}/").partition("/")[0] for path in files.inner.tree() if ".log/" in path}
    assert len(logs) <= 5, logs
    assert "nacks-owner.log" in logs
