"""All orders of events around two messages and two workers end right; see ``two_workers.py`` for what that is.

``EVENTS=7`` and ``DISTURBANCES=2`` set other bounds for the whole tier; each event more takes four times as long.
"""

from __future__ import annotations

import logging
import os

import pytest

pytest.importorskip("google_crc32c")

from pulsar_nack.testing import virtual_time

from .orders import Bounds, explore

EVENTS = os.environ.get("EVENTS")
MOST = int(os.environ.get("DISTURBANCES", "1"))


async def check(bounds: Bounds) -> None:
    """Explore, and print how much that was."""
    logging.getLogger("pulsar_nack").setLevel(logging.CRITICAL)
    found = await explore(bounds)
    print(f"{bounds}: {found}")
    assert not found.wrong, str(found)


@pytest.mark.parametrize("kind", ["shared", "failover"])
@virtual_time
async def test_all_short_orders_end_right(kind: str) -> None:
    """Whatever the order, what is unacknowledged is shown in time, what is gone once more at most."""
    await check(Bounds(kind, 2, 1))
