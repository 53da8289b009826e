"""Topics of a pattern that appear and disappear, announced by a scripted broker."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pulsar_nack.testing import virtual_time
from pulsar_nack.wire import Client
from tests.wire.fake_broker import Answer, FakeBroker, cut, refuse, silence

BASE = "persistent://public/default/"


@asynccontextmanager
async def watching(broker: FakeBroker, **settings: Any) -> AsyncIterator[Any]:
    """Consume a pattern; look for topics each minute, or when the broker announces a change."""
    before = asyncio.all_tasks()
    async with (
        Client(broker.url, dial=broker.dial, **settings) as client,
        client.subscribe(re.compile("orders-.*"), "s", discovery_interval=60, initial_position="earliest") as consumer,
    ):
        await asyncio.sleep(1)
        yield consumer
        port = consumer.port
        await consumer.aclose()
        await asyncio.sleep(0.1)
        assert port._consumers._watcher is not None
        assert not port._consumers._watcher.is_open
        assert [link.watchers for link in broker.links] == [{} for _ in broker.links]
    assert asyncio.all_tasks() == before


def create(broker: FakeBroker, name: str) -> None:
    """Create a topic with a message."""
    topic = broker.topic(f"{BASE}{name}" if ":" not in name else name)
    topic.ledger = 100 + len(broker.topics)
    topic.publish(name.encode())


def telling() -> FakeBroker:
    """A broker that announces changes, with a topic."""
    broker = FakeBroker()
    broker.tells_of_topics = True
    create(broker, "orders-0")
    return broker


async def comes(consumer: Any, broker: FakeBroker, name: str) -> float:
    """Create a topic with a message; return how long the message takes to arrive."""
    began_at = asyncio.get_running_loop().time()
    create(broker, name)
    message = await consumer.receive(timeout=100)
    assert message.data == name.encode()
    await message.ack()
    return asyncio.get_running_loop().time() - began_at


@virtual_time
async def test_topics_appear_and_go_at_once() -> None:
    """A matching topic is consumed within a moment of its creation, and dropped when it is deleted; others are not."""
    broker = telling()
    async with watching(broker) as consumer:
        await (await consumer.receive(timeout=1)).ack()
        assert await comes(consumer, broker, "orders-1") < 0.5
        create(broker, "bills")
        await asyncio.sleep(1)
        looked = len(broker.commands("GET_TOPICS_OF_NAMESPACE"))
        create(broker, "bills-2")
        create(broker, "persistent://public/other/orders-3")
        await asyncio.sleep(1)
        assert len(broker.commands("GET_TOPICS_OF_NAMESPACE")) == looked
        broker.delete(f"{BASE}orders-0")
        await asyncio.sleep(1)
        assert [member.topic for member in consumer.port._consumers] == [f"{BASE}orders-1"]
        (watch,) = broker.commands("WATCH_TOPIC_LIST")
        assert watch.namespace == "public/default"
        assert await comes(consumer, broker, "orders-2") < 0.5


@virtual_time
async def test_invalid_names_are_passed_over() -> None:
    """If other topics have invalid names, the connection stays, and topics with valid names are found."""
    broker = telling()
    async with watching(broker) as consumer:
        for name in ("orders-\x01", "orders//1", f"orders-partition-{'9' * 5_000}", f"elsewhere://{BASE}"):
            broker._tell_of(f"{BASE}{name}", new_topics=[name if ":" in name else f"{BASE}{name}"])
        broker.topic(f"{BASE}orders//2")
        assert (await consumer.receive(timeout=1)).data == b"orders-0"
        assert await comes(consumer, broker, "orders-1") < 0.2
        assert consumer._keeps.statistics().connections_lost == 0


@virtual_time
async def test_many_that_appear_together_are_looked_for_together() -> None:
    """A hundred new topics take only a few requests for the list of topics."""
    broker = telling()
    async with watching(broker) as consumer:
        before = len(broker.commands("GET_TOPICS_OF_NAMESPACE"))
        for number in range(1, 101):
            create(broker, f"orders-{number}")
            await asyncio.sleep(0.001)
        for _ in range(101):
            await (await consumer.receive(timeout=1)).ack()
        assert len(broker.commands("GET_TOPICS_OF_NAMESPACE")) - before <= 4


@virtual_time
async def test_another_watch_is_begun_where_a_connection_breaks() -> None:
    """Topics that appeared meanwhile are found by the new watch, and later ones are announced again."""
    broker = telling()
    async with watching(broker) as consumer:
        await (await consumer.receive(timeout=1)).ack()
        broker.cut()
        assert await comes(consumer, broker, "orders-1") < 5
        await asyncio.sleep(5)
        assert len(broker.commands("WATCH_TOPIC_LIST")) == 2
        assert await comes(consumer, broker, "orders-2") < 0.5


@pytest.mark.parametrize("answer", [None, refuse("NotAllowedError"), refuse("MetadataError"), silence, cut])
@virtual_time
async def test_a_broker_that_does_not_tell(answer: Answer | None) -> None:
    """If the broker cannot announce, refuses, is silent or breaks the connection, topics are found by polling."""
    broker = telling()
    broker.tells_of_topics = answer is not None
    if answer is not None:
        broker.always("WATCH_TOPIC_LIST", answer)
    async with watching(broker) as consumer:
        await (await consumer.receive(timeout=10)).ack()
        await asyncio.sleep(10)
        assert await comes(consumer, broker, "orders-1") < 61
        await asyncio.sleep(600)
        watches = len(broker.commands("WATCH_TOPIC_LIST"))
        assert watches < 15
        assert len(broker.commands("WATCH_TOPIC_LIST_CLOSE")) == (watches if answer is silence else 0)


@virtual_time
async def test_names_are_not_watched() -> None:
    """A consumer of topic names watches nothing."""
    broker = telling()
    async with Client(broker.url, dial=broker.dial) as client, client.subscribe(["a", "b"], "s"):
        await asyncio.sleep(1)
        assert broker.commands("WATCH_TOPIC_LIST") == []
