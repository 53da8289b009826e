"""Negative acknowledgements with the native client, exact to 15 ms beside what a bare socket waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from pulsar_nack import Consumer, Message
from tests.broker._admin import Admin
from tests.broker._answer_time import Errors, measuring, warm_up
from tests.broker._native import native
from tests.broker.conftest import fresh_topic
from tests.consumer import scenarios
from tests.consumer.official import nothing_comes, numbered, official_client, payloads, send, take

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module", autouse=True)
def warm(request: pytest.FixtureRequest, service_url: str, admin: Admin) -> None:
    """A broker past the slow time after its start."""
    topic = fresh_topic(request)
    warm_up(service_url, topic)
    admin.delete(topic)


async def sent(url: str, topic: str, messages: list[bytes], *, batched: bool = False) -> None:
    """Send with the official client."""
    async with official_client(url) as client:
        await send(client, topic, messages, batched=batched)


@pytest.mark.both_lines
async def test_nacks_keep_coming(service_url: str, topic: str) -> None:
    """N32: one nack each 200 ms with a delay of 1 s: each message is redelivered at its deadline while nacks go on."""
    fresh = asyncio.Queue[Message]()

    async def nack_one_by_one() -> None:
        for _ in range(25):
            message = await fresh.get()
            errors.due(message.data, 1.0)
            await message.nack(delay=1.0)
            await asyncio.sleep(0.2)

    await sent(service_url, topic, numbered(25))
    async with (
        measuring(service_url, topic, [1.0 + 0.2 * number for number in range(25)]) as errors,
        native(service_url, topic) as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(nack_one_by_one())
        while len(errors.ms) < 25:
            message = await consumer.receive(timeout=10)
            if message.attempt == 1:
                fresh.put_nowait(message)
                continue
            errors.came(message.data)
            await message.ack()
        assert await nothing_comes(consumer)
        assert scenarios.all_given_back(consumer)
    errors.check(25)


@pytest.mark.parametrize("redelivery", ["auto", "broker", "local"])
async def test_each_at_its_own_time(service_url: str, topic: str, redelivery: str) -> None:
    """N33: messages with delays of 3 s, 0.5 s and 1.5 s are redelivered in the order of their deadlines."""
    delays = (3.0, 0.5, 1.5)
    await sent(service_url, topic, numbered(3))
    async with (
        measuring(service_url, topic, delays) as errors,
        native(service_url, topic, redelivery=redelivery) as consumer,
    ):
        for message, delay in zip(await take(consumer, 3), delays, strict=True):
            errors.due(message.data, delay)
            await message.nack(delay=delay)
        for payload in (b"1", b"2", b"0"):
            message = await consumer.receive(timeout=10)
            errors.came(message.data)
            assert message.data == payload
            await message.ack()
    errors.check(3, redelivery)


async def taken_again(consumer: Consumer, errors: Errors, count: int) -> list[Message]:
    """Receive ``count`` redelivered messages, note when, and acknowledge them."""
    again = []
    for _ in range(count):
        message = await consumer.receive(timeout=10)
        errors.came(message.data)
        again.append(message)
    for message in again:
        await message.ack()
    return again


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("partitions", [0, 2])
async def test_half_by_message_half_by_id(
    service_url: str,
    topic: str,
    partitioned_topic: Callable[[int], str],
    partitions: int,
    batched: bool,
) -> None:
    """N37: 20 messages, on one topic and on two partitions, are redelivered once; after acknowledging, nothing more."""
    name = partitioned_topic(partitions) if partitions else topic
    await sent(service_url, name, numbered(20), batched=batched)
    async with (
        measuring(service_url, name, [0.4] * (1 if batched else 20)) as errors,
        native(service_url, name) as consumer,
    ):
        for message in await take(consumer, 20):
            errors.due(message.data, 0.4)
            await (message.nack(delay=0.4) if int(message.data) % 2 else consumer.negative_acknowledge(message.id, 0.4))
        again = await taken_again(consumer, errors, 20)
        assert payloads(again) == sorted(numbered(20))
        assert await nothing_comes(consumer, 1.0)
        assert scenarios.all_given_back(consumer)
    async with native(service_url, name) as second:
        assert await nothing_comes(second, 1.0)
    errors.check(20)
