"""Crashes at every request of random runs on object storage, failures and lost answers at every one."""

from __future__ import annotations

import asyncio
import errno
from random import Random

import pytest
from obstore.store import MemoryStore

from pulsar_nack.ledger._fault import SimulatedCrash
from pulsar_nack.ledger._object_fault import FaultyObjects

from .runs import LogModel, Run, check_clean_objects, count_operations

STEPS = 30


def run_until_crash(run: Run, steps: int) -> None:
    """Run, unless a crash comes first."""
    try:
        asyncio.run(run.play(steps))
    except SimulatedCrash:
        assert run.files.is_crashed


def recover(store: MemoryStore, models: dict[str, LogModel], seed: int) -> None:
    """Open what a crash left, compare with the model, go on for some steps, close, and look for leftovers."""
    run = Run(seed, FaultyObjects(store), models)
    asyncio.run(run.play(3))
    run = Run(seed, FaultyObjects(store), run.models)
    asyncio.run(run.play(0))
    check_clean_objects(store, run.models)


def faulty(seed: object) -> tuple[MemoryStore, FaultyObjects]:
    """Return a store in memory, and one over it that can be told to fail."""
    store = MemoryStore()
    return store, FaultyObjects(store, random=Random(f"{seed}"))


@pytest.mark.parametrize("seed", range(6))
def test_crash_at_every_request(seed: int) -> None:
    """Wherever a run crashes, all that was reported durable is found, in order, once, and nothing is left over."""
    requests = count_operations(seed, STEPS, faulty(seed)[1])
    assert requests > 90
    for at in range(requests):
        store, objects = faulty(seed)
        run = Run(seed, objects)
        objects.crash(at, after=bool((seed + at) % 2))
        run_until_crash(run, STEPS)
        recover(store, run.models, seed + 1)


@pytest.mark.parametrize("seed", range(50, 54))
def test_crash_while_a_put_is_on_its_way(seed: int) -> None:
    """A put that a crash came before arrives when the next opening has begun, or later: never to be seen halfway."""
    requests = count_operations(seed, STEPS, faulty(seed)[1])
    for at in range(requests):
        store, objects = faulty(seed)
        run = Run(seed, objects)
        objects.crash(at, late=True)
        run_until_crash(run, STEPS)
        if not objects.late:
            continue
        again = FaultyObjects(store)
        again.call(Random(f"{seed} {at}").randrange(16), objects.land)
        run = Run(seed + 1, again, run.models)
        run.is_late = True
        asyncio.run(run.play(3))
        objects.land()
        recover(store, run.models, seed + 2)


@pytest.mark.parametrize("seed", range(100, 104))
def test_crash_while_recovering(seed: int) -> None:
    """More crashes, while what the last one left is being opened, lose nothing either."""
    requests = count_operations(seed, STEPS, faulty(seed)[1])
    for at in range(0, requests, 3):
        random = Random(f"{seed} {at}")
        store, objects = faulty(seed)
        run = Run(seed, objects)
        objects.crash(at, after=bool(at % 2))
        run_until_crash(run, STEPS)
        for again in range(3):
            objects = FaultyObjects(store, random=random)
            run = Run(seed + again, objects, run.models)
            objects.crash(random.randrange(30), after=bool(again % 2))
            run_until_crash(run, 2)
        recover(store, run.models, seed)


@pytest.mark.parametrize("seed", range(200, 204))
@pytest.mark.parametrize("is_done", [False, True])
def test_failure_at_every_request_and_a_crash_later(seed: int, is_done: bool) -> None:
    """Requests fail, or their answers are lost, the run goes on, and crashes later: what was durable is there."""
    requests = count_operations(seed, STEPS, faulty(seed)[1])
    for skip in range(4, requests, 2):
        random = Random(f"{seed} {skip}")
        store, objects = faulty(seed)
        run = Run(seed, objects)
        times = random.choice((1, 2, 3, 6))
        chosen = random.choice(((), ("create",), ("get",), ("delete",), ("list", "get")))
        objects.fail(errno.EIO, *chosen, skip=skip // (1 + len(chosen)), times=times, is_done=is_done)
        objects.crash(2 * skip + random.randrange(requests), after=bool(skip % 2))
        run_until_crash(run, STEPS)
        recover(store, run.models, seed + 1)
