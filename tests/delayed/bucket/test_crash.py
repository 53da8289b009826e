"""D27: the tracker is stopped at every operation on storage, and what comes back is compared with a model."""

from __future__ import annotations

from random import Random

import pytest

from tests.crash_homes import HOMES, crash_again_and_again, crash_everywhere, fail_everywhere
from tests.tiers import seeds

from .crashes import Model, Run

SEEDS = (1, 24, 26, 27, 29, 30, 38)


def start(kind: str, seed: int, random: Random | None = None) -> Run:
    """Return a run on a new home."""
    return Run(HOMES[kind](random or Random(seed)), Model(seed), seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", HOMES)
def test_crash_at_every_change(kind: str, seed: int) -> None:
    """D27: wherever a run stops, what was sealed is there once or due, nothing is early or twice, no orphan stays."""
    print(crash_everywhere(start(kind, seed), seed))


@pytest.mark.parametrize("seed", (1, 20, 38))
@pytest.mark.parametrize("kind", HOMES)
def test_crash_while_recovering(kind: str, seed: int) -> None:
    """D27: crashes while what the last one left is being opened and cleaned lose nothing either."""
    print(crash_again_and_again(start(kind, seed), seed, 12))


@pytest.mark.parametrize("seed", (1, 30, 31))
@pytest.mark.parametrize("kind", HOMES)
def test_crash_after_failures(kind: str, seed: int) -> None:
    """D27: the store refuses something, the run goes on, and stops later: what was reported is there all the same."""
    print(fail_everywhere(lambda random: start(kind, seed, random), seed, 16))
