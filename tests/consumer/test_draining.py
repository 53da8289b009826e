"""Drains that end as soon as nothing is being processed, however the processing ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from pulsar_nack import BrokerError, ClosedError, Consumer, Delivery, Message, MessageId
from pulsar_nack.clock import LoopClock
from pulsar_nack.consumer import DrainReport, RetryTopicPolicy
from pulsar_nack.errors import MissingExtraError
from pulsar_nack.testing import FakePort, FakePublisher, virtual_time
from pulsar_nack.testing._call_faults import Fault
from tests.consumer.consuming import EXACT, digits, now, publish
from tests.wire.letters import DEAD, TOPIC, stored, unacked
from tests.wire.test_dead_letters import giving_up
from tests.wire.using import broker_with


@pytest.mark.parametrize("key_ordered", [False, True])
@virtual_time
async def test_a_message_comes_as_the_drain_begins(key_ordered: bool) -> None:
    """U18: a worker got it just before; it goes back, and the drain does not wait for it."""
    for turns in range(6):
        port, handled = FakePort(), list[bytes]()

        async def handler(message: Message) -> None:
            handled.append(message.data)  # noqa: B023

        async with Consumer(port, config=EXACT) as consumer:
            running = asyncio.create_task(consumer.run(handler, key_ordered=key_ordered, drain_timeout=None))
            await asyncio.sleep(1)
            for _ in range(2):
                port.topic.publish(b"x", key="k")
            while not consumer.statistics().received:
                await asyncio.sleep(0)
            for _ in range(turns):
                await asyncio.sleep(0)
            began = now()
            await consumer.drain(100)
            await running
            assert (now() - began, port.subscription.backlog) == (0, 2 - len(handled))


@virtual_time
async def test_calls_that_take_their_messages_back() -> None:
    """U18: a ``batch_receive`` that waits for more, and a ``receive`` that is cancelled in the same turn."""
    port = FakePort()
    publish(port.topic, *[b"x"] * 3)
    async with Consumer(port, config=EXACT) as consumer:
        call = asyncio.create_task(consumer.batch_receive(10, timeout=None))
        await asyncio.sleep(1)
        await consumer.drain(100)
        assert now() == 1
        with pytest.raises(ClosedError):
            await call

    port = FakePort()
    async with Consumer(port, config=EXACT) as consumer:
        receiving = asyncio.create_task(consumer.receive())
        await asyncio.sleep(1)
        port.topic.publish(b"x")
        while not consumer.statistics().received:
            await asyncio.sleep(0)
        draining = asyncio.create_task(consumer.drain(100))
        await asyncio.sleep(0)
        receiving.cancel()
        await draining
        assert now() == 2


Settle = Callable[[Consumer, Message], Coroutine[Any, Any, None]]


async def _ack_soon(_: Consumer, message: Message) -> None:
    message.ack_soon()


async def _cancelled_ack(_: Consumer, message: Message) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(0.1):
            await message.ack()


async def _ack_of_nacked(_: Consumer, message: Message) -> None:
    await message.nack(3600)
    with suppress(BrokerError):
        await message.ack()


async def _ack_of_unknown(consumer: Consumer, message: Message) -> None:
    await message.nack(3600)
    with suppress(BrokerError):
        await consumer.acknowledge(MessageId(77, 7))


async def _redeliver(consumer: Consumer, _: Message) -> None:
    await asyncio.sleep(1)
    await consumer.redeliver_unacknowledged_messages()


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
@pytest.mark.parametrize("settle", [_ack_soon, _cancelled_ack, _ack_of_nacked, _ack_of_unknown, _redeliver])
@virtual_time
async def test_what_is_held_meanwhile(settle: Settle, kind: Any) -> None:
    """U18: an acknowledgement fails during the drain, or all is redelivered: nothing is being processed any more."""
    port = FakePort(subscription_type=kind)
    port.topic.publish(b"x")
    async with Consumer(port, config=EXACT) as consumer:
        message = await consumer.receive()
        port._add_fault("acknowledge", Fault(delay=1, error=BrokerError("late")), 1)
        settling = asyncio.create_task(settle(consumer, message))
        await asyncio.sleep(0)
        assert await consumer.drain(100) == DrainReport(settled=1)
        assert now() == 1
        await settling
    assert port.subscription.backlog == 1


@virtual_time
async def test_a_nack_that_the_retry_topic_does_not_take() -> None:
    """U18: it waits in the consumer instead, and the drain ends."""
    port, publisher = FakePort(), FakePublisher(latency=1)
    publisher.fail_next()
    port.topic.publish(b"x")
    policy = RetryTopicPolicy("again", spill_after=5, publisher=publisher)
    async with Consumer(port, config=EXACT, wall_clock=LoopClock(), retry_topic=policy) as consumer:
        await (await consumer.receive()).nack(60)
        assert await consumer.drain(100) == DrainReport(settled=1)
        assert now() == 1


@virtual_time
async def test_a_dead_letter_that_is_left_to_the_broker() -> None:
    """U18: the connection breaks before it is published, so the broker redelivers the message, and the drain ends."""
    broker = broker_with(b"x", topic=TOPIC)
    async with giving_up(broker, config=EXACT) as consumer:
        await (await consumer.receive(timeout=1)).nack(0)
        message = await consumer.receive(timeout=1)
        broker.cut()
        await message.nack(0)
        await consumer.drain(100)
        assert now() < 5
    assert (stored(broker, DEAD), unacked(broker, TOPIC)) == ([], 1)


class _Unreadable(FakePort):
    """Cannot read the second message."""

    async def receive(self) -> Delivery:
        delivery = await super().receive()
        if delivery.data == b"1":
            raise MissingExtraError("a codec", "zstd", "zstandard")
        return delivery


@virtual_time
async def test_a_message_that_cannot_be_read_in_a_batch() -> None:
    """The others go back with the call that raises, so nothing is being processed, and the consumer closes."""
    port = _Unreadable()
    publish(port.topic, *digits(2))
    async with Consumer(port, config=EXACT) as consumer:
        with pytest.raises(MissingExtraError):
            await consumer.batch_receive(10, timeout=None)
        await asyncio.sleep(1)
        with pytest.raises(ClosedError):
            consumer.pause()
