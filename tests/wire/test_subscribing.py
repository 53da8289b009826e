"""Clients and their consumers as users use them, on a scripted broker and virtual time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pulsar_nack import BrokerError, ClosedError, Consumer, MessageId
from pulsar_nack.testing import virtual_time
from pulsar_nack.wire import Client
from tests.wire.fake_broker import FakeBroker, refuse, silence
from tests.wire.using import BASE, EXACT, TYPES, is_quiet, now, subscribed, take


@asynccontextmanager
async def connected(broker: FakeBroker) -> AsyncIterator[Client]:
    """A client of a broker in memory; when it is closed no connection and no task is left."""
    async with Client(broker.url, dial=broker.dial) as client:
        yield client
    assert broker.links == []
    await asyncio.sleep(1)
    assert len(asyncio.all_tasks()) == 1


@virtual_time
async def test_a_nack_comes_back_in_time() -> None:
    """N33: the broker redelivers nacked messages, each at its deadline plus the round trip."""
    broker = FakeBroker()
    topic = broker.topic(f"{BASE}orders")
    async with connected(broker) as client, client.subscribe("orders", "billing", config=EXACT) as consumer:
        for number in range(3):
            topic.publish(str(number).encode())
        messages = await take(consumer, 3)
        began = now()
        for message, delay in zip(messages, (3.0, 0.5, 1.5), strict=True):
            await message.nack(delay=delay)
        for payload, delay in ((b"1", 0.5), (b"2", 1.5), (b"0", 3.0)):
            message = await consumer.receive()
            assert (message.data, message.attempt) == (payload, 2)
            assert -0.001 < now() - began - delay < 0.01
            await message.ack()
        assert await is_quiet(consumer)
        assert len(topic.subscriptions["billing"].acked) == 3
        assert consumer.statistics().redelivered_broker == 3


@virtual_time
async def test_an_ack_is_confirmed_when_it_returns() -> None:
    """U28: when `await ack()` has returned the broker has the acknowledgement."""
    broker = FakeBroker()
    topic = broker.topic(f"{BASE}orders")
    async with connected(broker) as client, client.subscribe("orders", "billing") as consumer:
        for number in range(50):
            topic.publish(str(number).encode())
        for number, message in enumerate(await take(consumer, 50)):
            await message.ack()
            assert len(topic.subscriptions["billing"].acked) == number + 1


@virtual_time
async def test_partitions_and_new_ones() -> None:
    """All partitions of a topic are consumed, and a new partition from its first message on."""
    broker = FakeBroker()
    broker.partitions[f"{BASE}orders"] = 2
    partitions = [broker.topic(f"{BASE}orders-partition-{number}") for number in range(3)]
    async with (
        connected(broker) as client,
        client.subscribe("orders", "billing", config=EXACT, discovery_interval=30) as consumer,
    ):
        for number, partition in enumerate(partitions):
            partition.publish(str(number).encode())
        messages = sorted(await take(consumer, 2), key=lambda message: message.data)
        assert [(message.id.partition, message.topic) for message in messages] == [
            (number, partitions[number].name) for number in range(2)
        ]
        broker.partitions[f"{BASE}orders"] = 3
        third = await consumer.receive(timeout=31)
        assert (third.data, third.id.partition) == (b"2", 2)
        for message in (*messages, third):
            await consumer.negative_acknowledge(MessageId.from_bytes(message.id.to_bytes()), 0.5)
        for message in await take(consumer, 3):
            await message.ack()
        assert [len(partition.subscriptions["billing"].acked) for partition in partitions] == [1, 1, 1]


@virtual_time
async def test_topics_of_a_pattern() -> None:
    """A pattern consumes all topics whose names match, later ones too."""
    broker = FakeBroker()
    broker.topic(f"{BASE}orders-a")
    broker.topic(f"{BASE}bills")
    async with (
        connected(broker) as client,
        client.subscribe(re.compile("orders-.*"), "billing", discovery_interval=5) as consumer,
    ):
        broker.topic(f"{BASE}bills").publish(b"bill")
        broker.topic(f"{BASE}orders-a").publish(b"a")
        appears = broker.topic(f"{BASE}orders-b")
        appears.ledger = 8
        appears.publish(b"b")
        messages = [await consumer.receive(timeout=6) for _ in range(2)]
        assert [message.data for message in messages] == [b"a", b"b"]
        for message in messages:
            await message.ack()
        assert await is_quiet(consumer)


@virtual_time
async def test_refusals_have_the_words_of_the_broker() -> None:
    """U22: the error has the broker's text, the topic and the subscription; nothing is left open."""
    broker = FakeBroker()
    broker.partitions[f"{BASE}orders"] = 4
    async with connected(broker) as client:
        broker.next("SUBSCRIBE", refuse("AuthorizationError", "not for you"))
        with pytest.raises(BrokerError, match="not for you") as caught:
            await client.subscribe("orders", "billing")
        told = " ".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
        assert f"{BASE}orders" in told
        assert "billing" in told
        async with client.subscribe("orders", "billing") as consumer:
            broker.topic(f"{BASE}orders-partition-3").publish(b"3")
            await (await consumer.receive(timeout=1)).ack()


@virtual_time
async def test_closing_the_client_closes_what_it_made() -> None:
    """A consumer of a closed client ends: receiving calls raise, and its messages go to other consumers."""
    broker = FakeBroker()
    topic = broker.topic(f"{BASE}orders")
    async with connected(broker) as other, other.subscribe("orders", "billing") as second:
        async with Client(broker.url, dial=broker.dial) as client:
            consumer = await client.subscribe("orders", "billing")
            receiving = asyncio.create_task(consumer.receive())
            await asyncio.sleep(0.1)
            topic.subscriptions["billing"].is_paused = True
            await client.aclose()
            (failed,) = await asyncio.gather(receiving, return_exceptions=True)
            assert isinstance(failed, ClosedError)
            await consumer.aclose()
        topic.subscriptions["billing"].is_paused = False
        topic.publish(b"x")
        await (await second.receive(timeout=1)).ack()


@pytest.mark.parametrize("kind", TYPES)
@virtual_time
async def test_every_type(kind: Any) -> None:
    """Only a nacked message is redelivered on every type of subscription, and no acknowledged one."""
    broker = FakeBroker()
    topic = broker.topic(f"{BASE}orders")
    async with (
        connected(broker) as client,
        client.subscribe("orders", "billing", consumer_type=kind, config=EXACT) as consumer,
    ):
        for number in range(3):
            topic.publish(str(number).encode(), partition_key=str(number))
        first, second, third = await take(consumer, 3)
        await second.nack(delay=0.5)
        await first.ack()
        again = await consumer.receive()
        assert (again.data, again.attempt) == (b"1", 2)
        await again.ack()
        await third.ack()
        assert await is_quiet(consumer)
        assert len(topic.subscriptions["billing"].acked) == 3


@virtual_time
async def test_who_becomes_inactive_drops_its_holds() -> None:
    """On Failover held messages go to the consumer that takes over, which alone delivers them."""
    broker = FakeBroker()
    topic = broker.topic(f"{BASE}orders")
    settings: dict[str, Any] = {"consumer_type": "failover"}
    async with subscribed(broker, "orders", "billing", consumer_name="b", **settings) as first:
        for number in range(3):
            topic.publish(str(number).encode())
        done, held, _ = await take(first, 3)
        await done.ack()
        await held.nack(delay=2.0)
        async with subscribed(broker, "orders", "billing", consumer_name="a", **settings) as second:
            messages = await take(second, 2)
            assert [message.data for message in messages] == [b"1", b"2"]
            assert await is_quiet(first)
            assert first.statistics().held == first.statistics().kept == 0
            for message in messages:
                await message.ack()
            assert await is_quiet(second)


@virtual_time
async def test_who_became_inactive_does_not_show_its_nacks() -> None:
    """On Failover a message in flight goes to the consumer that takes over; a later nack does not redeliver it here."""
    broker = FakeBroker()
    topic = broker.topic(f"{BASE}orders")
    settings: dict[str, Any] = {"consumer_type": "failover"}
    async with subscribed(broker, "orders", "billing", consumer_name="b", **settings) as first:
        topic.publish(b"0")  # is not acknowledged, so the mark-delete position does not pass the other
        topic.publish(b"1")
        _, in_work = await take(first, 2)
        async with subscribed(broker, "orders", "billing", consumer_name="a", **settings) as second:
            _, taken_over = await take(second, 2)
            await taken_over.ack()
            await in_work.nack(delay=0.2)
            assert await is_quiet(first)
            assert first.statistics().kept == 0
            assert await is_quiet(second)


@virtual_time
async def test_closed_while_it_subscribes() -> None:
    """A client that closes while a consumer opens fails that call, and leaves nothing."""
    broker = FakeBroker()
    for turns in range(40):
        async with connected(broker) as client:
            subscribing = asyncio.ensure_future(client.subscribe("orders", "billing"))
            for _ in range(turns):
                await asyncio.sleep(0.0005)
            await client.aclose()
            (opened,) = await asyncio.gather(subscribing, return_exceptions=True)
            if isinstance(opened, Consumer):
                with pytest.raises(ClosedError):
                    await opened.receive()
                await opened.aclose()
            else:
                assert isinstance(opened, ClosedError | BrokerError)


@virtual_time
async def test_a_cancelled_subscribe_leaves_nothing() -> None:
    """Cancelled at any moment, subscribing to partitions leaves no consumer behind."""
    broker = FakeBroker()
    broker.partitions[f"{BASE}orders"] = 3
    async with connected(broker) as client:
        for turns in range(40):
            subscribing = asyncio.ensure_future(client.subscribe("orders", "billing"))
            for _ in range(turns):
                await asyncio.sleep(0.0005)
            subscribing.cancel()
            (opened,) = await asyncio.gather(subscribing, return_exceptions=True)
            if isinstance(opened, Consumer):
                await opened.aclose()
            await asyncio.sleep(1)
            assert sum(len(link.consumers) for link in broker.links) == 0


@pytest.mark.parametrize(("kind", "close"), [("SUBSCRIBE", "CLOSE_CONSUMER"), ("PRODUCER", "CLOSE_PRODUCER")])
@pytest.mark.parametrize("answer", [refuse("ServiceNotReady"), refuse("AuthorizationError"), silence])
@virtual_time
async def test_only_what_may_have_begun_is_closed_at_the_broker(kind: str, close: str, answer: Any) -> None:
    """A refused consumer is not closed at the broker; one without an answer in time is."""
    broker = FakeBroker()
    broker.always(kind, answer)
    async with connected(broker) as client:
        with pytest.raises(BrokerError):
            await (client.subscribe("orders", "s") if kind == "SUBSCRIBE" else client.producer("orders"))
        await asyncio.sleep(1)
        begun = len(broker.commands(kind)) if answer is silence else 0
        assert len(broker.commands(close)) == begun
    assert len(broker.commands(close)) == begun


@virtual_time
async def test_a_broker_that_is_not_ready_is_asked_again() -> None:
    """U22: a transient refusal is retried; a lasting one is raised within the timeout."""
    broker = FakeBroker()
    not_ready = refuse("ServiceNotReady", "still loading")
    async with connected(broker) as client:
        broker.next("PARTITIONED_METADATA", not_ready, not_ready)
        broker.next("LOOKUP", not_ready)
        broker.next("SUBSCRIBE", not_ready)
        async with client.subscribe("orders", "billing") as consumer:
            broker.next("PARTITIONED_METADATA", not_ready)
            async with client.producer("orders") as producer:
                await producer.send(b"x")
            assert (await consumer.receive(timeout=5)).data == b"x"
        broker.always("PARTITIONED_METADATA", not_ready)
        began = now()
        with pytest.raises(BrokerError, match=f"subscribing to {BASE}orders as 'billing': .*still loading"):
            await client.subscribe("orders", "billing")
        assert 1 < now() - began <= 30
