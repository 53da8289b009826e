"""Bookings of each account in their order, also when one of them fails and has to wait for its retry.

    pip install 'pulsar-nack[demo]'
    python examples/key_order.py

It uses the broker at PULSAR_SERVICE_URL, or starts an embedded one. Accounts are handled side by side; within an
account a booking begins when the one before it is done. With several workers, subscribe with Key_Shared.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pulsar_nack
from pulsar_nack import Message
from pulsar_nack.consumer import Retry
from pulsar_nack.testing import EmbeddedBroker

TOPIC = "example-key-order-bookings"
ACCOUNTS = ("anna", "bert", "cleo")
STEPS = ("open", "deposit", "withdraw", "close")


async def book(message: Message) -> None:
    """Book one step; Bert's deposit fails at first, and his later steps wait for it."""
    await asyncio.sleep(0.02)
    account, step = message.key, message.data.decode()
    if (account, step, message.attempt) == ("bert", "deposit", 1):
        log(f"{account}: {step} failed, again in half a second")
        raise Retry(delay=0.5)
    log(f"{account}: {step}")


async def main() -> None:
    """Publish the bookings of all accounts, mixed, and handle them."""
    async with (
        broker() as url,
        pulsar_nack.connect(url) as client,
        client.subscribe(TOPIC, "ledger") as consumer,
        client.producer(TOPIC) as producer,
    ):
        for step in STEPS:
            for account in ACCOUNTS:
                await producer.send(step.encode(), key=account)
        running = asyncio.create_task(consumer.run(book, concurrency=8, key_ordered=True, stop_on_signals=True))
        while consumer.statistics().acked < len(ACCOUNTS) * len(STEPS):  # noqa: ASYNC110 - only for the sample
            await asyncio.sleep(0.05)
        await consumer.drain(timeout=10)
        log(f"all booked: {await running}")


@asynccontextmanager
async def broker() -> AsyncIterator[str]:
    """Yield the address of the broker in the environment, or of an embedded one."""
    if url := os.environ.get("PULSAR_SERVICE_URL"):
        yield url
    else:
        async with EmbeddedBroker() as embedded:
            yield embedded.service_url


def log(text: str) -> None:
    """Print a line with the seconds since the start."""
    print(f"{time.monotonic() - STARTED_AT:6.2f} s  {text}", flush=True)


STARTED_AT = time.monotonic()

if __name__ == "__main__":
    asyncio.run(main())
