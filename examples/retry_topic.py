"""A worker that lets messages wait outside of it: a shop that is closed is asked again when it opens.

    pip install 'pulsar-nack[demo]'
    python examples/retry_topic.py

Orders of shops that are closed wait in the retry topic until those open. One shop never opens: after three attempts its
order is a dead letter. Meanwhile the worker has nothing unacknowledged. The program uses the broker at
PULSAR_SERVICE_URL, or starts an embedded one.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pulsar_nack
from pulsar_nack import Consumer, DeadLetterPolicy, NackConfig
from pulsar_nack.consumer import RetryTopicPolicy
from pulsar_nack.testing import EmbeddedBroker

TOPIC = "example-orders"
OPENS_IN = {b"baker": 0.0, b"butcher": 1.0, b"florist": 2.0, b"ghost": float("inf")}  # seconds; hours in real life
PAUSE = 1.5  # for a shop that does not say when it opens


class ClosedShopError(Exception):
    """The shop is closed; ``opens_in`` says for how long, None if nobody knows."""

    def __init__(self, opens_in: float | None) -> None:
        self.opens_in = opens_in
        super().__init__("closed")


def deliver(shop: bytes, began_at: float) -> None:
    """Deliver an order."""
    opens_in = OPENS_IN[shop] - (time.monotonic() - began_at)
    if opens_in > 0.01:
        raise ClosedShopError(opens_in if opens_in < 3600 else None)


async def work(consumer: Consumer) -> None:
    """Handle orders until none is left."""
    began_at = time.monotonic()
    left = set(OPENS_IN)
    while left:
        message = await consumer.receive(timeout=20)
        shop, at = message.data, time.monotonic() - began_at
        try:
            deliver(shop, began_at)
        except ClosedShopError as closed:
            delay = PAUSE if closed.opens_in is None else closed.opens_in
            print(f"{at:.1f} s: {shop.decode()}, attempt {message.attempt}: closed, again in {delay:.1f} s")
            if message.attempt == 3:
                left.discard(shop)
            await message.reconsume_later(delay, reason="closed")
        else:
            print(f"{at:.1f} s: {shop.decode()}, attempt {message.attempt}: delivered")
            left.discard(shop)
            await message.ack()


async def main() -> None:
    """Send orders, handle them, and look at the dead letters."""
    async with (
        broker() as url,
        pulsar_nack.connect(url) as client,
        client.subscribe(f"{TOPIC}-shops-DLQ", "repair") as repair,
        client.subscribe(
            TOPIC,
            "shops",
            retry_topic=RetryTopicPolicy(),
            dead_letter=DeadLetterPolicy(max_redeliveries=2),
            config=NackConfig(negative_ack_precision_bit_cnt=0),  # to the millisecond
        ) as consumer,
    ):
        async with client.producer(TOPIC) as producer:
            for shop in OPENS_IN:
                await producer.send(shop)
        await work(consumer)
        letter = await repair.receive(timeout=5)
        print(f"dead letter: {letter.data.decode()}, {letter.properties['PULSAR_NACK_REASON']}")
        await letter.ack()
        statistics = consumer.statistics()
        print(f"{statistics.retried} waited in the retry topic, {statistics.unacked} are unacknowledged")


@asynccontextmanager
async def broker() -> AsyncIterator[str]:
    """Yield the address of the broker in the environment, or of an embedded one."""
    if url := os.environ.get("PULSAR_SERVICE_URL"):
        yield url
    else:
        async with EmbeddedBroker() as embedded:
            yield embedded.service_url


if __name__ == "__main__":
    asyncio.run(main())
