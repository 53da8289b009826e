"""Consumers of the native client that are drained, one after the other."""

from __future__ import annotations

import asyncio
from collections import Counter

from pulsar_nack import Consumer, DeadLetterPolicy, Message
from pulsar_nack.testing import virtual_time
from pulsar_nack.wire import Client
from tests.wire.fake_broker import FakeBroker

TOPIC = "persistent://public/default/t"
DEAD = "persistent://public/default/dead"


@virtual_time
async def test_a_rolling_restart_uses_up_no_attempts() -> None:
    """U37: five workers drain in turn; prefetched messages that nobody handled are returned once, and never dead."""
    broker = FakeBroker()
    topic = broker.topic(TOPIC)
    broker.topic(DEAD).ledger = 99
    for number in range(100):
        topic.publish(b"%d" % number)
    handled = Counter[bytes]()

    async def handler(message: Message) -> None:
        handled[message.data] += 1
        await asyncio.sleep(1)

    async def start() -> tuple[Client, Consumer, asyncio.Task[object]]:
        client = Client(broker.url, dial=broker.dial)
        policy = DeadLetterPolicy(2, topic=DEAD)
        consumer = await client.subscribe(TOPIC, "s", initial_position="earliest", dead_letter=policy)
        return client, consumer, asyncio.create_task(consumer.run(handler, concurrency=2))

    workers = [await start() for _ in range(5)]
    for number, (client, consumer, running) in enumerate(list(workers)):
        await asyncio.sleep(2)
        report = await consumer.drain(5)
        assert (report.cancelled, report.left) == (0, 0)
        await running
        await client.aclose()
        workers[number] = await start()
    await asyncio.sleep(60)
    assert handled == Counter({b"%d" % number: 1 for number in range(100)})
    assert broker.topic(DEAD).entries == []
    assert max(topic.subscriptions["s"].counts.values(), default=0) <= 1
    for client, consumer, running in workers:
        await consumer.drain()
        await running
        await client.aclose()
