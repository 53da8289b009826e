"""The client without a broker: what it refuses, where settings go, how it closes."""

from __future__ import annotations

import asyncio
import re
from dataclasses import fields
from typing import Any

import pytest

import pulsar_nack
from pulsar_nack import BrokerError, ClosedError, InvalidArgumentError
from pulsar_nack.consumer._dialect import OFFICIAL_NAMES
from pulsar_nack.consumer._settings import ConsumerOptions, ConsumerSettings
from pulsar_nack.errors import AlreadyEnteredError, WrongLoopError
from pulsar_nack.testing import run, virtual_time
from pulsar_nack.wire import Client, SubscribeOptions
from pulsar_nack.wire._consumer._subscribe_options import SubscribeSettings, split_settings
from tests.for_each import for_each
from tests.patience import patience
from tests.processes import run_python
from tests.wire.fake_broker import FakeBroker, later, refuse

NOBODY = "pulsar://127.0.0.1:1"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("request_timeout", -1),
        ("request_timeout", "soon"),
        ("authentication", "token"),
        ("max_redirects", -1),
        ("listener_name", "\ud800"),
        ("no_such_thing", 1),
    ],
)
def test_bad_options_are_refused_by_name(name: str, value: Any) -> None:
    """Unknown and invalid settings are refused at once, by name."""
    with pytest.raises(InvalidArgumentError, match=name):
        pulsar_nack.connect(NOBODY, **{name: value})


@pytest.mark.parametrize("url", ["", "http://localhost:8080", "pulsar://", "localhost:6650", 5])
def test_bad_addresses_are_refused(url: Any) -> None:
    """An invalid broker address is refused at once."""
    with pytest.raises(InvalidArgumentError, match="url"):
        pulsar_nack.connect(url)


@for_each(
    ("name", "settings"),
    [
        ("type", {"consumer_type": "sharde"}),
        ("receiver_queue_size", {"receiver_queue_size": -1}),
        ("discovery_interval", {"discovery_interval": 0}),
        ("discovery_interval", {"discovery_interval": -1}),
        ("redelivery", {"redelivery": "somehow"}),
        ("unacked_limit", {"unacked_limit": 100}),
        ("ack_memory", {"ack_memory": -1}),
        ("batch_index_ack", {"batch_index_ack_enabled": 1}),
        ("port", {"port": None}),
        ("trace", {"trace": "x"}),
        ("hooks", {"hooks": [1]}),
        ("durable", {"durable": 5}),
        ("dead_letter", {"dead_letter": "dlq"}),
        ("topic", {"dead_letter": pulsar_nack.DeadLetterPolicy(3, topic="a/b")}),
        (r"backoff\[1\]", {"backoff": [1, -1]}),
        ("type", {"type": "shared"}),
    ],
)
async def test_bad_settings_are_refused_before_anything_happens(name: str, settings: dict[str, Any]) -> None:
    """N24: a wrong or unknown setting of consumer or subscription is refused by name, without a broker."""
    async with pulsar_nack.connect(NOBODY) as client:
        with pytest.raises((InvalidArgumentError, TypeError), match=name):
            client.subscribe("orders", "billing", **settings)


@pytest.mark.parametrize(
    "topic", ["", [], 5, "a/b", "my orders", "orders\x7f", "orders\x85", "orders\u200b", "orders "]
)
async def test_bad_topics_are_refused(topic: Any) -> None:
    """An invalid topic name is refused, and so is a subscription without a name."""
    async with pulsar_nack.connect(NOBODY) as client:
        with pytest.raises(InvalidArgumentError, match="topic"):
            client.subscribe(topic, "billing")
        with pytest.raises(InvalidArgumentError, match="subscription"):
            client.subscribe("orders", "")


def test_settings_are_looked_at_without_an_event_loop() -> None:
    """``subscribe`` and ``producer`` may be called before the loop runs, and raise errors there too."""
    broker = FakeBroker()
    broker.topic("persistent://public/default/t").publish(b"x")
    client = Client(broker.url, dial=broker.dial)
    subscribing = client.subscribe("t", "s", initial_position="earliest", backoff=[1])
    producing = client.producer("t")
    with pytest.raises(InvalidArgumentError, match="unacked_limit"):
        client.subscribe("t", "s", unacked_limit=5)

    async def main() -> bytes:
        async with client, subscribing as consumer, producing:
            return (await consumer.receive(timeout=10)).data

    assert run(main()) == b"x"
    with pytest.raises(ClosedError):
        client.subscribe("t", "s")
    with pytest.raises(ClosedError):
        client.producer("t")


async def test_names_that_are_nearly_right_are_suggested() -> None:
    """The error of an unknown setting suggests the right one; a forgotten ``async with`` is reported too."""
    with pytest.raises(InvalidArgumentError, match=r"request_timeot: .*\(request_timeout\?\)"):
        pulsar_nack.connect(NOBODY, request_timeot=1)
    async with pulsar_nack.connect(NOBODY) as client:
        with pytest.raises(InvalidArgumentError, match=r"backof: .*\(backoff\?\)"):
            client.subscribe("t", "s", backof=[1])  # type: ignore[call-arg]
        with pytest.raises(InvalidArgumentError, match=r"consumer_type: .*'Sharde'"):
            client.subscribe("t", "s", consumer_type="Sharde")
        with pytest.raises(InvalidArgumentError, match="compression: expected 'none', 'lz4'"):
            client.producer("t", compression="gzip")  # type: ignore[arg-type]
        with pytest.raises(AttributeError, match=r"no 'receive' yet: .*`async with`"):
            _ = client.subscribe("t", "s").receive
        with pytest.raises(AttributeError, match=r"no 'send' yet: .*`async with`"):
            _ = client.producer("t").send


async def test_properties_of_a_producer_are_text() -> None:
    """Properties that cannot be sent to a broker are refused by name, before the producer connects."""
    async with pulsar_nack.connect(NOBODY) as client:
        for text in ("\ud800", 1):
            with pytest.raises(InvalidArgumentError, match="properties"):
                client.producer("t", properties={"owner": text})  # type: ignore[dict-item]


async def test_a_refused_connection_is_one_clear_error() -> None:
    """U22: nothing listens: one of our errors names the address, and nothing hangs."""
    async with pulsar_nack.connect(NOBODY, connect_timeout=patience(1), request_timeout=0.03) as client:
        for topic in ("orders", ["orders", "bills"], re.compile("orders.*")):
            with pytest.raises(BrokerError, match=r"127\.0\.0\.1:1"):
                await asyncio.wait_for(client.subscribe(topic, "billing")._open(), patience(5))
        with pytest.raises(BrokerError, match=r"127\.0\.0\.1:1"):
            await client.partitions("orders")


async def test_a_closed_client_is_of_no_use() -> None:
    """After closing, which may be repeated and needs no connection, everything is refused."""
    client = pulsar_nack.connect(NOBODY)
    await client.aclose()
    await client.aclose()
    assert "closed" in repr(client)
    with pytest.raises(ClosedError, match="client"):
        await client.subscribe("orders", "billing")
    with pytest.raises(ClosedError, match="client"):
        await client.topics()
    with pytest.raises(ClosedError, match="client"):
        async with client:
            pass


@virtual_time
async def test_entered_once_at_a_time() -> None:
    """Entering one subscription or producer twice is refused, because nothing would close the first; later it works."""
    broker = FakeBroker()
    broker.next("SUBSCRIBE", refuse("AuthorizationError", "not yet"))
    before = asyncio.all_tasks()
    async with Client(broker.url, dial=broker.dial) as client:
        subscribing, producing = client.subscribe("orders", "billing"), client.producer("orders")
        with pytest.raises(BrokerError, match="not yet"):
            await subscribing.__aenter__()
        for _ in range(2):
            async with subscribing as consumer, producing as producer:
                with pytest.raises(AlreadyEnteredError, match="consumer"):
                    await subscribing.__aenter__()
                with pytest.raises(AlreadyEnteredError, match="producer"):
                    await producing.__aenter__()
                await producer.send(b"x")
                await (await consumer.receive(timeout=1)).ack()
            with pytest.raises(ClosedError):
                await consumer.receive()
        assert len(broker.commands("CLOSE_CONSUMER")) == len(broker.commands("SUBSCRIBE")) - 1  # which was refused
        assert len(broker.commands("CLOSE_PRODUCER")) == len(broker.commands("PRODUCER")) == 2
    assert asyncio.all_tasks() == before


@virtual_time
async def test_closing_the_client_closes_its_consumers() -> None:
    """Closing completes acknowledgements, ends all waiting calls, and leaves no task, even with held messages."""
    before = asyncio.all_tasks()
    broker = FakeBroker()
    for _ in range(3):
        broker.topic("persistent://public/default/orders").publish(b"x")
    client = Client(broker.url, dial=broker.dial)
    consumer = await client.subscribe("orders", "billing", initial_position="earliest")
    await consumer.open()
    acked, nacked, _ = [await consumer.receive() for _ in range(3)]
    await nacked.nack(3600)
    broker.next("ACK", later(1))
    acking, waiting = asyncio.create_task(acked.ack()), asyncio.create_task(consumer.receive())
    await asyncio.sleep(0.1)
    await client.aclose()
    await acking
    with pytest.raises(ClosedError):
        await waiting
    assert asyncio.all_tasks() == before
    assert broker.links == []
    await consumer.aclose()


def test_every_setting_has_its_place() -> None:
    """The settings for type checkers are those of consumers and subscriptions, and each has exactly one owner."""
    hints = {name: kind.__forward_arg__ for name, kind in ConsumerOptions.__annotations__.items()}
    assert hints == {each.name: each.type for each in fields(ConsumerSettings)}
    of_subscription = {each.name for each in fields(SubscribeOptions)} - {"subscription", "type", "durable"}
    official = {*OFFICIAL_NAMES.values(), "is_pattern_topic"}
    typed = set(SubscribeSettings.__annotations__) - official
    assert typed - set(hints) == of_subscription | {"durable_subscription"}
    every = dict.fromkeys(typed, None)
    consumer, subscription = split_settings(every)
    assert set(consumer) == set(hints)
    assert set(subscription) == of_subscription | {"durable"}


async def test_the_client_is_of_one_loop() -> None:
    """In another event loop than its own the client raises."""
    client = pulsar_nack.connect(NOBODY)
    async with client:
        await asyncio.to_thread(asyncio.run, _used_elsewhere(client))


async def _used_elsewhere(client: Client) -> None:
    with pytest.raises(WrongLoopError, match="client"):
        await client.subscribe("orders", "billing")


@pytest.mark.slow
def test_protobuf_is_not_imported_before_it_is_needed() -> None:
    """Importing the package does not import protobuf; without protobuf, connecting names the extra."""
    code = (
        "import sys, pulsar_nack\n"
        "assert not [name for name in sys.modules if name.startswith('google')]\n"
        "sys.modules['google'] = None\n"
        "try:\n"
        "    pulsar_nack.connect('pulsar://localhost:6650')\n"
        "except pulsar_nack.errors.MissingExtraError as error:\n"
        "    assert error.extra == 'wire', error.extra\n"
        "else:\n"
        "    sys.exit('it connected')\n"
    )
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr
