"""D27: the tracker is stopped at every operation on storage, and what comes back is compared with a model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random

import pytest

from pulsar_nack.ledger import _local_store, _object_store
from pulsar_nack.testing import SimulatedCrash

from .crash_homes import CrashHome, Inline, LocalCrashHome, ObjectCrashHome
from .crashes import Model, Run

HOMES: dict[str, Callable[[Random], CrashHome]] = {"local": LocalCrashHome, "object": ObjectCrashHome}
SEEDS = {"local": (1, 24, 26, 27, 29, 30), "object": (1, 24, 26, 27, 29, 30, 38)}
LEAST = 500
"""Crash points on each home, at the least."""


@pytest.fixture(autouse=True)
def _inline(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Let the work on files be done where it is asked for, so that each run is the same; asyncio tells of crashes."""
    caplog.set_level(logging.CRITICAL, logger="asyncio")
    monkeypatch.setattr(_local_store, "ThreadPoolExecutor", Inline)
    monkeypatch.setattr(_object_store, "ThreadPoolExecutor", Inline)


def live(run: Run, restarts: int = 2, steps: int = 14) -> bool:
    """Live until the end, or the crash; return whether it crashed."""
    try:
        asyncio.run(run.play(restarts, steps))
    except SimulatedCrash:
        assert run.home.is_crashed
    return run.home.is_crashed


def changes_of(kind: str, seed: int, most: int = 10_000) -> list[int]:
    """Return which operations of a run that nothing stops change something; at most so many, all over the run."""
    run = Run(HOMES[kind](Random(seed)), Model(seed), seed)
    assert not live(run)
    changes = run.home.changes()
    asyncio.run(run.finish())
    step = -(-len(changes) // most)
    return changes[seed % step :: step]


def recover(run: Run, random: Random) -> None:
    """Open what a crash left, go on for a while, and let everything come out."""
    run.model.clock.advance(random.choice([0, 0, 10, 200]))
    again = Run(run.home.found(), run.model, run.model.seed + 1)
    if random.random() < 0.3:
        asyncio.run(again.play(1, 4))
    asyncio.run(again.finish(4))


def crash_everywhere(kind: str, seed: int, most: int = 10_000) -> int:
    """Crash a run at its operations that change something; return how often it crashed."""
    points = changes_of(kind, seed, most)
    for at in points:
        random = Random(f"{seed} {at}")
        run = Run(HOMES[kind](random), Model(seed), seed)
        run.home.crash(at, after=random.random() < 0.5)
        assert live(run)
        recover(run, random)
    return len(points)


def crash_again_and_again(kind: str, seed: int, most: int) -> int:
    """Crash a run, and three times those that open what it left; return how often it crashed."""
    points = 0
    for at in changes_of(kind, seed, most):
        random = Random(f"{seed} {at}")
        run = Run(HOMES[kind](random), Model(seed), seed)
        run.home.crash(at, after=random.random() < 0.5)
        for again in range(4):
            if not live(run, 1 if again else 2, 4 if again else 14):
                break
            points += 1
            run = Run(run.home.found(), run.model, seed + again)
            run.home.crash(random.randrange(60), after=random.random() < 0.5)
        recover(run, random)
    return points


def fail_everywhere(kind: str, seed: int, most: int) -> int:
    """Let operations fail, once or a few times, and the run crash later; return how often it crashed."""
    points = 0
    changes = changes_of(kind, seed)
    for at in changes_of(kind, seed, most):
        random = Random(f"{seed} {at}")
        run = Run(HOMES[kind](random), Model(seed), seed)
        run.home.fail(changes.index(at), random.choice([1, 1, 2, 5]))
        run.home.crash(at + random.randrange(100), after=random.random() < 0.5)
        if live(run):
            points += 1
        recover(run, random)
    return points


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", HOMES)
def test_crash_at_every_change(kind: str) -> None:
    """D27: wherever a run stops, what was sealed is there once or due, nothing is early or twice, no orphan stays."""
    assert sum(crash_everywhere(kind, seed) for seed in SEEDS[kind]) >= LEAST


@pytest.mark.parametrize("kind", HOMES)
def test_crash_while_recovering(kind: str) -> None:
    """D27: crashes while what the last one left is being opened and cleaned lose nothing either."""
    assert sum(crash_again_and_again(kind, seed, 12) for seed in (1, 20, 38)) >= 60


@pytest.mark.parametrize("kind", HOMES)
def test_crash_after_failures(kind: str) -> None:
    """D27: the store refuses something, the run goes on, and stops later: what was reported is there all the same."""
    assert sum(fail_everywhere(kind, seed, 16) for seed in (1, 30, 31)) >= 20


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(100, 112))
@pytest.mark.parametrize("kind", HOMES)
def test_many_crashes(kind: str, seed: int) -> None:
    """D27: the same over longer runs."""
    assert crash_everywhere(kind, seed, 60) > 5
    assert crash_again_and_again(kind, seed, 20) > 2
    fail_everywhere(kind, seed, 30)
