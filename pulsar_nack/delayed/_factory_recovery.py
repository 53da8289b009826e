"""Whether a bucket tracker that was just opened is of use, or storage is in such trouble that memory is better."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from ..errors import SnapshotError
from .bucket import BucketDelayedDeliveryTracker

_EARLY: Final = 0.001
"""How early a loop may fire a timer, in seconds."""


async def ensure_recovered(tracker: BucketDelayedDeliveryTracker, until: float) -> None:
    """Return when a tracker has recovered, or has most likely recovered something and goes on trying the rest.

    :param until: loop time up to which the first attempts may take, and all attempts while each of them fails
    :raises TimeoutError: some snapshots were not tried by then
    :raises SnapshotError: all were tried and none could be read
    """
    if not tracker.statistics().is_recovering:
        return
    if asyncio.get_running_loop().time() >= until - _EARLY:
        raise TimeoutError("the recovery of delayed messages was not done in time")
    if tracker.statistics().buckets:
        return
    with suppress(TimeoutError):
        async with asyncio.timeout_at(until):
            await tracker.wait_until_recovered()
    statistics = tracker.statistics()
    if statistics.is_recovering and not statistics.buckets:
        raise SnapshotError("no snapshot of delayed messages could be read") from statistics.last_error
