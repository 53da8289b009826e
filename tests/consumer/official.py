"""The official client as the tests use it: clients that are closed, producers with and without batches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pulsar
import pulsar.asyncio

import pulsar_nack
from pulsar_nack import Consumer, Message, NackConfig

EXACT = NackConfig(negative_ack_precision_bit_cnt=0)


@asynccontextmanager
async def official_client(url: str) -> AsyncIterator[Any]:
    """An asyncio client of the official library that says little, closed in the end."""
    client = pulsar.asyncio.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        yield client
    finally:
        await client.close()
        await asyncio.sleep(0.05)  # its thread lets go of Python objects; a process that exits meanwhile is aborted


@asynccontextmanager
async def subscribed(url: str, topic: str | list[str], **settings: Any) -> AsyncIterator[tuple[Any, Consumer]]:
    """A client and a consumer of ours on the subscription ``sub``, exact to the ms unless told otherwise."""
    settings = {"config": EXACT, **settings}
    async with official_client(url) as client, pulsar_nack.subscribe(client, topic, "sub", **settings) as consumer:
        yield client, consumer


async def send(client: Any, topic: str, payloads: Sequence[bytes], *, batched: bool = False, **options: Any) -> None:
    """Send payloads, each in an entry of its own or all in one."""
    producer = await client.create_producer(
        topic, batching_enabled=batched, batching_max_publish_delay_ms=100, **options
    )
    await asyncio.gather(*(producer.send(payload) for payload in payloads))
    await producer.close()


async def take(consumer: Consumer, count: int, timeout: float = 10.0) -> list[Message]:
    """Receive so many messages, each within ``timeout`` seconds."""
    return [await consumer.receive(timeout=timeout) for _ in range(count)]


async def nothing_comes(consumer: Consumer, seconds: float = 0.5) -> bool:
    """Return whether nothing arrives for a while."""
    try:
        await consumer.receive(timeout=seconds)
    except TimeoutError:
        return True
    return False


def numbered(count: int, first: int = 0) -> list[bytes]:
    """Payloads ``b"0"``, ``b"1"``, ..."""
    return [str(number).encode() for number in range(first, first + count)]


def payloads(messages: Sequence[Message]) -> list[bytes]:
    """The payloads, sorted."""
    return sorted(message.data for message in messages)


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._started_at = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds until now."""
        return time.monotonic() - self._started_at
