"""The broker works with the official client, before anything of ours is blamed."""

from __future__ import annotations

import pulsar.asyncio
import pytest


async def round_trip(url: str, topic: str, payloads: list[bytes]) -> list[bytes]:
    """Send the payloads with the official client and receive as many."""
    client = pulsar.asyncio.Client(url)
    try:
        consumer = await client.subscribe(topic, "smoke")
        producer = await client.create_producer(topic)
        for payload in payloads:
            await producer.send(payload)
        received = []
        for _ in payloads:
            message = await consumer.receive()
            received.append(message.data())
            await consumer.acknowledge(message)
        return received
    finally:
        await client.close()


@pytest.mark.both_lines
async def test_produce_and_consume(service_url: str, topic: str) -> None:
    """The official client receives what it sent to the real broker, in order."""
    payloads = [b"one", b"two", b"three"]
    assert await round_trip(service_url, topic, payloads) == payloads
