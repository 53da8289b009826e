"""Helpers for tests of consumers over each kind of port, and a consumer with a dead-letter and a retry topic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pulsar_nack import Consumer, DeadLetterPolicy, Message, NackConfig
from pulsar_nack.clock import LoopClock
from pulsar_nack.consumer import RetryTopicPolicy
from pulsar_nack.testing import FakePort, FakePublisher, FakeTopic

EXACT = NackConfig(negative_ack_precision_bit_cnt=0)


@asynccontextmanager
async def consuming(
    port: FakePort, most: int = 2, **options: Any
) -> AsyncIterator[tuple[FakePort, Consumer, FakePublisher]]:
    """A port, a consumer on it, and the publishers of its dead-letter topic and its retry topic."""
    publisher = FakePublisher()
    settings = {
        "config": EXACT,
        "dead_letter": DeadLetterPolicy(most, "dead", publisher=publisher),
        "wall_clock": LoopClock(),
        **options,
    }
    if port.traits.honours_ids:
        settings.setdefault("retry_topic", RetryTopicPolicy("again", spill_after=600, publisher=publisher))
    async with Consumer(port, **settings) as consumer:
        yield port, consumer, publisher


@asynccontextmanager
async def received(
    port: FakePort, data: bytes = b"bad", **options: Any
) -> AsyncIterator[tuple[FakePort, Consumer, FakePublisher, Message]]:
    """The same, with a message that was published and received."""
    async with consuming(port, **options) as (_, consumer, publisher):
        port.topic.publish(data)
        yield port, consumer, publisher, await consumer.receive(timeout=1)


async def is_quiet(consumer: Consumer, seconds: float = 100.0) -> bool:
    """Return whether nothing more is delivered."""
    try:
        await consumer.receive(timeout=seconds)
    except TimeoutError:
        return True
    return False


async def all_that_comes(consumer: Consumer, seconds: float) -> AsyncIterator[Message]:
    """Receive until nothing comes for a while."""
    while True:
        try:
            message = await consumer.receive(timeout=seconds)
        except TimeoutError:
            return
        yield message


def now() -> float:
    """The virtual time, in seconds."""
    return round(asyncio.get_running_loop().time(), 6)


async def take(consumer: Consumer, count: int) -> list[Message]:
    """Receive a message that must be there."""
    return [await consumer.receive(timeout=1) for _ in range(count)]


def publish(topic: FakeTopic, *payloads: bytes, **fields: Any) -> None:
    """Publish messages, each with the same key and other fields."""
    for payload in payloads:
        topic.publish(payload, **fields)


def digits(*bounds: int) -> list[bytes]:
    """Return different payloads that can be read as numbers: those of a range."""
    return [b"%d" % number for number in range(*bounds)]


async def new_message(port: FakePort, consumer: Consumer, payload: bytes = b"x") -> Message:
    """Publish a message, and receive it."""
    port.topic.publish(payload)
    return await consumer.receive()


async def new_messages(port: FakePort, consumer: Consumer, *payloads: bytes) -> list[Message]:
    """Publish messages, and receive them."""
    publish(port.topic, *payloads)
    return await take(consumer, len(payloads))


def numbered(count: int) -> list[bytes]:
    """Return different payloads: the bytes 0, 1, 2 and so on."""
    return [bytes([number]) for number in range(count)]


async def settle(seconds: float = 1.0) -> None:
    """Let everything that runs end."""
    await asyncio.sleep(seconds)


def backlog(port: FakePort) -> int:
    """Return how many entries are unacknowledged at the broker."""
    return port.subscription.backlog
