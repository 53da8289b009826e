"""The tiers of the tests: what ``make test`` runs, and what only ``make test-all`` runs.

``make test`` is the fast tier (``-m "not slow and not broker"``): nothing that takes more than a second of processor
time, at most 15 examples of each Hypothesis test, and a seeded tenth of each matrix. Every other choice of tests runs
in full.

Hypothesis holds the tier: its profile is ``fast`` or ``all``. ``SEED`` chooses other examples and another tenth;
without it each run has the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any, TypeVar

import pytest
from hypothesis import settings

T = TypeVar("T")

SEED = int(os.environ.get("SEED", "0"))
"""Chooses the examples of Hypothesis and the tenth of a matrix."""

SHARE = 10
"""The fast tier tries one of this many points of a matrix."""

# No deadline per example: on a busy machine it would look like a fault. Each test has a time limit.
settings.register_profile("all", deadline=None, derandomize=not SEED, print_blob=True)
settings.register_profile("fast", settings.get_profile("all"), max_examples=15, stateful_step_count=20)


def choose(config: pytest.Config) -> None:
    """Load the profile of the tier that ``-m`` selects."""
    if SEED:
        config.option.hypothesis_seed = SEED
    settings.load_profile("fast" if "not slow" in config.option.markexpr else "all")


def is_fast() -> bool:
    """Return whether this is the fast tier."""
    return settings.get_current_profile_name() == "fast"


def examples(most: int, steps: int | None = None, **others: Any) -> settings:
    """Return settings of a Hypothesis test: this many examples and steps in full, fewer in the fast tier."""
    if is_fast():
        return settings(**others)
    if steps is not None:
        others["stateful_step_count"] = steps
    return settings(max_examples=most, **others)


def size(whole: int, *, fast: int) -> int:
    """Return a number that depends on the tier: ``fast`` in the fast tier, ``whole`` otherwise."""
    return fast if is_fast() else whole


def sample(points: Sequence[T], *, least: int = 1, most: int | None = None) -> list[T]:
    """Return the points of a matrix that this tier tries, in order: all, or a tenth in the fast tier.

    :param least: the fast tier tries at least this many
    :param most: the fast tier tries at most this many

    The choice depends on the seed and the number of points only.
    """
    if not is_fast():
        return list(points)
    count = min(len(points), max(least, len(points) // SHARE), most or len(points))
    chosen = Random(SEED).sample(range(len(points)), count)
    return [points[at] for at in sorted(chosen)]


def seeds(values: Iterable[T], *, fast: int = 1) -> list[Any]:
    """Return parameters for ``parametrize``: the first few run in the fast tier too, the others are marked slow."""
    return [value if at < fast else pytest.param(value, marks=pytest.mark.slow) for at, value in enumerate(values)]
