"""Deferred messages: no failure, so no attempt."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from pulsar_nack import AlreadySettledError, Consumer, DeadLetterPolicy, InvalidArgumentError
from pulsar_nack.testing import FakePort, FakePublisher, LocalBroker, virtual_time
from tests.consumer.consuming import EXACT, now, publish

from .durable import Machine
from .ports import Ports


@pytest.mark.each_kind
@pytest.mark.parametrize("redelivery", ["auto", "broker"])
@pytest.mark.parametrize("kind", ["shared", "exclusive"])
@virtual_time
async def test_postponing_is_no_failure(ports: Ports, kind: str, redelivery: str) -> None:
    """U12: deferred ten times by 5 s, at most 3 attempts: never a dead letter, whatever the broker counts."""
    port, dead = ports.port(subscription_type=kind), FakePublisher()
    port.topic.publish(b"a")
    policy = DeadLetterPolicy(2, "dead", publisher=dead)
    async with Consumer(port, config=EXACT, redelivery=redelivery, dead_letter=policy) as consumer:  # type: ignore[arg-type]
        message = await consumer.receive(timeout=1)
        for turn in range(10):
            began = now()
            await (message.defer(5) if turn % 2 else consumer.defer(message, timedelta(seconds=5)))
            message = await consumer.receive(timeout=6)
            assert now() - began == pytest.approx(5, abs=0.05)
            assert (message.attempt, message.redelivery_count) == (1, 0)
        for attempt in (2, 3):  # attempts count as always after that
            await message.nack(1)
            message = await consumer.receive(timeout=2)
            assert message.attempt == attempt
            await message.defer(1)
            message = await consumer.receive(timeout=2)
            assert message.attempt == attempt
        assert dead.letters == []
        await message.ack()
        statistics = consumer.statistics()
        assert (statistics.deferred, statistics.nacked, statistics.acked) == (12, 2, 1)
    assert port.subscription.backlog == 0


@pytest.mark.each_kind
@virtual_time
async def test_it_stays_in_memory(ports: Ports) -> None:
    """U12: a deferred message is not redelivered by the broker, so its count there does not grow."""
    port = ports.port()
    port.topic.publish(b"a")
    async with Consumer(port, config=EXACT) as consumer:
        await (await consumer.receive(timeout=1)).defer(2)
        await (await consumer.receive(timeout=3)).defer(2)
        assert consumer.statistics().redelivered_local == 1
    async with Consumer(ports.port(port.topic), config=EXACT) as consumer:
        assert (await consumer.receive(timeout=1)).attempt <= 2  # the close gave it back


@pytest.mark.each_kind
@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("seconds", [1, 100])
@virtual_time
async def test_over_restarts(ports: Ports, attempts: int, seconds: int) -> None:
    """U12: a durable consumer is closed or killed while a message is deferred, before and after it was due."""
    machine = Machine(ports).publish(b"a")
    async with machine.consuming() as consumer:
        message = await consumer.receive(timeout=1)
        for _ in range(attempts - 1):
            await message.nack(1)
            message = await consumer.receive(timeout=2)
        assert message.attempt == attempts
        await message.defer(10)
    for turn in range(4):
        await asyncio.sleep(seconds)
        async with machine.consuming(killed=turn % 2 == 0) as consumer:
            message = await consumer.receive(timeout=20)
            assert message.attempt == attempts
            await message.defer(10)
            message = await consumer.receive(timeout=20)
            assert message.attempt == attempts
            await message.defer(10)
    async with machine.consuming() as consumer:
        message = await consumer.receive(timeout=20)
        assert message.attempt == attempts
        await message.ack()


@virtual_time
async def test_what_can_be_done_with_a_deferred_message() -> None:
    """It is final for this attempt: another verb raises, repeating is harmless, and the next attempt has its verbs."""
    port = FakePort()
    publish(port.topic, b"a", b"b")
    async with Consumer(port, config=EXACT) as consumer:
        first, acked = await consumer.receive(), await consumer.receive()
        await acked.ack()
        with pytest.raises(AlreadySettledError, match="acknowledged"):
            await acked.defer(1)
        for delay in (-1, None, "1", float("nan")):
            with pytest.raises(InvalidArgumentError, match="delay"):
                await first.defer(delay)  # type: ignore[arg-type]
        assert not first.is_settled
        await first.defer(1)
        await first.defer(100)
        for verb in (first.ack, first.nack, first.dead_letter):
            with pytest.raises(AlreadySettledError, match="deferred"):
                await verb()
        with pytest.raises(AlreadySettledError, match="deferred"):
            first.ack_soon()
        again = await consumer.receive(timeout=2)
        with pytest.raises(AlreadySettledError):
            await first.ack()  # the same count, but it is not its message any more
        await again.nack(1)
        with pytest.raises(AlreadySettledError, match="negatively acknowledged"):
            await again.defer(1)
        await (await consumer.receive(timeout=2)).ack()
    assert port.subscription.backlog == 0


@virtual_time
async def test_no_room_in_memory() -> None:
    """U12: beyond `max_local_bytes` the broker redelivers it, and its count is left out here."""
    port = FakePort()
    for payload in (b"a" * 5_000, b"b" * 5_000):
        port.topic.publish(payload)
    async with Consumer(port, config=EXACT, max_local_bytes=7_000) as consumer:
        for _ in range(5):
            messages = [await consumer.receive(timeout=2) for _ in range(2)]
            assert [message.attempt for message in messages] == [1, 1]
            for message in messages:
                await message.defer(1)
        statistics = consumer.statistics()
        assert statistics.redelivered_broker > 0
        assert statistics.redelivered_local > 0


@virtual_time
async def test_a_deferred_message_that_no_call_receives() -> None:
    """U12: a message that is deferred, redelivered, and given back because no call takes it, is at the same attempt."""
    dead = FakePublisher()
    policy = DeadLetterPolicy(2, publisher=dead)
    async with LocalBroker() as broker:
        topic = await broker.topic()
        consuming = topic.consumer("s", receiver_queue_size=0, redelivery="broker", dead_letter=policy, config=EXACT)
        async with consuming as consumer:
            await topic.publish(b"a")
            for _ in range(5):
                message = await consumer.receive(timeout=2)
                assert message.attempt == 1
                await message.defer(1)
                with pytest.raises(TimeoutError):
                    await consumer.receive(timeout=0.5)
                await asyncio.sleep(2)  # the message is received for the call that has ended, and given back
            await (await consumer.receive(timeout=2)).ack()
        assert dead.letters == []
        assert topic.backlog("s") == 0


@pytest.mark.each_kind
@virtual_time
async def test_a_deferred_message_whose_request_was_lost(ports: Ports) -> None:
    """U12: if the redelivery of a deferred message has to be requested again, it still comes as the same attempt."""
    port = ports.port()
    port.topic.publish(b"a")
    async with Consumer(port, config=EXACT, redelivery="broker") as consumer:
        for _ in range(3):
            message = await consumer.receive(timeout=40)
            assert message.attempt == 1
            port.lose_next("redeliver")
            await message.defer(1)
        await (await consumer.receive(timeout=40)).ack()
    assert port.subscription.backlog == 0
