"""A consumer that gets ten messages, nacks three, dead-letters two of these and acknowledges eight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from pulsar_nack import Consumer

PAYLOADS = [b"%d" % number for number in range(10)]
NACKED = {b"2", b"5", b"8"}
GIVEN_UP = {b"2", b"5"}
DELAY = 2.0


async def handle_ten(consumer: Consumer, delay: float = DELAY) -> None:
    """Handle ten messages: three are redelivered, of which one is acknowledged."""
    for _ in range(len(PAYLOADS) + len(NACKED)):
        message = await consumer.receive(timeout=30)
        if message.attempt == 1 and message.data in NACKED:
            await message.nack(delay, reason="busy")
        elif message.data in GIVEN_UP:
            await message.dead_letter("bad")
        else:
            await message.ack()


def check_statistics(consumer: Consumer) -> None:
    """Assert that the statistics have exactly these figures."""
    now = consumer.statistics()
    assert (now.shown, now.redelivered_local + now.redelivered_broker) == (13, 3)
    assert (now.nacked, now.dead_lettered, now.acked) == (3, 2, 8)
    assert (now.unacked, now.held, now.requested, now.dead_letters_waiting) == (0, 0, 0, 0)


def counts_of(events: Sequence[Any]) -> dict[str, int]:
    """Return how many events of each kind a consumer has, without those of its tracker."""
    found = Counter(type(event).__name__ for event in events)
    return {name: count for name, count in found.items() if name.startswith(("Message", "Lease"))}


EXPECTED = {
    "MessageReceived": 10,
    "MessageRedelivered": 3,
    "MessageNacked": 3,
    "MessageDeadLettered": 2,
    "MessageAcknowledged": 8,
}
"""The events of these ten messages."""
