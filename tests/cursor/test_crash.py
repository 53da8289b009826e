"""The cursor crashes at every operation on storage, and recovery is compared with a model."""

from __future__ import annotations

from random import Random

import pytest

from pulsar_nack.cursor import _writer, logs
from tests.crash_homes import HOMES, crash_again_and_again, crash_everywhere, fail_everywhere
from tests.tiers import seeds

from .crashes import Model, Run

SEEDS = seeds((2, 3, 8, 13, 14))
LEAST = 100
"""Crash points of each seed on each home, at the least: 500 on each home."""


@pytest.fixture(autouse=True)
def _in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encode all ledgers in one step: each run is the same."""
    monkeypatch.setattr(_writer, "_SLICE_S", 1e9)


def start(kind: str, seed: int, random: Random | None = None, *, is_mixed: bool = False) -> Run:
    """Return a run on a new home."""
    return Run(HOMES[kind](random or Random(seed)), Model(seed, is_mixed=is_mixed), seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", HOMES)
def test_crash_at_every_change(kind: str, seed: int) -> None:
    """K24, K28: wherever a run crashes, durable changes are there, others may be missing, none is wrong."""
    crash_everywhere(start(kind, seed), seed, LEAST)


@pytest.mark.parametrize("seed", seeds([3, 1, 2]))
@pytest.mark.parametrize("kind", HOMES)
def test_crash_while_recovering(kind: str, seed: int) -> None:
    """K24: crashes during recovery and cleaning lose nothing either."""
    crash_again_and_again(start(kind, seed), seed, 30, most=12)


@pytest.mark.parametrize("seed", seeds([3, 1, 2]))
@pytest.mark.parametrize("kind", HOMES)
def test_crash_after_failures(kind: str, seed: int) -> None:
    """K32: the store refuses something, the run continues, and crashes later: reported changes are still there."""
    fail_everywhere(lambda random: start(kind, seed, random), seed, 4, most=16)


@pytest.mark.parametrize("seed", seeds([2, 1, 3, 4, 7]))
@pytest.mark.parametrize("group", [0, logs.GROUP], ids=["an append for each", "one append"])
def test_crash_while_ledgers_are_written_by_turns(group: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """K24, K31: others run after each encoded ledger: what is found was acknowledged, and no reset is undone."""
    monkeypatch.setattr(_writer, "_SLICE_S", -1)
    monkeypatch.setattr(logs, "GROUP", group)
    crash_everywhere(start("local", seed, is_mixed=True), seed, 50, most=40)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 102))
@pytest.mark.parametrize("kind", HOMES)
def test_many_crashes(kind: str, seed: int) -> None:
    """K24, K28, K32: the same over more runs."""
    crash_everywhere(start(kind, seed), seed, 6, most=60)
    crash_again_and_again(start(kind, seed), seed, 3, most=20)
    fail_everywhere(lambda random: start(kind, seed, random), seed, 0, most=30)
