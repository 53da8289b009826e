"""Native consumers on a real broker, without durable state: batches, chunked messages, and racing calls."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Any

import pytest

import pulsar_nack
from pulsar_nack import AlreadySettledError, Message
from tests.broker._admin import Admin
from tests.broker._native import native, no_task_left
from tests.broker.standalone import Standalone
from tests.consumer.official import nothing_comes, numbered, payloads, take


async def sent(url: str, topic: str, messages: list[bytes], **settings: Any) -> None:
    """Send all messages at once, as one entry if batched."""
    async with pulsar_nack.connect(url) as client, client.producer(topic, batch_delay=0.2, **settings) as producer:
        ids = await asyncio.gather(*(producer.send(each) for each in messages))
        assert len({id_.entry for id_ in ids}) == (1 if settings.get("batching") else len(messages))


@pytest.mark.parametrize("index_acks", [True, False])
async def test_one_of_a_batch_over_a_reconnect(
    service_url: str, admin: Admin, broker_without_index_acks: Standalone, own_topic: str, index_acks: bool
) -> None:
    """U3: batch of 10, 9 acked, one nacked: only that one is redelivered, once, even over an unload."""
    url = service_url if index_acks else broker_without_index_acks.service_url
    its_admin = admin if index_acks else Admin(broker_without_index_acks.admin_url)
    await sent(url, own_topic, numbered(10), batching=True)
    with no_task_left():
        async with native(url, own_topic) as consumer:
            for message in await take(consumer, 10):
                await (message.nack(delay=0.3) if message.data == b"4" else message.ack())
            message = await consumer.receive(timeout=10)
            assert (message.data, message.attempt) == (b"4", 2)
            assert await nothing_comes(consumer)
            await message.nack(delay=1.0)
            await asyncio.to_thread(its_admin.unload, own_topic)
            message = await consumer.receive(timeout=20)
            assert (message.data, message.attempt) == (b"4", 3)
            assert await nothing_comes(consumer, 1.0)
            await message.ack()
        async with native(url, own_topic) as consumer:
            assert await nothing_comes(consumer, 1.0)


@pytest.mark.parametrize("redelivery", ["auto", "broker", "local"])
async def test_a_chunked_message(service_url: str, topic: str, redelivery: str) -> None:
    """U19: three chunks, nacked twice: the whole payload is redelivered twice, and acknowledged with all its chunks."""
    payload = os.urandom(2_500)
    await sent(service_url, topic, [payload], chunking=True, chunk_max_bytes=1_024)
    async with native(service_url, topic, redelivery=redelivery) as consumer:
        for attempt in (1, 2, 3):
            message = await consumer.receive(timeout=10)
            assert (message.data == payload, message.attempt, len(message.id.parts)) == (True, attempt, 3)
            await (message.nack(delay=0.3) if attempt < 3 else message.ack())
        assert await nothing_comes(consumer)
    async with native(service_url, topic) as consumer:
        assert await nothing_comes(consumer)


async def test_ack_and_nack_at_once(service_url: str, topic: str) -> None:
    """U20: called from two tasks one wins and the other raises: exactly the nacked messages are redelivered."""

    async def tried(call: Coroutine[Any, Any, None]) -> bool:
        try:
            await call
        except AlreadySettledError:
            return False
        return True

    async def contested(message: Message, is_ack_first: bool) -> bool:
        calls = [tried(message.ack()), tried(message.nack(delay=0.5))]
        won = await asyncio.gather(*(calls if is_ack_first else reversed(calls)))
        assert sum(won) == 1
        return won[0] is not is_ack_first  # whether it is nacked

    await sent(service_url, topic, numbered(40))
    async with native(service_url, topic) as consumer:
        messages = await take(consumer, 40)
        nacked = [each.data for number, each in enumerate(messages) if await contested(each, bool(number % 2))]
        assert len(nacked) == 20
        again = await take(consumer, len(nacked))
        assert payloads(again) == sorted(nacked)
        for message in again:
            await message.ack()
        assert await nothing_comes(consumer, 1.0)
    async with native(service_url, topic) as consumer:
        assert await nothing_comes(consumer, 1.0)
