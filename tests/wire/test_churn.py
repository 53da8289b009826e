"""Thousands of consumers, producers and clients opened and closed: nothing grows, and nothing is logged."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import pytest

from pulsar_nack import BrokerError
from pulsar_nack.testing import run, virtual_time
from pulsar_nack.wire import Client
from tests.tiers import seeds
from tests.wire.fake_broker import FakeBroker, refuse, silence
from tests.wire.leftovers import check_idle, nothing_left, timers

FULL: Final = "persistent://public/default/full"
EMPTY: Final = "persistent://public/default/empty"
LONG_S: Final = 3_700.0
"""Seconds after which all timers have expired, cancelled ones too."""
Round = Callable[[FakeBroker, Client], Awaitable[None]]

counts = pytest.mark.parametrize("count", seeds([40, 400]))


class Sizes(NamedTuple):
    """What may grow: objects with references, blocks of memory, tasks, timers."""

    objects: int
    blocks: int
    tasks: int
    timers: int

    @classmethod
    def now(cls, broker: FakeBroker) -> Sizes:
        """Count, without the fake broker's records."""
        broker.calls.clear()
        broker.dialled.clear()
        broker.topics.pop(EMPTY, None)
        gc.collect()
        return cls(len(gc.get_objects()), sys.getallocatedblocks(), len(asyncio.all_tasks()), len(timers()))

    def check(self, later: Sizes, rounds: int) -> None:
        """Assert that nothing grew; a growth of less than this for each round is noise."""
        print(f"\n{rounds} rounds: {later.objects - self.objects:+} objects, {later.blocks - self.blocks:+} blocks")
        assert later.objects - self.objects <= 20 + rounds // 100
        assert later.blocks - self.blocks <= 200 + rounds // 5
        assert later.tasks == self.tasks
        assert later.timers <= self.timers


async def one_consumer(_: FakeBroker, client: Client) -> None:
    """Receive a message and hold it."""
    async with client.subscribe("full", "s", initial_position="earliest") as consumer:
        message = await consumer.receive()
        await message.nack(3600)


async def one_waiting(_: FakeBroker, client: Client) -> None:
    """Wait in vain for a message."""
    async with client.subscribe("full", "s2", consumer_type="key_shared") as consumer:
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout=0.01)


async def one_producer(_: FakeBroker, client: Client) -> None:
    """Send two messages, one of them in a batch."""
    async with client.producer("empty") as producer:
        producer.send_nowait(b"x")
        await producer.send(b"y")


async def many_at_once(broker: FakeBroker, client: Client) -> None:
    """Open ten consumers and producers at once."""
    await asyncio.gather(*(each(broker, client) for _ in range(10) for each in (one_waiting, one_producer)))


async def refused(broker: FakeBroker, client: Client) -> None:
    """Subscribe and be refused."""
    for kind in ("SUBSCRIBE", "PRODUCER"):
        broker.next(kind, refuse("AuthorizationError"))
    with pytest.raises(BrokerError):
        await client.subscribe("full", "s")
    with pytest.raises(BrokerError):
        await client.producer("full")


async def unanswered(broker: FakeBroker, client: Client) -> None:
    """Wait in vain for an answer."""
    broker.always("SUBSCRIBE", silence)
    with pytest.raises(BrokerError):
        await client.subscribe("full", "s")
    broker.normally("SUBSCRIBE")


async def cut(broker: FakeBroker, client: Client) -> None:
    """Lose the connection with a consumer, a producer and an open request."""
    async with client.subscribe("full", "s3") as consumer, client.producer("empty") as producer:
        broker.cut()
        await producer.send(b"x")
        await consumer.port.last_message_ids()


async def another_client(broker: FakeBroker, _: Client) -> None:
    """Open a client with a consumer and a producer, and close only the client."""
    client = Client(broker.url, dial=broker.dial)
    consumer = await client.subscribe("full", "s4", initial_position="earliest")
    producer = await client.producer("empty")
    await asyncio.gather(consumer.receive(), producer.send(b"x"))
    await client.aclose()


@counts
@pytest.mark.parametrize(
    "one_round", [one_consumer, one_waiting, one_producer, many_at_once, refused, unanswered, cut, another_client]
)
def test_nothing_grows(one_round: Round, count: int, caplog: pytest.LogCaptureFixture) -> None:
    """After many rounds on one client tasks, timers, tables, objects and memory have the same size."""
    caplog.set_level(logging.WARNING)
    if one_round is cut:  # each is logged, and pytest keeps the records
        caplog.set_level(logging.ERROR, "pulsar_nack.wire")
    at_once = 10 if one_round is many_at_once else 1
    rounds, before_that = count // at_once, 20 // at_once

    async def test() -> None:
        broker = FakeBroker()
        with nothing_left():
            broker.topic(FULL).publish(b"x")
            async with Client(broker.url, dial=broker.dial) as client:
                for _ in range(before_that):
                    await one_round(broker, client)
                await asyncio.sleep(LONG_S)
                before = Sizes.now(broker)
                for _ in range(rounds):
                    await one_round(broker, client)
                await asyncio.sleep(LONG_S)
                before.check(Sizes.now(broker), count)
                check_idle(client, broker)

    run(test())
    assert caplog.messages == []


@virtual_time
async def test_a_consumer_that_is_closed_after_a_nack_leaves_no_timer() -> None:
    """The timer for the next mark-delete request ends with its consumer."""
    broker = FakeBroker()
    broker.topic(FULL).publish(b"x")
    async with Client(broker.url, dial=broker.dial) as client:
        await client.topics()
        before = {timer.when() for timer in timers()}
        async with client.subscribe("full", "s", initial_position="earliest") as consumer:
            await (await consumer.receive()).nack(3600)
        assert {timer.when() for timer in timers()} <= before
