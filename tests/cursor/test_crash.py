"""The cursor is stopped at every operation on storage, and what comes back is compared with a model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random

import pytest

from pulsar_nack.cursor import _log, _writing
from pulsar_nack.ledger import _local_store, _object_store
from pulsar_nack.testing import SimulatedCrash
from tests.delayed.bucket.crash_homes import CrashHome, Inline, LocalCrashHome, ObjectCrashHome

from .crashes import Model, Run

HOMES: dict[str, Callable[[Random], CrashHome]] = {"local": LocalCrashHome, "object": ObjectCrashHome}
SEEDS = (1, 2, 3, 8, 9)
LEAST = 500
"""Crash points on each home, at the least."""


@pytest.fixture(autouse=True)
def _inline(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Let the work on files be done where it is asked for, and ledgers be encoded in one go: each run is the same."""
    caplog.set_level(logging.CRITICAL, logger="asyncio")
    monkeypatch.setattr(_local_store, "ThreadPoolExecutor", Inline)
    monkeypatch.setattr(_object_store, "ThreadPoolExecutor", Inline)
    monkeypatch.setattr(_writing, "_SLICE_S", 1e9)


def live(run: Run, restarts: int = 3, steps: int = 12) -> bool:
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
    """Open what a crash left, in one form or the other, and go on to the end."""
    old_form = None if random.random() < 0.8 else True
    again = Run(run.home.found(), run.model, run.model.seed + 1, old_form=old_form)
    if random.random() < 0.3:
        asyncio.run(again.play(1, 4))
    asyncio.run(again.finish())


def crash_everywhere(kind: str, seed: int, most: int = 10_000) -> int:
    """Crash a run at its operations that change something; return how often it crashed."""
    points = changes_of(kind, seed, most)
    for at in points:
        random = Random(f"{seed} {at}")
        run = Run(HOMES[kind](random), Model(seed), seed)
        run.home.crash(at, after=random.random() < 0.5)
        live(run)
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
            if not live(run, 1 if again else 3, 4 if again else 12):
                break
            points += 1
            run = Run(run.home.found(), run.model, seed + again)
            run.home.crash(random.randrange(60), after=random.random() < 0.5)
        recover(run, random)
    return points


def fail_everywhere(kind: str, seed: int, most: int) -> int:
    """Let operations fail, once or a few times, and the run crash later; return how often it crashed."""
    points = 0
    changes = changes_of(kind, seed)  # once: timers may make another run a little different
    step = -(-len(changes) // most)
    for number in range(seed % step, len(changes), step):
        at = changes[number]
        random = Random(f"{seed} {at}")
        run = Run(HOMES[kind](random), Model(seed), seed)
        run.home.fail(number, random.choice([1, 1, 2, 5]))
        run.home.crash(at + random.randrange(100), after=random.random() < 0.5)
        if live(run):
            points += 1
        recover(run, random)
    return points


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", HOMES)
def test_crash_at_every_change(kind: str) -> None:
    """K24, K28: wherever a run stops, what was reported durable is there, what was not may be missing, never wrong."""
    assert sum(crash_everywhere(kind, seed) for seed in SEEDS) >= LEAST


@pytest.mark.parametrize("kind", HOMES)
def test_crash_while_recovering(kind: str) -> None:
    """K24: crashes while what the last one left is being opened and cleaned lose nothing either."""
    assert sum(crash_again_and_again(kind, seed, 12) for seed in (1, 2, 3)) >= 30


@pytest.mark.parametrize("kind", HOMES)
def test_crash_after_failures(kind: str) -> None:
    """K32: the store refuses something, the run goes on, and stops later: what was reported is there all the same."""
    assert sum(fail_everywhere(kind, seed, 16) for seed in (1, 2, 3)) >= 10


@pytest.mark.parametrize("group", [0, _log.GROUP], ids=["an append for each", "one append"])
def test_crash_while_ledgers_are_written_by_turns(group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """K24, K31: others run after each ledger that is encoded: what is found was acknowledged, and no reset undone."""
    monkeypatch.setattr(_writing, "_SLICE_S", -1)
    monkeypatch.setattr(_log, "GROUP", group)
    points = 0
    for seed in (1, 2, 3, 4, 7):
        for at in changes_of("local", seed, 40):
            random = Random(f"{seed} {at}")
            run = Run(LocalCrashHome(random), Model(seed, is_mixed=True), seed)
            run.home.crash(at, after=random.random() < 0.5)
            points += live(run)
            recover(run, random)
    assert points >= 100


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(100, 112))
@pytest.mark.parametrize("kind", HOMES)
def test_many_crashes(kind: str, seed: int) -> None:
    """K24, K28, K32: the same over more runs."""
    assert crash_everywhere(kind, seed, 60) > 5
    assert crash_again_and_again(kind, seed, 20) > 2
    fail_everywhere(kind, seed, 30)
