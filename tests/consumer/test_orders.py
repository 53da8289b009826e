"""All orders of events around two messages and two workers end right, as ``two_workers.py`` defines it.

How many orders these were, and how long they took, is printed (``pytest -s``). ``EVENTS=7 DISTURBANCES=1`` sets other
bounds for the whole tier: each further event takes three times as long, each further disturbance ten times.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pytest

from pulsar_nack.testing import virtual_time

pytest.importorskip("google_crc32c")

from .orders import Bounds, explore

KINDS: Final = ("shared", "failover")
SHORT: Final = [Bounds("shared", 3, 1, about="a"), Bounds("failover", 3, 1, about="b")]
LONG: Final = [
    bounds
    for kind in KINDS
    for bounds in (
        Bounds(kind, 5, 1, about="a"),
        Bounds(kind, 5, 1, about="b"),
        Bounds(kind, 3, 2, placed={"a": 1, "b": 1 if kind == "failover" else 2}),
    )
]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Write no log lines, of which there would be thousands."""
    logger = logging.getLogger("pulsar_nack")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


async def check(bounds: Bounds) -> None:
    """Explore, and print how much that was."""
    found = await explore(bounds)
    print(f"\n{bounds}: {found}", end="")
    assert not found.wrong, f"{bounds}: {found}"


@pytest.mark.smoke
@pytest.mark.parametrize("bounds", SHORT, ids=str)
@virtual_time
async def test_all_short_orders_end_right(bounds: Bounds) -> None:
    """In any order of events, unacknowledged messages come in time, and removed ones at most once more."""
    await check(bounds)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("bounds", LONG, ids=str)
@virtual_time
async def test_all_orders_end_right(bounds: Bounds) -> None:
    """All orders of more events, or with more disturbances, end right."""
    events, most = os.environ.get("EVENTS", bounds.events), os.environ.get("DISTURBANCES", bounds.disturbances)
    await check(replace(bounds, events=int(events), disturbances=int(most)))
