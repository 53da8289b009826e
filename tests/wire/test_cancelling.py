"""Every operation of a native client may be cancelled at each await: nothing is lost, nothing is left."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, get_args

import pytest

from pulsar_nack import ClosedError, Consumer
from pulsar_nack.testing import run
from pulsar_nack.wire import Client
from tests.tiers import size
from tests.wire.fake_broker import Answer, Call, FakeBroker, as_usual, later
from tests.wire.leftovers import check_idle, nothing_left
from tests.wire.stepping import When, cancelled_at

BASE: Final = "persistent://public/default/"
LONG_S: Final = 200.0
"""Seconds after which everything that runs in the background has ended."""
MAX_AWAITS: Final = 100

whens = pytest.mark.parametrize("when", get_args(When))
Step = Callable[[Client], Coroutine[Any, Any, object]]


def filled(topic: str, messages: int) -> FakeBroker:
    """A broker with a topic of three partitions, and messages in another topic."""
    broker = FakeBroker()
    broker.partitions[f"{BASE}parted"] = 3
    for number in range(messages):
        broker.topic(f"{BASE}{topic}").publish(b"%d" % number)
    return broker


def slowly(seconds: float) -> Answer:
    """Answer after a while, as brokers do; not at all if the caller closes meanwhile."""

    def answer_unless_closed(call: Call) -> None:
        name = "consumer_id" if call.kind == "SUBSCRIBE" else "producer_id"
        closed = [*call.broker.commands("CLOSE_CONSUMER"), *call.broker.commands("CLOSE_PRODUCER")]
        if getattr(call.body, name) not in {getattr(each, name, None) for each in closed}:
            as_usual(call)

    return later(seconds, answer_unless_closed)


def at_each_await(scenario: Callable[[int], Coroutine[Any, Any, bool]]) -> int:
    """Run a scenario once for each of its awaits, by number, until it has no such await; return the last one.

    The fast tier tries every fourth await only.
    """
    for at in range(1, MAX_AWAITS, size(1, fast=4)):
        if not run(scenario(at)):
            gc.collect()  # unretrieved exceptions are logged
            return at - 1
    pytest.fail("it never ends")


async def subscribe_and_close(client: Client, topic: Any) -> None:
    """Subscribe for a moment."""
    async with client.subscribe(topic, "s", initial_position="earliest") as consumer:
        await asyncio.sleep(0)
        assert isinstance(consumer, Consumer)


async def produce_and_close(client: Client, topic: str) -> None:
    """Open a producer for a moment, and send a message."""
    async with client.producer(topic) as producer:
        producer.send_nowait(b"x")


STEPS: Final[dict[str, Step]] = {
    "a consumer": lambda client: subscribe_and_close(client, "plain"),
    "a consumer of partitions": lambda client: subscribe_and_close(client, "parted"),
    "a consumer of a list": lambda client: subscribe_and_close(client, ["plain", "other"]),
    "a producer": lambda client: produce_and_close(client, "plain"),
    "a producer to partitions": lambda client: produce_and_close(client, "parted"),
    "a question": lambda client: client.partitions("parted"),
    "a question for topics": lambda client: client.topics(),
}


@whens
@pytest.mark.parametrize("name", STEPS)
def test_opening_and_closing(name: str, when: When, caplog: pytest.LogCaptureFixture) -> None:
    """Opening and closing may be cancelled at any await: broker and client are as if it had never begun."""
    caplog.set_level(logging.WARNING)

    async def scenario(at: int) -> bool:
        broker = filled("plain", 3)
        for kind in ("SUBSCRIBE", "PRODUCER"):  # of several the first is open before the others
            broker.next(kind, as_usual, slowly(0.004), slowly(0.002))
        with nothing_left():
            async with Client(broker.url, dial=broker.dial) as client:
                was_reached = await cancelled_at(STEPS[name](client), at, when)
                await asyncio.sleep(LONG_S)
                check_idle(client, broker)
                await STEPS[name](client)  # it works as before
        assert not broker.links
        return was_reached

    assert at_each_await(scenario) > 1
    assert caplog.messages == []


@whens
@pytest.mark.parametrize("kind", ["shared", "exclusive"])
def test_closing_a_consumer_in_the_middle_of_work(kind: Any, when: When, caplog: pytest.LogCaptureFixture) -> None:
    """A cancelled close runs to its end; acknowledged messages are acknowledged, all others go back."""
    caplog.set_level(logging.WARNING)

    async def scenario(at: int) -> bool:
        broker = filled("plain", 6)
        with nothing_left():
            async with Client(broker.url, dial=broker.dial) as client:
                consumer = await client.subscribe("plain", "s", initial_position="earliest", consumer_type=kind)
                first, second, third, *_ = [await consumer.receive() for _ in range(4)]
                await first.ack()
                second.ack_soon()
                await third.nack(3600)
                was_reached = await cancelled_at(consumer.aclose(), at, when)
                with pytest.raises(ClosedError):
                    await consumer.receive()
                await asyncio.sleep(LONG_S)
                subscription = broker.topic(f"{BASE}plain").subscriptions["s"]
                assert sorted(subscription.acked) == [(first.id.ledger, n) for n in (0, 1)]
                del consumer, first, second, third, _
                check_idle(client, broker)
        return was_reached

    assert at_each_await(scenario) > 0
    assert caplog.messages == []


@whens
def test_closing_a_producer_in_the_middle_of_work(when: When, caplog: pytest.LogCaptureFixture) -> None:
    """A cancelled close runs to its end; all sent messages are stored, once."""
    caplog.set_level(logging.WARNING)

    async def scenario(at: int) -> bool:
        broker = filled("plain", 0)
        with nothing_left():
            async with Client(broker.url, dial=broker.dial) as client:
                producer = await client.producer("plain")
                receipts = [producer.send_nowait(b"%d" % number) for number in range(5)]
                was_reached = await cancelled_at(producer.aclose(), at, when)
                await asyncio.wait(receipts)
                assert [receipt.result().entry for receipt in receipts] == sorted(
                    receipt.result().entry for receipt in receipts
                )
                await asyncio.sleep(LONG_S)
                del producer
                check_idle(client, broker)
        assert sum(entry.messages for entry in broker.topic(f"{BASE}plain").entries) == 5
        return was_reached

    assert at_each_await(scenario) > 0
    assert caplog.messages == []


@whens
def test_closing_the_client(when: When, caplog: pytest.LogCaptureFixture) -> None:
    """A cancelled close of a client with consumers and producers runs to its end."""
    caplog.set_level(logging.WARNING)

    async def scenario(at: int) -> bool:
        broker = filled("plain", 3)
        with nothing_left():
            client = Client(broker.url, dial=broker.dial)
            consumers = [await client.subscribe(topic, "s") for topic in ("plain", "parted")]
            producers = [await client.producer(topic) for topic in ("plain", "parted")]
            was_reached = await cancelled_at(client.aclose(), at, when)
            await asyncio.sleep(LONG_S)
            assert not broker.links
            await asyncio.gather(*(each.aclose() for each in consumers), *(each.aclose() for each in producers))
            await client.aclose()
        return was_reached

    assert at_each_await(scenario) > 0
    assert caplog.messages == []


async def work(consumer: Consumer, messages: int, done: list[int]) -> None:
    """Receive and acknowledge ``count`` messages, one after another."""
    for _ in range(messages):
        message = await consumer.receive()
        await message.ack()
        done.append(int(message.data))


@whens
def test_working(when: When) -> None:
    """Work that is cancelled at any await loses no message: each is acknowledged, or goes to the next consumer."""

    async def scenario(at: int) -> bool:
        broker = filled("plain", 8)
        with nothing_left():
            async with Client(broker.url, dial=broker.dial) as client:
                done: list[int] = []
                async with client.subscribe("plain", "s", initial_position="earliest") as consumer:
                    was_reached = await cancelled_at(work(consumer, 8, done), at, when)
                    await asyncio.sleep(1)
                subscription = broker.topic(f"{BASE}plain").subscriptions["s"]
                acked = {entry for _, entry in subscription.acked}
                assert set(done) <= acked
                came: list[int] = []
                async with client.subscribe("plain", "s") as consumer:
                    while len(acked) + len(came) < 8:
                        came.append(int((await consumer.receive(timeout=10)).data))
                assert sorted([*acked, *came]) == list(range(8))
        return was_reached

    assert at_each_await(scenario) > 8


@whens
def test_sending(when: When) -> None:
    """Sends that are cancelled at any await are stored or not, never twice, in order, and free their room."""

    async def scenario(at: int) -> bool:
        broker = filled("plain", 0)
        with nothing_left():
            async with Client(broker.url, dial=broker.dial) as client:
                async with client.producer("plain", max_pending_messages=2) as producer:

                    async def send_all() -> None:
                        for number in range(6):
                            await producer.send(b"%d" % number)

                    was_reached = await cancelled_at(send_all(), at, when)
                    await asyncio.sleep(LONG_S)
                    assert producer.pending == 0
                    await asyncio.gather(producer.send(b"6"), producer.send(b"7"))
                check_idle_but(client, broker)
        stored = [entry.rest[-1:] for entry in broker.topic(f"{BASE}plain").entries if entry.messages == 1]
        assert stored == sorted(set(stored))
        return was_reached

    def check_idle_but(client: Client, broker: FakeBroker) -> None:
        assert client._context is not None
        assert all(len(connection._requests) == 0 for connection in client._context.pool.connections())
        assert all(not link.producers for link in broker.links)

    assert at_each_await(scenario) > 5
