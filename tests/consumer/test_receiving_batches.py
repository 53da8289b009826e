"""Several messages at once."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from pulsar_nack import ClosedError, Consumer, DeadLetterPolicy, InvalidArgumentError
from pulsar_nack.errors import LeaseExpiredError
from pulsar_nack.testing import FakePort, FakePublisher, virtual_time
from tests.consumer.consuming import EXACT, digits, now, publish
from tests.for_each import for_each

from .ports import Ports


@pytest.mark.each_kind
@virtual_time
async def test_ten_of_twenty_five(ports: Ports) -> None:
    """U43: 25 messages of 1 KB come as 10, 10 and 5, the last after 0.2 s; then none comes."""
    port = ports.port()
    for number in range(25):
        port.topic.publish(b"%1024d" % number)
    async with Consumer(port, config=EXACT) as consumer:
        await asyncio.sleep(0.1)
        found = list[bytes]()
        for count, seconds in ((10, 0.0), (10, 0.0), (5, 0.2), (0, 0.2)):
            began = now()
            messages = await consumer.batch_receive(max_messages=10, max_bytes=65_536, timeout=0.2)
            assert len(messages) == count
            assert now() - began == pytest.approx(seconds, abs=0.05)
            found += [message.data for message in messages]
            for message in messages:
                await message.ack()
        assert found == [b"%1024d" % number for number in range(25)]
        waiting = asyncio.create_task(consumer.batch_receive(2, timeout=None))
        port.topic.publish(b"x")
        await asyncio.sleep(10)
        port.topic.publish(b"y")
        assert [message.data for message in await waiting] == [b"x", b"y"]


@virtual_time
async def test_the_bound_of_bytes() -> None:
    """U43: a message that does not fit comes with the next call; a single message may be larger."""
    port = FakePort()
    for size in (400, 400, 400, 5_000, 1, 1_000, 0, 0):
        port.topic.publish(b"x" * size)
    async with Consumer(port) as consumer:
        sizes = [
            [len(message.data) for message in await consumer.batch_receive(max_bytes=1_000, timeout=1)]
            for _ in range(6)
        ]
        assert sizes == [[400, 400], [400], [5_000], [1], [1_000], [0, 0]]
        assert consumer.statistics().shown == 8


@virtual_time
async def test_a_cancelled_call_loses_nothing() -> None:
    """U43: calls that are cancelled at random, or fail: each message comes once, in order."""
    random = Random(3)
    port = FakePort()
    found = list[bytes]()
    async with Consumer(port, config=EXACT) as consumer:
        published = 0
        while len(found) < 200:
            if published < 200:
                port.topic.publish(b"%d" % published)
                published += 1
            if random.random() < 0.1:
                port.fail_next("receive")
            call = asyncio.create_task(
                consumer.batch_receive(random.randint(1, 9), timeout=random.choice([0.01, 1, None]))
            )
            for _ in range(random.randrange(6)):
                await asyncio.sleep(random.choice([0, 0.005]))
            if published == 200:
                await asyncio.wait([call], timeout=0.1)
            call.cancel()
            (result,) = await asyncio.gather(call, return_exceptions=True)
            if isinstance(result, list):
                found += [message.data for message in result]
        assert found == [b"%d" % number for number in range(200)]
        waiting = asyncio.create_task(consumer.batch_receive(timeout=None))
        await asyncio.sleep(0)
    with pytest.raises(ClosedError):
        await waiting


@for_each("field", ["max_messages", "max_bytes", "timeout"])
@virtual_time
async def test_bounds_are_checked(field: str) -> None:
    """Each limit is refused by name."""
    async with Consumer(FakePort()) as consumer:
        with pytest.raises(InvalidArgumentError) as caught:
            await consumer.batch_receive(**{field: -1})
        assert caught.value.field == field


@virtual_time
async def test_leases_begin_when_the_batch_is_returned() -> None:
    """The call waits longer than a lease for more messages: none of its messages is redelivered or dead-lettered."""
    port, dead = FakePort(), FakePublisher()
    publish(port.topic, *digits(2))
    policy = DeadLetterPolicy(1, "dead", publisher=dead)
    async with Consumer(port, lease=1, backoff=[0], dead_letter=policy, config=EXACT) as consumer:
        first, second = await consumer.batch_receive(10, timeout=30)
        assert (first.attempt, second.attempt, consumer.statistics().leases_expired) == (1, 1, 0)
        await first.ack()
        assert (await consumer.receive(timeout=1.1)).data == second.data
        assert now() == 31
        with pytest.raises(LeaseExpiredError):
            await second.ack()
    assert dead.letters == []
