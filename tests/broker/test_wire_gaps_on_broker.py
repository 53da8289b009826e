"""Native consumers on a real broker: non-durable subscriptions, large messages, deleted topics."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

import pulsar_nack
from pulsar_nack import MessageId
from pulsar_nack.wire import Client
from tests.broker._admin import Admin
from tests.consumer.official import EXACT, numbered, payloads, take
from tests.patience import patience

SIZE = 1 << 20
BOUND = 8 << 20


@pytest.fixture
async def client(service_url: str) -> AsyncIterator[Client]:
    """A native client with little memory for prefetched messages."""
    async with pulsar_nack.connect(service_url, max_prefetched_bytes=BOUND) as native:
        yield native


async def produce(client: Client, topic: str, messages: list[bytes]) -> list[MessageId]:
    """Send messages, each as a separate entry."""
    async with client.producer(topic) as producer:
        return [await producer.send(message) for message in messages]


@pytest.mark.parametrize("kind", ["shared", "exclusive", "failover", "key_shared"])
async def test_nothing_that_was_nacked_is_lost_without_a_durable_subscription(
    client: Client, admin: Admin, topic: str, kind: Any
) -> None:
    """After an unload nacked messages are delivered again, and none that is in flight or acknowledged."""
    sent = await produce(client, topic, numbered(8))
    settings: Any = {"redelivery": "broker", "config": EXACT, "consumer_type": kind, "durable_subscription": False}
    async with client.subscribe(topic, "reader", start_message_id=sent[0], **settings) as consumer:
        messages = await take(consumer, 7)
        assert [message.id for message in messages] == sent[1:]
        for number in (0, 2, 4, 6):
            await messages[number].ack()
        await messages[1].nack(patience(0.5))  # longer than an unload takes
        await messages[3].nack(patience(0.5))
        await asyncio.to_thread(admin.unload, topic)
        await produce(client, topic, numbered(2, 8))
        fresh = await take(consumer, 2)
        assert payloads(fresh) == numbered(2, 8)
        again = await take(consumer, 2, timeout=patience(5))
        assert sorted(message.id for message in again) == [sent[2], sent[4]]
        await messages[5].nack(0.1)
        last = await consumer.receive(timeout=patience(5))
        assert last.id == sent[6]
        for message in (*fresh, *again, last):
            await message.ack()
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout=1.5)


async def test_large_messages_stay_at_the_broker(client: Client, topic: str) -> None:
    """The client prefetches no more large messages than it has memory for, and all are delivered."""
    async with client.subscribe(topic, "sub") as consumer:
        await produce(client, topic, [bytes(SIZE)] * 40)
        await asyncio.sleep(1)
        assert client._context is not None
        held = client._context.memory_limit
        highest, count = held.bytes, 0
        assert 0 < highest <= BOUND
        while count < 40:
            message = await consumer.receive(timeout=patience(5))
            highest = max(highest, held.bytes)
            await message.ack()
            count += 1
        assert highest <= BOUND + SIZE
        assert held.bytes == 0


async def test_messages_of_a_deleted_topic_can_be_settled(client: Client, admin: Admin, topic: str) -> None:
    """They can be acknowledged or nacked, before and after the consumer knows that the topic is gone."""
    gone, other = f"{topic}-a", f"{topic}-b"
    await produce(client, gone, [b"before"])
    pattern = re.compile(f"{re.escape(topic)}-.*")
    settings: Any = {"redelivery": "broker", "config": EXACT, "discovery_interval": 1, "initial_position": "earliest"}
    async with client.subscribe(pattern, "sub", **settings) as consumer:
        await produce(client, gone, numbered(3))
        await produce(client, other, [b"other"])
        messages = [message for message in await take(consumer, 5, timeout=patience(5)) if message.topic == gone]
        assert len(messages) == 4
        await asyncio.to_thread(admin.request, "DELETE", f"persistent/public/default/{_local(gone)}?force=true")
        await asyncio.wait_for(messages[0].ack(), patience(3))
        async with asyncio.timeout(patience(5)):
            while gone in {member.topic for member in consumer.port._consumers}:
                await asyncio.sleep(0.05)
        await asyncio.wait_for(messages[1].ack(), patience(3))
        messages[2].ack_soon()
        await messages[3].nack(0.1)
        await asyncio.sleep(1)
        figures = consumer.statistics()
        assert (figures.acked, figures.held, figures.requested, figures.in_work) == (3, 0, 0, 1)
        await produce(client, other, [b"on"])
        assert (await consumer.receive(timeout=patience(5))).data == b"on"
    await asyncio.to_thread(admin.request, "DELETE", f"persistent/public/default/{_local(other)}?force=true")


def _local(topic: str) -> str:
    return topic.rpartition("/")[2]
