"""Durable state under faults: a crash at every operation of random runs, and operations that fail."""

from __future__ import annotations

import math
from random import Random

import pytest

from tests.consumer.durable_runs import Model, Run
from tests.crash_homes import CHANGING, HOMES, Crash, crash_everywhere, crashes, play, recover
from tests.tiers import seeds

SEEDS = seeds(range(24), fast=2)


@pytest.mark.parametrize("kills", [0, 1], ids=["power lost", "killed"])
@pytest.mark.parametrize("seed", seeds(range(2)))
def test_a_crash_at_every_change(seed: int, kills: int) -> None:
    """U9: at each write, sync, rename and delete of a run: durable changes are there, settled messages stay settled."""
    run = Run(HOMES["local"](Random(seed)), Model(), seed)
    crash_everywhere(run, seed, 150, kills=kills)
    assert run.compactions > 0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", HOMES)
def test_crashes_on_and_on(kind: str, seed: int) -> None:
    """U9: runs that each end by a crash at any operation, in recovery too; operations fail, or are in doubt."""
    random = Random(seed)
    crash = Crash(random, HOMES[kind](random), Model())
    for life in range(12):
        run = Run(crash.home, crash.model, seed + life)
        if random.random() < 0.3:
            run.home.fail(CHANGING, random.randrange(100), random.choice([1, 3, 5]))
        found = crashes(run, run.live_on(), random.random(), only=random.randrange(100), kills=0.5)
        crash = found[0] if found else crash
        crash.model.clock.advance(1_000)
    recover(run, crash, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_operations_that_fail(seed: int) -> None:
    """U22: any operation may fail, for a while: what was reported as durable is there, and no more."""
    random, model = Random(seed), Model()
    home = HOMES["local"](random)
    play(Run(home, model, seed).play(5))
    for _ in range(4):
        home.fail([random.choice(CHANGING)], random.randrange(20), random.choice((1, 2, 5, math.inf)))
        play(Run(home, model, random.randrange(1000)).live())
        home.faults.heal()
        home = home.fork(random, is_killed=random.random() < 0.5)
        model.clock.advance(1_000)
    run = Run(home, model, seed)
    recover(run, Crash(random, home, model), seed)
