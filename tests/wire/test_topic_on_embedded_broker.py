"""A topic's consumer on the embedded broker, over real sockets, on asyncio's own loop and on uvloop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import pulsar_nack
from pulsar_nack.testing import EmbeddedBroker
from pulsar_nack.wire._connection._context import ClientContext
from pulsar_nack.wire._consumer._subscribe_options import SubscribeOptions
from pulsar_nack.wire._consumer._topic_consumer import TopicConsumer
from tests.patience import patience
from tests.wire.consuming import TOPIC, Arrived, context_of

pytestmark = pytest.mark.skipif(not EmbeddedBroker.available(), reason="pulsar-lite does not run here")

Run = Callable[[Callable[[str, ClientContext], Coroutine[Any, Any, None]]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a test with a broker and a client's context on each kind of loop; nothing of it may be left."""
    factory = asyncio.new_event_loop if request.param == "asyncio" else pytest.importorskip("uvloop").new_event_loop

    def run_on_it(test: Callable[[str, ClientContext], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(patience(10)), EmbeddedBroker() as broker:
                context = context_of(broker.service_url)
                try:
                    await test(broker.service_url, context)
                finally:
                    await context.pool.aclose()
            assert len(asyncio.all_tasks()) == 1

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())

    return run_on_it


async def publish(url: str, count: int) -> None:
    """Send numbered messages."""
    async with pulsar_nack.connect(url) as client, client.producer(TOPIC) as producer:
        await asyncio.gather(*(producer.send(b"%d" % number) for number in range(count)))


def test_receives_redelivers_and_moves(run: Run) -> None:
    """Acknowledged messages do not come again, requested ones do, and a seek moves the subscription."""

    async def test(url: str, context: ClientContext) -> None:
        arrived = Arrived()
        consumer = TopicConsumer(context, TOPIC, SubscribeOptions("s", receiver_queue_size=10), arrived.put)
        await consumer.open()
        await publish(url, 50)
        ids = [delivery.id for delivery in await arrived.take(50)]
        await consumer.acknowledge(ids[:20])
        consumer.redeliver_nowait([ids[30], ids[40]])
        assert {delivery.id for delivery in await arrived.take(2)} == {ids[30], ids[40]}
        assert await consumer.last_message_id() == ids[-1]
        await consumer.seek(ids[25])
        assert [delivery.id for delivery in await arrived.take(25)] == ids[25:]
        await consumer.aclose()

    run(test)


def test_what_is_unacknowledged_comes_again_over_another_connection(run: Run) -> None:
    """When the connection breaks unacknowledged messages come again, and acknowledgements continue on the next one."""

    async def test(url: str, context: ClientContext) -> None:
        arrived = Arrived()
        consumer = TopicConsumer(context, TOPIC, SubscribeOptions("s"), arrived.put)
        await consumer.open()
        await publish(url, 20)
        ids = [delivery.id for delivery in await arrived.take(20)]
        await consumer.acknowledge(ids[:10])
        acking = asyncio.create_task(consumer.acknowledge(ids[10:12]))
        await asyncio.sleep(0)
        for connection in context.pool.connections():
            connection.close(OSError("a test wants it"))
        await acking
        assert consumer.sessions.subscribed_times == 2
        again = set(ids[:0])
        while not again >= set(ids[12:]):  # this broker chooses what to redeliver before it processes acknowledgements
            again |= {delivery.id for delivery in await arrived.take()}
        assert again <= set(ids[10:])
        await consumer.aclose()

    run(test)
