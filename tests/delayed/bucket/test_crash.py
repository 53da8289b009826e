"""D27: the tracker crashes at every operation on storage, and recovery is compared with a model."""

from __future__ import annotations

from random import Random

import pytest

from tests.crash_homes import HOMES, crash_again_and_again, crash_everywhere, fail_everywhere
from tests.tiers import seeds

from .crashes import Model, Run

SEEDS = seeds((34, 38, 9, 10, 42))
LEAST = 100
"""Crash points of each seed on each home, at the least: 500 on each home."""


def start(kind: str, seed: int, random: Random | None = None) -> Run:
    """Return a run on a new home."""
    return Run(HOMES[kind](random or Random(seed)), Model(seed), seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", HOMES)
def test_crash_at_every_change(kind: str, seed: int) -> None:
    """D27: wherever a run crashes, sealed messages are there once or due, none is early or twice, no orphan stays."""
    crash_everywhere(start(kind, seed), seed, LEAST)


@pytest.mark.parametrize("seed", seeds((1, 20, 38)))
@pytest.mark.parametrize("kind", HOMES)
def test_crash_while_recovering(kind: str, seed: int) -> None:
    """D27: crashes during recovery and cleaning lose nothing either."""
    crash_again_and_again(start(kind, seed), seed, 20, most=12)


@pytest.mark.parametrize("seed", seeds((30, 1, 31)))
@pytest.mark.parametrize("kind", HOMES)
def test_crash_after_failures(kind: str, seed: int) -> None:
    """D27: the store refuses something, the run continues, and crashes later: what was reported as durable is there."""
    fail_everywhere(lambda random: start(kind, seed, random), seed, 7, most=32)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 102))
@pytest.mark.parametrize("kind", HOMES)
def test_many_crashes(kind: str, seed: int) -> None:
    """D27: the same over longer runs."""
    crash_everywhere(start(kind, seed), seed, 6, most=60)
    crash_again_and_again(start(kind, seed), seed, 3, most=20)
    fail_everywhere(lambda random: start(kind, seed, random), seed, 0, most=30)
