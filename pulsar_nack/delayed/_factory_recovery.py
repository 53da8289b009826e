"""Whether a bucket tracker that was just opened is of use, or storage is in such trouble that memory is better."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from ..errors import SnapshotError
from .bucket import BucketDelayedDeliveryTracker

_PATIENCE: Final = 5.0
"""How long a storage of which every read fails is waited for, in seconds, if no less is allowed."""


async def ensure_recovered(tracker: BucketDelayedDeliveryTracker, until: float) -> None:
    """Return when a tracker has recovered, or has recovered something and goes on trying what failed.

    :param until: loop time up to which it may take
    :raises TimeoutError: some snapshots were not tried by then
    :raises SnapshotError: all were tried, again and again for some seconds, and none could be read
    """
    try:
        async with asyncio.timeout_at(until):
            await tracker.wait_until_recovered(once=True)
    except TimeoutError:
        raise TimeoutError("the recovery of delayed messages was not done in time") from None
    if _is_in_vain(tracker):
        with suppress(TimeoutError):
            async with asyncio.timeout_at(min(until, asyncio.get_running_loop().time() + _PATIENCE)):
                await tracker.wait_until_recovered()
    if _is_in_vain(tracker):
        raise SnapshotError("no snapshot of delayed messages could be read") from tracker.statistics().last_error


def _is_in_vain(tracker: BucketDelayedDeliveryTracker) -> bool:
    statistics = tracker.statistics()
    return statistics.is_recovering and not statistics.buckets
