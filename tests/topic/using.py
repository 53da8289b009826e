"""Local topics with one consumer's port, for most tests, and the messages that arrive there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from pulsar_nack import Delivery
from pulsar_nack.consumer import ConsumerPort
from pulsar_nack.testing import FaultyPort, LocalBroker
from pulsar_nack.topic import LocalTopic
from tests.patience import patience


class Local(NamedTuple):
    """A broker with a topic, and a port of the subscription ``s``."""

    broker: LocalBroker
    topic: LocalTopic
    port: FaultyPort


@asynccontextmanager
async def subscribed(
    *config: Any, kind: Any = "shared", delayed: Any = None, clock: Any = None, **settings: Any
) -> AsyncIterator[Local]:
    """Subscribe to a topic in memory, on virtual time.

    :param config: the topic's
    :param settings: of the subscription
    """
    async with LocalBroker(*config, delayed=delayed, clock=clock) as broker:
        topic = await broker.topic()
        yield Local(broker, topic, await broker.subscribe("s", kind, **settings))


async def take(port: ConsumerPort, count: int) -> list[Delivery]:
    """Receive this many messages."""
    return [await asyncio.wait_for(port.receive(), patience(5)) for _ in range(count)]


async def until_quiet(port: ConsumerPort, seconds: float = 1.0) -> list[Delivery]:
    """Receive until nothing comes for a while."""
    got: list[Delivery] = []
    while True:
        try:
            got.append(await asyncio.wait_for(port.receive(), seconds))
        except TimeoutError:
            return got


async def nothing_comes(port: ConsumerPort, seconds: float = 0.05) -> bool:
    """Return whether nothing is received for a moment."""
    return not await until_quiet(port, seconds)


def payloads(deliveries: list[Delivery]) -> list[bytes]:
    """Return the payloads."""
    return [delivery.data for delivery in deliveries]


def numbered(count: int) -> list[bytes]:
    """Return different payloads."""
    return [b"%d" % number for number in range(count)]


def now() -> float:
    """Return virtual seconds."""
    return asyncio.get_running_loop().time()
