"""The wire consumer of one topic on a real broker, without a Consumer above it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pulsar

from pulsar_nack.wire._connection._context import ClientContext
from pulsar_nack.wire._connection._pool import Pool
from pulsar_nack.wire._consumer._subscribe_options import SubscribeOptions
from pulsar_nack.wire._consumer._topic_consumer import TopicConsumer
from tests.consumer.official import official_client
from tests.wire.consuming import Arrived

SUBSCRIPTION = "sub"


class Wire:
    """A client; ``open`` subscribes consumers of one topic."""

    def __init__(self, context: ClientContext, topic: str) -> None:
        self.context = context
        self.topic = topic
        self.consumers: list[TopicConsumer] = []

    async def open(self, arrived: Arrived, **options: Any) -> TopicConsumer:
        """Return a consumer that is subscribed from the earliest message on."""
        settings = SubscribeOptions(SUBSCRIPTION, **{"initial_position": "earliest", **options})
        consumer = TopicConsumer(self.context, self.topic, settings, arrived.put)
        self.consumers.append(consumer)
        await consumer.open()
        return consumer


@asynccontextmanager
async def wire(url: str, topic: str) -> AsyncIterator[Wire]:
    """Yield a client, closed afterwards with its consumers."""
    pool = Pool(url)
    made = Wire(ClientContext(pool), topic)
    try:
        yield made
    finally:
        for consumer in made.consumers:
            await consumer.aclose()
        await pool.aclose()


async def publish(url: str, topic: str, payloads: list[bytes], **settings: Any) -> None:
    """Send messages with the official client, each as an entry unless ``settings`` enable batching."""
    async with official_client(url) as client:
        producer = await client.create_producer(topic, **{"batching_enabled": False, **settings})
        if settings.get("batching_enabled"):
            await asyncio.gather(*(producer.send(payload) for payload in payloads))
        else:
            for payload in payloads:
                await producer.send(payload)
        await producer.close()


async def publish_batch(url: str, topic: str, payloads: list[bytes], **settings: Any) -> None:
    """Send messages as one batch."""
    whole = {
        "batching_enabled": True,
        "batching_max_messages": len(payloads),
        "batching_max_publish_delay_ms": 5_000,
        "batching_type": pulsar.BatchingType.Default,
    }
    await publish(url, topic, payloads, **whole, **settings)
