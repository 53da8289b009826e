"""The messages that bucket trackers return, over time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

from pulsar_nack import BucketConfig, BucketDelayedDeliveryTracker, Position
from pulsar_nack.delayed import LogBucketTracker
from pulsar_nack.testing import ManualClock

Row = tuple[int, int, int]
"""Ledger, entry, and when it is due."""


async def take_all(tracker: LogBucketTracker) -> list[Position]:
    """Take out all due messages, also those that must be loaded first."""
    taken: list[Position] = []
    while tracker.has_message_available():
        taken += tracker.get_scheduled_messages(7)
        await tracker.wait_until_idle()
    return taken


async def deliveries(
    folder: Path, config: BucketConfig, times: Iterable[int], by_hand: Sequence[Row] = ()
) -> list[tuple[int, list[Position]]]:
    """Open a tracker at time 0, add some rows, and return the messages that come at each time."""
    clock = ManualClock(0)
    found = []
    async with await BucketDelayedDeliveryTracker.open_local(folder, config, clock=clock) as tracker:
        await tracker.wait_until_recovered()
        for ledger, entry, deliver_at in by_hand:
            tracker.add_message(ledger, entry, deliver_at)
        await tracker.wait_until_idle()
        assert tracker.statistics().last_error is None
        for at in sorted(times):
            clock.set(at)
            await asyncio.sleep(0)
            found.append((at, await take_all(tracker)))
        assert tracker.number_of_delayed_messages == 0
    return found


def moments(rows: Iterable[Row]) -> list[int]:
    """Return a ms before, at and after each time."""
    return sorted({at + off for _, _, at in rows for off in (-1, 0, 1)})


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file of a folder, by its path in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
