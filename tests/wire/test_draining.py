"""Consumers of the native client that are drained, one after the other."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from pulsar_nack import Consumer, DeadLetterPolicy, Message, NackConfig
from pulsar_nack.consumer import Retry
from pulsar_nack.testing import virtual_time
from pulsar_nack.wire import Client
from tests.wire.fake_broker import FakeBroker

TOPIC = "persistent://public/default/t"
DEAD = "persistent://public/default/dead"


@virtual_time
async def test_a_rolling_restart_uses_up_no_attempts() -> None:
    """U37: five workers drain in turn; unhandled prefetched messages are returned once, and never dead-lettered."""
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


async def wait_until(reached: Any) -> None:
    """Wait for a condition, on virtual time."""
    async with asyncio.timeout(60):
        while not reached():
            await asyncio.sleep(0.001)


@virtual_time
async def test_the_other_consumer_has_the_rest_at_once() -> None:
    """U36, U37: five handlers finish and acknowledge; the 195 prefetched messages go to the other in 100 ms."""
    broker = FakeBroker()
    topic = broker.topic(TOPIC)
    for number in range(200):
        topic.publish(b"%d" % number)
    began, ended, now = list[bytes](), list[bytes](), asyncio.get_running_loop().time

    async def handler(message: Message) -> None:
        began.append(message.data)
        await asyncio.sleep(1)
        ended.append(message.data)

    options: dict[str, Any] = {"initial_position": "earliest", "receiver_queue_size": 200}
    async with (
        Client(broker.url, dial=broker.dial) as one,
        Client(broker.url, dial=broker.dial) as two,
        one.subscribe(TOPIC, "s", **options) as first,
    ):
        running = asyncio.create_task(first.run(handler, concurrency=5))
        await wait_until(lambda: len(began) == 5)
        async with two.subscribe(TOPIC, "s", **options) as second:
            await asyncio.sleep(0.1)
            drained_at = now()
            draining = asyncio.create_task(first.drain(10))
            got = [await second.receive(timeout=1) for _ in range(195)]
            assert now() - drained_at < 0.1
            await asyncio.gather(*(message.ack() for message in got))
            report = await draining
            assert (report.settled, report.given_back, report.cancelled, report.left) == (5, 195, 0, 0)
            assert sorted(ended) == began
            assert {message.data for message in got} | set(ended) == {b"%d" % number for number in range(200)}
            assert await running == report
            await asyncio.sleep(10)
            assert second.statistics().in_work == 0


@virtual_time
async def test_the_order_of_keys_over_pauses_and_drains() -> None:
    """U16, U18: a retry that its key waits for stays here during a pause; during a drain the key's messages go back."""
    broker = FakeBroker()
    topic = broker.topic(TOPIC)
    for number in range(6):
        topic.publish(b"%d" % number, partition_key="k")
    done = list[bytes]()

    async def handler(message: Message) -> None:
        if message.data == b"0" and message.attempt == 1:
            raise Retry(1)
        await asyncio.sleep(0 if message.key else 3)
        done.append(message.data)
        if message.data == b"2":
            raise Retry(100)

    exact = NackConfig(negative_ack_precision_bit_cnt=0)
    async with Client(broker.url, dial=broker.dial) as client:
        async with client.subscribe(TOPIC, "s", initial_position="earliest", config=exact) as consumer:
            running = asyncio.create_task(consumer.run(handler, concurrency=1, key_ordered=True))
            await wait_until(lambda: consumer.statistics().held_for_keys == 5)
            topic.publish(b"busy")  # keeps the worker while the retry becomes ready
            await asyncio.sleep(1.5)
            consumer.pause()
            await asyncio.sleep(5)
            consumer.resume()
            await wait_until(lambda: b"2" in done)
            assert done == [b"busy", b"0", b"1", b"2"]
            await asyncio.sleep(0.1)
            assert consumer.statistics().held_for_keys == 3
            report = await consumer.drain()
            assert (report.given_back, report.left) == (3, 0)
            assert await running == report
        async with client.subscribe(TOPIC, "s") as other:
            left = [await other.receive(timeout=1) for _ in range(4)]
            assert sorted(message.data for message in left) == [b"2", b"3", b"4", b"5"]
