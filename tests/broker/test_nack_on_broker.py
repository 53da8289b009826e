"""Negative acknowledgements on a real broker, with the official and the native client."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pulsar_nack import Consumer, MessageId
from tests.consumer import scenarios
from tests.consumer.official import is_over_wire, nothing_comes, numbered, payloads, send, subscribed, take

pytestmark = pytest.mark.usefixtures("transport")


async def test_nacks_keep_coming(service_url: str, topic: str) -> None:
    """N32: each message is redelivered at its deadline while nacks go on; the official client alone manages few."""
    await scenarios.nacks_keep_coming(service_url, topic)


async def test_each_at_its_own_time(service_url: str, topic: str) -> None:
    """N33: messages with delays of 3 s, 0.5 s and 1.5 s are redelivered in the order of their deadlines."""
    await scenarios.each_at_its_own_time(service_url, topic)


async def test_counts_grow(service_url: str, topic: str) -> None:
    """N34: a message nacked four times is delivered with the counts 0, 1, 2, 3."""
    await scenarios.counts_grow(service_url, topic)


async def test_only_the_nacked_ones(service_url: str, topic: str) -> None:
    """N35: of five messages exactly the three that were nacked are redelivered."""
    await scenarios.only_the_nacked_ones(service_url, topic)


async def test_ten_messages_from_outside(service_url: str, topic: str) -> None:
    """U50: of ten messages, three nacked, two of them dead-lettered, eight acknowledged: the exported metrics agree."""
    await scenarios.ten_messages_from_outside(service_url, topic)


@pytest.mark.parametrize("redelivery", ["auto", "broker", "local"])
async def test_partitions_and_rebuilt_ids(
    service_url: str, partitioned_topic: Callable[[int], str], redelivery: str
) -> None:
    """N36: on partitions, ids as delivered and ids rebuilt from bytes and topic both redeliver their messages."""
    topic = partitioned_topic(3)
    await _by_id_and_by_rebuilt_id(service_url, topic, [topic], redelivery)


@pytest.mark.parametrize("redelivery", ["auto", "broker"])
async def test_a_list_of_topics_and_rebuilt_ids(service_url: str, topic: str, redelivery: str) -> None:
    """N36: the same with a list of topics."""
    topics = [topic, f"{topic}-b"]
    await _by_id_and_by_rebuilt_id(service_url, topics, topics, redelivery)


async def _by_id_and_by_rebuilt_id(url: str, read: str | list[str], written: list[str], redelivery: str) -> None:
    async with subscribed(url, read, redelivery=redelivery) as (client, consumer):
        for number, topic in enumerate(written):
            await send(client, topic, numbered(12 // len(written), 100 * number))
        messages = await take(consumer, 12)
        for number, message in enumerate(messages):
            rebuilt = MessageId.from_bytes(message.id.to_bytes(), message.topic)
            await consumer.negative_acknowledge(rebuilt if number % 2 else message.id, 0.4)
        again = await take(consumer, 12)
        assert payloads(again) == payloads(messages)
        for number, message in enumerate(again):
            rebuilt = MessageId.from_bytes(message.id.to_bytes(), message.topic)
            await consumer.acknowledge(rebuilt if number % 2 else message.id)
        assert await nothing_comes(consumer, 1.0)
        assert scenarios.all_given_back(consumer)


async def test_rebuilt_ids_reach_partitions_without_a_handle(
    service_url: str, partitioned_topic: Callable[[int], str]
) -> None:
    """N36: an id known only by its bytes and topic is requested and acknowledged at its partition."""
    topic = partitioned_topic(2)
    async with subscribed(service_url, topic, redelivery="broker") as (client, consumer):
        await send(client, topic, numbered(4))
        messages = await take(consumer, 4)
        forget_handles(consumer)
        for message in messages:
            await consumer.negative_acknowledge(MessageId.from_bytes(message.id.to_bytes(), message.topic), 0.3)
        again = await take(consumer, 4)
        assert payloads(again) == numbered(4)
        forget_handles(consumer)
        for message in again:
            await message.ack()
    async with subscribed(service_url, topic) as (_, second):
        assert await nothing_comes(second)


def forget_handles(consumer: Consumer) -> None:
    """Make the port forget every message that it delivered; the native port keeps none."""
    if not is_over_wire():
        consumer.port._ids._handles.clear()


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("partitions", [0, 2])
async def test_half_by_message_half_by_id(
    service_url: str, topic: str, partitioned_topic: Callable[[int], str], partitions: int, batched: bool
) -> None:
    """N37: all 20 are redelivered once, on one topic and on two partitions; after acknowledging, nothing more."""
    name = partitioned_topic(partitions) if partitions else topic
    await scenarios.half_by_message_half_by_id(service_url, name, batched=batched)
