"""The official client as the tests use it: clients that are closed, producers with and without batches.

Our consumers use the official client, or the native one if the test or its module requests the fixture ``transport``;
both take the same settings, with the official client's names.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

import pulsar
import pulsar.asyncio

import pulsar_nack
from pulsar_nack import Consumer, Message, NackConfig
from tests.conftest import TRANSPORT

EXACT = NackConfig(negative_ack_precision_bit_cnt=0)
_OTHER_NAMES = {"batch_index_ack_enabled": "batch_index_ack"}


def is_over_wire() -> bool:
    """Return whether consumers use the native client."""
    return os.environ.get(TRANSPORT) == "wire"


@asynccontextmanager
async def official_client(url: str) -> AsyncIterator[Any]:
    """An asyncio client of the official library that logs little, closed at the end."""
    client = pulsar.asyncio.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        yield client
    finally:
        await client.close()
        await asyncio.sleep(0.05)  # its thread releases Python objects; a process that exits meanwhile is aborted


@asynccontextmanager
async def subscribed(url: str, topic: str | list[str], **settings: Any) -> AsyncIterator[tuple[Any, Consumer]]:
    """A client and one of our consumers on the subscription ``sub``, exact to the ms by default."""
    async with official_client(url) as client, subscribing(client, url) as subscribe:
        consumer = await subscribe(topic, **{"config": EXACT, **settings})
        yield client, consumer


class Subscribe(Protocol):
    """Subscribes as ``sub``; the consumer is closed at the end, unless the test closes it before."""

    async def __call__(self, topic: str | list[str], **settings: Any) -> Consumer:
        """Subscribe to one topic or several."""
        ...


@asynccontextmanager
async def subscribing(client: Any, url: str) -> AsyncIterator[Subscribe]:
    """Return a function that makes our consumers with this client, or with the native one."""
    async with AsyncExitStack() as stack:
        native = await stack.enter_async_context(pulsar_nack.connect(url)) if is_over_wire() else None

        async def subscribe(topic: str | list[str], **settings: Any) -> Consumer:
            if native is None:
                return await stack.enter_async_context(pulsar_nack.subscribe(client, topic, "sub", **settings))
            renamed = {_OTHER_NAMES.get(name, name): value for name, value in settings.items()}
            return await stack.enter_async_context(native.subscribe(topic, "sub", **renamed))

        yield subscribe


async def send(client: Any, topic: str, payloads: Sequence[bytes], *, batched: bool = False, **options: Any) -> None:
    """Send payloads, each in one entry or all in one."""
    producer = await client.create_producer(
        topic, batching_enabled=batched, batching_max_publish_delay_ms=100, **options
    )
    await asyncio.gather(*(producer.send(payload) for payload in payloads))
    await producer.close()


async def take(consumer: Consumer, count: int, timeout: float = 10.0) -> list[Message]:
    """Receive ``count`` messages, each within ``timeout`` seconds."""
    return [await consumer.receive(timeout=timeout) for _ in range(count)]


async def nothing_comes(consumer: Consumer, seconds: float = 0.5) -> bool:
    """Return whether nothing arrives for a while."""
    try:
        await consumer.receive(timeout=seconds)
    except TimeoutError:
        return True
    return False


def numbered(count: int, first: int = 0) -> list[bytes]:
    """Return the payloads ``b"0"``, ``b"1"``, ..."""
    return [str(number).encode() for number in range(first, first + count)]


def payloads(messages: Sequence[Message]) -> list[bytes]:
    """Return the payloads, sorted."""
    return sorted(message.data for message in messages)


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._started_at = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds until now."""
        return time.monotonic() - self._started_at
