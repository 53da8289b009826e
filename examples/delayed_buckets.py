"""A dispatcher that is restarted: 30 000 reminders are on disk, and come at their times without a rebuild.

    pip install 'pulsar-nack[bucket]'
    python examples/delayed_buckets.py

It needs no broker: the log of reminders is a list, and the sent reminders are a set. The first run sends the reminders
of about the first half second, and the second run continues from the folder. Most reminders are spread over the next
hour, and just wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from pathlib import Path

from pulsar_nack import BucketConfig, BucketDelayedDeliveryTracker, Position
from pulsar_nack.delayed import LogDelayedCursor

LEDGER_SIZE = 10_000  # entries of one ledger of the log
SOON = {"stand up": 200, "call back": 400, "tea is ready": 800, "water the plants": 1_000}  # ms
CONFIG = BucketConfig(
    delayed_delivery_tick_time_millis=64,
    delayed_delivery_min_index_count_per_bucket=5_000,  # 50 000 by default; this log is short
)


def now_ms() -> int:
    """Return the time in epoch ms."""
    return int(time.time() * 1000)


def write_log() -> list[tuple[str, int]]:
    """Return texts and times: four reminders that are due soon, then 30 000 that are spread over an hour."""
    now = now_ms()
    soon = [(text, now + delay) for text, delay in SOON.items()]
    return soon + [(f"reminder {number}", now + 60_000 + 120 * number) for number in range(30_000)]


def position_of(number: int) -> Position:
    """Return the position of a reminder in the log."""
    return Position(*divmod(number, LEDGER_SIZE))


class Dispatcher:
    """Reads the log, sends reminders that are due, and holds the others back in a folder."""

    def __init__(self, log: list[tuple[str, int]], folder: Path) -> None:
        self.log = log
        self.folder = folder
        self.sent: set[int] = set()  # a subscription's acknowledgements

    async def run(self, seconds: float) -> None:
        """Open the folder of an earlier run, and dispatch for some time."""
        wake = asyncio.Event()
        began_at = time.perf_counter()
        async with await BucketDelayedDeliveryTracker.open_local(self.folder, CONFIG, on_due=wake.set) as tracker:
            took_ms = 1000 * (time.perf_counter() - began_at)
            print(f"{tracker.number_of_delayed_messages} reminders were on disk ({took_ms:.0f} ms)")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    self.read(tracker)
                    await tracker.wait_until_idle()
                    while True:
                        await wake.wait()
                        wake.clear()
                        self.send_due(tracker)
                        await self.mark(tracker.cursor)
            statistics = tracker.statistics()
            print(
                f"{statistics.messages} reminders wait: {statistics.buckets} buckets, {statistics.snapshot_bytes} bytes"
                f" on disk, {statistics.bytes} in memory"
            )

    def read(self, tracker: BucketDelayedDeliveryTracker) -> None:
        """Add all reminders that are not sent; the tracker recognizes those that it already has."""
        for number, (_, deliver_at) in enumerate(self.log):
            if number not in self.sent and not tracker.add_message(*position_of(number), deliver_at):
                self.send(number)

    def send_due(self, tracker: BucketDelayedDeliveryTracker) -> None:
        """Send the reminders that the tracker returns."""
        while positions := tracker.get_scheduled_messages(100):
            for ledger, entry in positions:
                self.send(ledger * LEDGER_SIZE + entry)

    def send(self, number: int) -> None:
        """Send one reminder."""
        assert number not in self.sent
        self.sent.add(number)
        text, deliver_at = self.log[number]
        print(f"{text!r}, off by {now_ms() - deliver_at} ms")

    async def mark(self, cursor: LogDelayedCursor) -> None:
        """Move the mark-delete position up to the first reminder that is not sent."""
        first = next(number for number in range(len(self.log)) if number not in self.sent)
        if first:
            await cursor.mark_delete(position_of(first - 1))


async def main() -> None:
    """Run the dispatcher twice over one folder."""
    with tempfile.TemporaryDirectory() as folder:
        dispatcher = Dispatcher(write_log(), Path(folder))
        await dispatcher.run(0.6)
        print("restarted")
        await dispatcher.run(1.0)
    print(f"sent {len(dispatcher.sent)} reminders")


if __name__ == "__main__":
    asyncio.run(main())
