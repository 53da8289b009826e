"""Consumers as users use them, on a scripted broker: subscribed from the first message on, with exact delays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from pulsar_nack import Consumer, Message, MessageId, NackConfig
from pulsar_nack.wire import Client, ClientOptions
from tests.wire.fake_broker import FakeBroker
from tests.wire.fake_topics import FakeSubscription, FakeTopic

BASE: Final = "persistent://public/default/"
TOPIC: Final = f"{BASE}t"
EARLIEST: Final = MessageId(-1, -1)
LATEST: Final = MessageId(2**63 - 1, 2**63 - 1)
EXACT: Final = NackConfig(negative_ack_precision_bit_cnt=0)
TYPES: Final = ["shared", "key_shared", "exclusive", "failover"]


@asynccontextmanager
async def subscribed(
    broker: FakeBroker,
    topic: Any = "t",
    subscription: str = "s",
    *,
    client_options: ClientOptions | None = None,
    **settings: Any,
) -> AsyncIterator[Consumer]:
    """A consumer with its own client."""
    about = {"initial_position": "earliest", "config": EXACT, **settings}
    async with (
        Client(broker.url, client_options, dial=broker.dial) as client,
        client.subscribe(topic, subscription, **about) as consumer,
    ):
        yield consumer


async def take(consumer: Consumer, count: int, *, seconds: float = 5.0) -> list[Message]:
    """Receive a message that must be there."""
    return [await consumer.receive(timeout=seconds) for _ in range(count)]


async def received(consumer: Consumer, *, seconds: float = 5.0, ack: bool = True) -> list[bytes]:
    """Receive and acknowledge until nothing comes for a while; return the payloads."""
    data: list[bytes] = []
    while True:
        try:
            message = await consumer.receive(timeout=seconds)
        except TimeoutError:
            return data
        data.append(message.data)
        if ack:
            await message.ack()


async def is_quiet(consumer: Consumer, seconds: float = 5.0) -> bool:
    """Return whether nothing is delivered for a while."""
    return await received(consumer, seconds=seconds, ack=False) == []


def now() -> float:
    """Return the time of the loop."""
    return asyncio.get_running_loop().time()


def numbers(count: int) -> list[bytes]:
    """Return different payloads."""
    return [b"%d" % number for number in range(count)]


def publish(broker: FakeBroker, *payloads: bytes, topic: str = TOPIC) -> FakeTopic:
    """Publish messages."""
    for payload in payloads:
        broker.topic(topic).publish(payload)
    return broker.topic(topic)


def broker_with(*payloads: bytes, topic: str = TOPIC) -> FakeBroker:
    """Return a broker with messages in a topic."""
    broker = FakeBroker()
    publish(broker, *payloads, topic=topic)
    return broker


def the(broker: FakeBroker, topic: str = TOPIC) -> FakeSubscription:
    """Return the subscription at the broker."""
    return broker.topic(topic).subscriptions["s"]
