"""A dispatcher of delayed messages: it reads all reminders at once, and sends each at its time.

    pip install pulsar-nack
    python examples/delayed.py

It needs no broker: the log of reminders is a list. Each reminder is printed when it is sent, with its error in time.
"""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from pulsar_nack import DelayedDeliveryConfig, InMemoryDelayedDeliveryTracker, Position

LEDGER = 1
TICK_MS = 64  # how much too early a reminder may be sent; it is never late


class Reminder(NamedTuple):
    """An entry of the log: a text, and when to send it in epoch ms; -1: at once."""

    text: str
    deliver_at: int


def write_log() -> list[Reminder]:
    """Return the reminders, in the order in which they were published."""
    now_ms = int(time.time() * 1000)
    delays = {"tea is ready": 900, "stand up": 300, "call back": 600, "water the plants": 1_200}
    return [Reminder("hello", -1), *(Reminder(text, now_ms + delay) for text, delay in delays.items())]


class Dispatcher:
    """Reads the log once, sends reminders that are due, and holds the others back."""

    def __init__(self, log: list[Reminder]) -> None:
        self.log = log
        self.wake = asyncio.Event()
        self.tracker = InMemoryDelayedDeliveryTracker(
            DelayedDeliveryConfig(delayed_delivery_tick_time_millis=TICK_MS), on_due=self.wake.set
        )
        self.off_by: dict[str, int] = {}

    async def run(self) -> None:
        """Send every reminder at its time."""
        async with self.tracker:
            for entry, reminder in enumerate(self.log):
                if not self.tracker.add_message(LEDGER, entry, reminder.deliver_at):
                    self.send(Position(LEDGER, entry))
            print(f"{self.tracker.number_of_delayed_messages} reminders wait")
            while self.tracker.number_of_delayed_messages:
                await self.wake.wait()
                self.wake.clear()
                while self.tracker.has_message_available():
                    for position in self.tracker.get_scheduled_messages(100):
                        self.send(position)

    def send(self, position: Position) -> None:
        """Send one reminder."""
        text, deliver_at = self.log[position.entry]
        off_by = int(time.time() * 1000) - deliver_at if deliver_at >= 0 else 0
        self.off_by[text] = off_by
        print(f"{text!r}, off by {off_by} ms")


async def main() -> None:
    """Run the dispatcher over a log of five reminders."""
    dispatcher = Dispatcher(write_log())
    await dispatcher.run()
    print(f"sent {len(dispatcher.off_by)} reminders")


if __name__ == "__main__":
    asyncio.run(main())
