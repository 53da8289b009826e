"""With both clients, the same settings make the same consumer, and calls for many messages do the same, on a broker."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pulsar
import pytest

import pulsar_nack
from pulsar_nack import BrokerError, Consumer, MessageId
from pulsar_nack.consumer import KeyShared
from pulsar_nack.errors import AcknowledgeError
from tests.broker._admin import Admin
from tests.broker._assembly import version
from tests.consumer.official import (
    EXACT,
    nothing_comes,
    numbered,
    official_client,
    payloads,
    send,
    subscribing,
    take,
)
from tests.patience import patience

TYPES: list[tuple[Any, str]] = [
    ("shared", "Shared"),
    ("Shared", "Shared"),
    ("key-shared", "Key_Shared"),
    ("KeyShared", "Key_Shared"),
    ("Exclusive", "Exclusive"),
    (pulsar.ConsumerType.Failover, "Failover"),
    (pulsar.ConsumerType.KeyShared, "Key_Shared"),
]


async def described(consumer: Consumer, admin: Admin, topic: str) -> tuple[Any, ...]:
    """Return how the broker describes a consumer, and what the consumer receives."""
    found = admin.subscription(topic, "sub")
    (one,) = found["consumers"]
    messages = await take(consumer, 2)
    await consumer.acknowledge(messages)
    return found["type"], one["consumerName"], one["metadata"], payloads(messages)


@pytest.mark.usefixtures("transport")
@pytest.mark.parametrize("given", TYPES, ids=[str(given) for given, _ in TYPES])
async def test_the_same_settings_make_the_same_consumer(
    service_url: str, topic: str, admin: Admin, given: tuple[Any, str]
) -> None:
    """U49: with both clients the broker has the type, name, properties and start position that were given."""
    kind, name = given
    settings: dict[str, Any] = {
        "consumer_type": kind,
        "consumer_name": "me",
        "properties": {"a": "b"},
        "initial_position": "Earliest" if kind == "shared" else pulsar.InitialPosition.Earliest,
        "receiver_queue_size": 7,
        "batch_index_ack": True,
        "config": EXACT,
    }
    if name == "Key_Shared":
        settings["key_shared"] = KeyShared(((0, 65_535),), allow_out_of_order=True)
    if name == "Exclusive":
        settings["is_read_compacted"] = True
    async with official_client(service_url) as client, subscribing(client, service_url) as subscribe:
        await send(client, topic, numbered(2))
        consumer = await subscribe(topic, **settings)
        assert await described(consumer, admin, topic) == (name, "me", {"a": "b"}, numbered(2))
        assert consumer.port.traits.batch_index_ack
        assert consumer.port.traits.receiver_queue_size == 7
        if name == "Key_Shared":
            (one,) = admin.subscription(topic, "sub")["consumers"]
            assert re.findall(r"\d+", str(one.get("keyHashRanges", "0, 65535"))) == ["0", "65535"]


@pytest.mark.usefixtures("transport")
async def test_patterns_by_either_form(service_url: str, topic: str) -> None:
    """U49: a compiled pattern and a pattern as text select the same topic."""
    async with official_client(service_url) as client, subscribing(client, service_url) as subscribe:
        await send(client, topic, numbered(1))
        pattern = re.escape(topic).replace(r"\-", "-")
        forms: list[tuple[Any, dict[str, Any]]] = [(re.compile(pattern), {}), (pattern, {"is_pattern_topic": True})]
        for form, settings in forms:
            consumer = await subscribe(form, initial_position="earliest", **settings)
            (message,) = await take(consumer, 1)
            assert message.data == b"0"
            await consumer.aclose()


@pytest.mark.both_lines
@pytest.mark.usefixtures("transport")
async def test_lists_are_acknowledged(service_url: str, topic: str, admin: Admin) -> None:
    """One call acknowledges single messages and members of a batch, by message or by id."""
    async with official_client(service_url) as client, subscribing(client, service_url) as subscribe:
        consumer = await subscribe(topic, config=EXACT, batch_index_ack=True)
        await send(client, topic, numbered(3))
        await send(client, topic, numbered(3, first=3), batched=True)
        messages = await take(consumer, 6)
        await consumer.acknowledge([messages[0], messages[1].id, *messages[2:5]])
        await consumer.redeliver_unacknowledged_messages()
        (again,) = await take(consumer, 1)
        assert (again.data, again.attempt) == (messages[5].data, 2)
        await consumer.acknowledge([again])
        assert await nothing_comes(consumer)
        wrong = MessageId(1, 2, batch_index=3, batch_size=5, topic="persistent://public/default/none-such")
        with pytest.raises(AcknowledgeError) as caught:
            await consumer.acknowledge([again.id, wrong])
        assert caught.value.failed == (wrong,)


@pytest.mark.usefixtures("transport")
@pytest.mark.parametrize("kind", ["shared", "key_shared", "failover", "exclusive"])
async def test_everything_unsettled_comes_again(service_url: str, topic: str, kind: str) -> None:
    """Every received and unsettled message is redelivered once; held ones keep their deadlines."""
    async with official_client(service_url) as client, subscribing(client, service_url) as subscribe:
        consumer = await subscribe(topic, consumer_type=kind, config=EXACT)
        await send(client, topic, numbered(8))
        messages = await take(consumer, 5)
        await messages[0].ack()
        await messages[1].nack(delay=2)
        await consumer.redeliver_unacknowledged_messages()
        found = {message.data: message for message in await take(consumer, 6)}
        assert sorted(found) == numbered(6, first=2)
        assert {found[b"%d" % number].attempt for number in (2, 3, 4)} == {2}
        await consumer.acknowledge(found.values())
        (held,) = await take(consumer, 1, timeout=patience(3))
        assert (held.data, held.attempt) == (b"1", 2)
        await held.ack()
        assert await nothing_comes(consumer)


@pytest.mark.usefixtures("transport")
async def test_the_end_of_a_topic(service_url: str, topic: str) -> None:
    """The last id is that of the last message; availability is known before, at and after the end."""
    async with official_client(service_url) as client, subscribing(client, service_url) as subscribe:
        consumer = await subscribe(topic, config=EXACT)
        assert (await consumer.get_last_message_id()).entry == -1
        assert not await consumer.has_message_available()
        await send(client, topic, numbered(1))
        await send(client, topic, numbered(2, first=1), batched=True)
        for left in (2, 1, 0):
            assert await consumer.has_message_available()
            (message,) = await take(consumer, 1)
            if left:
                await message.ack()
        assert not await consumer.has_message_available()
        assert await consumer.last_message_ids() == [message.id]
        await message.ack()
        assert not await consumer.has_message_available()


async def test_the_ends_of_partitions(service_url: str, partitioned_topic: Callable[[int], str]) -> None:
    """The native client answers for each partition; the official one says that it cannot."""
    name = partitioned_topic(3)
    async with (
        official_client(service_url) as client,
        pulsar_nack.connect(service_url) as native,
        native.subscribe(name, "sub") as consumer,
        pulsar_nack.subscribe(client, name, "official") as official,
    ):
        assert [each.entry for each in await consumer.last_message_ids()] == [-1, -1, -1]
        async with native.producer(name, routing="round_robin", batching=False) as producer:
            for payload in numbered(6):
                await producer.send(payload)
        found = []
        while await consumer.has_message_available():
            found.append(await consumer.receive(timeout=patience(5)))
        assert payloads(found) == numbered(6)
        last = sorted((each.partition, each.entry) for each in await consumer.last_message_ids())
        assert last == sorted({each.id.partition: (each.id.partition, each.id.entry) for each in found}.values())
        await consumer.acknowledge(found)
        with pytest.raises(BrokerError):
            await official.last_message_ids()


async def test_leaving_by_force(service_url: str, topic: str, admin: Admin) -> None:
    """Brokers since 3.1 delete the subscription although it has another consumer; older ones refuse."""
    async with pulsar_nack.connect(service_url) as one, pulsar_nack.connect(service_url) as two:
        first = await one.subscribe(topic, "sub")
        second = await two.subscribe(topic, "sub")
        with pytest.raises(BrokerError):
            await first.unsubscribe()
        if version().startswith("3.0"):
            with pytest.raises(BrokerError):
                await first.unsubscribe(force=True)
            await second.aclose()
            await first.unsubscribe()
        else:
            leaving = asyncio.create_task(first.unsubscribe(force=True))
            await asyncio.wait_for(leaving, patience(10))
            await second.aclose()
    assert not admin.stats(topic)["subscriptions"].get("sub", {}).get("consumers")
