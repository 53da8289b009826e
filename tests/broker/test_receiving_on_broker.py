"""Receiving, closing and back-pressure on a real broker, with the official and the native client."""

from __future__ import annotations

import asyncio
import collections
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pulsar
import pytest

import pulsar_nack
from pulsar_nack import MessageId
from pulsar_nack.consumer import SupportsNowait
from tests.consumer import scenarios
from tests.consumer.official import (
    EXACT,
    Stopwatch,
    is_over_wire,
    nothing_comes,
    numbered,
    official_client,
    payloads,
    send,
    subscribed,
    subscribing,
    take,
)
from tests.patience import patience

pytestmark = pytest.mark.usefixtures("transport")


async def test_a_timeout_loses_nothing(service_url: str, topic: str) -> None:
    """U1: what is sent after a receive timed out arrives once, and so does the first message."""
    await scenarios.receive_loses_nothing_by_timeout(service_url, topic)


async def test_cancelled_receives_lose_nothing(service_url: str, topic: str) -> None:
    """U2: 1 000 receives are cancelled at random moments while 1 000 messages are sent; each arrives once."""
    moments = random.Random(2)
    async with subscribed(service_url, topic) as (client, consumer):
        seen: collections.Counter[bytes] = collections.Counter()

        async def one() -> None:
            message = await consumer.receive()
            seen[message.data] += 1
            await message.ack()

        sending = asyncio.create_task(send(client, topic, numbered(1_000), max_pending_messages=10_000))
        for _ in range(1_000):
            receiving = asyncio.create_task(one())
            await asyncio.sleep(moments.choice((0, 0, 0.0002, 0.001)))
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)
        await sending
        while len(seen) < 1_000:
            message = await consumer.receive(timeout=patience(3))
            seen[message.data] += 1
            await message.ack()
        assert await nothing_comes(consumer)
        assert set(seen.values()) == {1}


async def test_a_closed_consumer_gives_its_nacks_to_the_other(service_url: str, topic: str) -> None:
    """U21: of two consumers one is closed with pending nacks; the other receives those messages at once."""
    async with official_client(service_url) as client, subscribing(client, service_url) as subscribe:
        first = await subscribe(topic, config=EXACT)
        await send(client, topic, numbered(10))
        for message in await take(first, 10):
            await message.nack(delay=60)
        second = await subscribe(topic)
        assert await nothing_comes(second)
        await first.aclose()
        watch = Stopwatch()
        handed_over = await take(second, 10)
        assert watch.seconds < patience(1)
        assert payloads(handed_over) == numbered(10)
        for message in handed_over:
            await message.ack()
        assert await nothing_comes(second)


async def test_a_duplicate_in_flight_is_dropped(service_url: str, topic: str) -> None:
    """U23: a duplicate is dropped while the message is in flight or held, and acknowledged when it is settled."""
    async with subscribed(service_url, topic) as (client, consumer):
        await send(client, topic, [b"x"])
        await (await consumer.receive(timeout=patience(3))).nack(delay=0.3)
        message = await consumer.receive(timeout=patience(3))
        await consumer.port.redeliver([message.id])
        assert await nothing_comes(consumer)
        assert consumer.statistics().copies_dropped == 1
        await message.nack(delay=1.0)
        await consumer.port.redeliver([message.id])
        assert await nothing_comes(consumer)
        assert consumer.statistics().copies_dropped == 2
        message = await consumer.receive(timeout=patience(3))
        assert message.attempt == 3
        await consumer.port.redeliver([message.id])
        await message.ack()
        assert await nothing_comes(consumer)
    async with subscribed(service_url, topic) as (_, second):
        assert await nothing_comes(second)


async def test_many_redeliveries_are_each_delivered_once(service_url: str, topic: str) -> None:
    """U23, O5: 1 000 messages nacked twice while the broker is busy are delivered three times each, never four."""
    moments = random.Random(3)
    seen: collections.Counter[bytes] = collections.Counter()
    async with subscribed(service_url, topic) as (client, consumer):
        sending = asyncio.create_task(send(client, topic, numbered(1_000), max_pending_messages=10_000))
        while sum(seen.values()) < 3_000:
            message = await consumer.receive(timeout=patience(3))
            seen[message.data] += 1
            await (message.ack() if message.attempt > 2 else message.nack(delay=moments.uniform(0.15, 1.0)))
        await sending
        assert await nothing_comes(consumer, 1.0)
        assert set(seen.values()) == {3}
        assert scenarios.all_given_back(consumer)


@pytest.mark.parametrize("redelivery", ["auto", "broker"])
@pytest.mark.parametrize("index_acks", [True, False])
async def test_other_batch_members_are_left_alone(
    service_url: str, topic: str, redelivery: str, index_acks: bool
) -> None:
    """U26: of a batch of five only the nacked member is redelivered, once, by either route; the acked one never."""
    settings = {"redelivery": redelivery, "batch_index_ack_enabled": index_acks}
    async with subscribed(service_url, topic, **settings) as (client, consumer):
        await send(client, topic, numbered(5), batched=True)
        batch = sorted(await take(consumer, 5), key=lambda message: message.id)
        assert [message.id.batch_size for message in batch] == [5] * 5
        await batch[0].nack(delay=0.4)
        await batch[2].ack()
        again = await consumer.receive(timeout=patience(3))
        assert (again.id, again.attempt) == (batch[0].id, 2)
        assert await nothing_comes(consumer)
        for message in (again, batch[1], batch[3], batch[4]):
            await message.ack()
        assert scenarios.all_given_back(consumer)
    async with subscribed(service_url, topic) as (_, second):
        assert await nothing_comes(second)


@pytest.mark.parametrize(
    "settings", [{}, {"consumer_type": "shared"}, {"consumer_type": "shared", "native_delay": 0.1}], ids=str
)
async def test_wrapping_a_consumer_of_the_client(service_url: str, topic: str, settings: dict[str, Any]) -> None:
    """N33: wrapping a consumer that the official client made works, without its settings too."""
    if is_over_wire():
        pytest.skip("wrapping is for consumers of the official client")
    native_delay = {} if "native_delay" not in settings else {"negative_ack_redelivery_delay_ms": 100}
    async with official_client(service_url) as client:
        native = await client.subscribe(topic, "sub", consumer_type=pulsar.ConsumerType.Shared, **native_delay)
        async with pulsar_nack.wrap(native, config=EXACT, **settings) as consumer:
            await send(client, topic, numbered(3))
            messages = await take(consumer, 3)
            watch = Stopwatch()
            for message in messages:
                await message.nack(delay=0.1 + 0.4 * int(message.data))
            for payload, delay in zip(numbered(3), (0.1, 0.5, 0.9), strict=True):
                message = await consumer.receive(timeout=patience(3))
                assert message.data == payload
                assert -0.1 < watch.seconds - delay < scenarios.SLACK
                await message.ack()
            assert await nothing_comes(consumer)
            assert consumer.statistics().redelivered_broker == (2 if native_delay else 0)


async def test_failover_on_partitions(service_url: str, partitioned_topic: Callable[[int], str]) -> None:
    """U29: on a Failover subscription of two partitions only nacked messages are redelivered, at their deadlines."""
    topic = partitioned_topic(2)
    async with subscribed(service_url, topic, consumer_type="failover") as (client, consumer):
        await send(client, topic, numbered(8))
        messages = sorted(await take(consumer, 8), key=lambda message: message.data)
        watch = Stopwatch()
        await messages[1].nack(delay=0.8)
        await messages[2].nack(delay=0.3)
        for message, delay in ((messages[2], 0.3), (messages[1], 0.8)):
            again = await consumer.receive(timeout=patience(3))
            assert again.data == message.data
            assert -0.05 < watch.seconds - delay < scenarios.SLACK
        for message in messages:
            await consumer.acknowledge(message.id)
        assert await nothing_comes(consumer)
        assert scenarios.all_given_back(consumer)


async def test_exclusive_brings_back_one(service_url: str, topic: str) -> None:
    """U29: on an Exclusive subscription only the nacked message is redelivered, in time; the others can be acked."""
    async with subscribed(service_url, topic, consumer_type="exclusive") as (client, consumer):
        await send(client, topic, numbered(3))
        first, second, third = await take(consumer, 3)
        watch = Stopwatch()
        await second.nack(delay=0.5)
        await first.ack()
        again = await consumer.receive(timeout=patience(3))
        assert again.data == second.data
        assert -0.05 < watch.seconds - 0.5 < scenarios.SLACK
        await third.ack()
        await again.ack()
        assert await nothing_comes(consumer)
    async with subscribed(service_url, topic, consumer_type="exclusive") as (_, after):
        assert await nothing_comes(after)


async def test_forced_broker_way_on_exclusive(service_url: str, topic: str) -> None:
    """N20: on Exclusive the broker can only rewind: all nacks come with the first; those in flight stay in flight."""
    async with subscribed(service_url, topic, consumer_type="exclusive", redelivery="broker") as (client, consumer):
        await send(client, topic, numbered(5))
        messages = await take(consumer, 5)
        for number, message in enumerate(messages[:4]):
            await message.nack(delay=0.5 + 0.3 * number)
        again = await take(consumer, 4)
        assert payloads(again) == numbered(4)
        assert [message.redelivery_count for message in again] == [1] * 4
        for message in [*again, messages[4]]:
            await message.ack()
        assert await nothing_comes(consumer)
        assert consumer.statistics().nack.commands == 1


async def test_local_payloads_are_bounded_on_shared(service_url: str, topic: str) -> None:
    """U30: on Shared, once kept payloads reach the limit, further nacks go through the broker; nothing is lost."""
    async with subscribed(service_url, topic, redelivery="local", max_local_bytes=100_000) as (client, consumer):
        await send(client, topic, [bytes([number]) * 10_000 for number in range(12)])
        for message in await take(consumer, 12):
            await message.nack(delay=1.0)
        statistics = consumer.statistics()
        assert 0 < statistics.kept < 12
        assert statistics.kept_bytes <= 100_000
        again = await take(consumer, 12)
        assert len({message.data for message in again}) == 12
        statistics = consumer.statistics()
        assert statistics.redelivered_local + statistics.redelivered_broker == 12
        assert statistics.redelivered_broker > 0
        for message in again:
            await message.ack()
        assert await nothing_comes(consumer)
        assert scenarios.all_given_back(consumer)


async def test_local_payloads_are_bounded_on_exclusive(service_url: str, topic: str) -> None:
    """U30: on Exclusive a nack beyond the limit waits until a kept message is due."""
    settings = {"consumer_type": "exclusive", "max_local_bytes": 15_000}
    async with subscribed(service_url, topic, **settings) as (client, consumer):
        await send(client, topic, [bytes([number]) * 10_000 for number in range(3)])
        first, second, third = await take(consumer, 3)
        watch = Stopwatch()
        await first.nack(delay=1.0)
        waiting = asyncio.create_task(second.nack(delay=60))
        await asyncio.sleep(0.3)
        assert consumer.statistics().waiting_nacks == 1
        again = await consumer.receive(timeout=patience(3))
        assert again.data == first.data
        assert watch.seconds > 0.9
        await waiting
        await again.ack()
        await third.ack()
        await consumer.acknowledge(second.id)
        assert scenarios.all_given_back(consumer)


async def test_close_gives_local_ones_back(service_url: str, topic: str) -> None:
    """U31: kept for local redelivery, then closed: a second consumer gets the messages, the first no more."""
    async with official_client(service_url) as client, subscribing(client, service_url) as subscribe:
        first = await subscribe(topic, redelivery="local", config=EXACT)
        await send(client, topic, numbered(5))
        for message in await take(first, 5):
            await message.nack(delay=0.5)
        second = await subscribe(topic)
        await first.aclose()
        handed_over = await take(second, 5)
        assert payloads(handed_over) == numbered(5)
        assert [message async for message in first] == []
        for message in handed_over:
            await message.ack()
        assert await nothing_comes(second, 1.0)


async def test_unacked_messages_are_bounded(service_url: str, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    """U33: at 80 % of the limit one warning and a statistic; at the limit a nack waits until there is room."""
    async with subscribed(service_url, topic, receiver_queue_size=10, unacked_limit=30) as (client, consumer):
        await send(client, topic, numbered(20))
        for message in await take(consumer, 15):
            await message.nack(delay=60)
        assert not consumer.statistics().is_near_unacked_limit
        held_up = (await take(consumer, 5))[-1]
        assert consumer.statistics().is_near_unacked_limit
        assert [record.name for record in caplog.records] == ["pulsar_nack.consumer"]
        waiting = asyncio.create_task(held_up.nack(delay=60))
        await asyncio.sleep(0.3)
        statistics = consumer.statistics()
        assert (statistics.unacked, statistics.prefetched, statistics.waiting_nacks) == (20, 10, 1)
        await consumer.acknowledge(message.id)
        await asyncio.wait_for(waiting, patience(2))
        assert consumer.statistics().waiting_nacks == 0


@pytest.mark.parametrize("redelivery", ["auto", "broker"])
async def test_a_cumulative_ack_cancels_holds(service_url: str, topic: str, redelivery: str) -> None:
    """U35: an Exclusive consumer acknowledges cumulatively past held messages: they are not redelivered."""
    settings = {"consumer_type": "exclusive", "redelivery": redelivery}
    async with subscribed(service_url, topic, **settings) as (client, consumer):
        await send(client, topic, numbered(5))
        messages = await take(consumer, 5)
        await messages[1].nack(delay=0.5)
        await messages[3].nack(delay=0.5)
        await consumer.acknowledge_cumulative(messages[2])
        again = await consumer.receive(timeout=patience(3))
        assert again.data == messages[3].data
        await consumer.acknowledge_cumulative(messages[4])
        assert await nothing_comes(consumer, 1.0)
        assert scenarios.all_given_back(consumer)
    async with subscribed(service_url, topic, consumer_type="exclusive") as (_, after):
        assert await nothing_comes(after)


async def test_seek_shows_everything_again(service_url: str, topic: str) -> None:
    """U32: after a seek to the first message all are delivered, acknowledged and held ones too; holds are forgotten."""
    async with subscribed(service_url, topic) as (client, consumer):
        await send(client, topic, numbered(6))
        messages = sorted(await take(consumer, 6), key=lambda message: message.id)
        for message in messages[:3]:
            await message.ack()
        await messages[4].nack(delay=1.0)
        await consumer.seek(MessageId(-1, -1))
        again = await take(consumer, 6)
        assert payloads(again) == numbered(6)
        for message in again:
            await message.ack()
        assert await nothing_comes(consumer, 1.5)


async def test_a_killed_consumer_loses_nothing(service_url: str, topic: str) -> None:
    """U31: killed with messages kept for local redelivery: a second consumer gets them all."""
    async with official_client(service_url) as client, subscribing(client, service_url) as subscribe:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.consumer.holder", service_url, topic, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        try:
            said = [await asyncio.wait_for(process.stdout.readline(), patience(5))]
            await send(client, topic, numbered(10))
            said += [await asyncio.wait_for(process.stdout.readline(), patience(5)) for _ in range(10)]
            assert [said[0], *sorted(said[1:])] == [b"subscribed\n", *(data + b"\n" for data in numbered(10))]
            second = await subscribe(topic)
            assert await nothing_comes(second)
        finally:
            process.kill()
            await process.wait()
        handed_over = await take(second, 10)
        assert payloads(handed_over) == numbered(10)
        for message in handed_over:
            await message.ack()
        assert await nothing_comes(second)


async def test_lost_requests_are_made_again(service_url: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """U22: redelivery requests that the client accepts and drops are repeated, here after 4 s, once each."""
    monkeypatch.setattr("pulsar_nack.consumer._requests.REQUEST_MEMORY_MS", round(1_000 * patience(1)))
    async with subscribed(service_url, topic, redelivery="broker") as (client, consumer):
        await send(client, topic, numbered(20))
        messages = await take(consumer, 20)
        port, lost = consumer.port, 0

        def lose_nowait(ids: Sequence[MessageId]) -> None:
            nonlocal lost
            lost += len(ids)

        async def lose(ids: Sequence[MessageId]) -> None:
            lose_nowait(ids)

        with monkeypatch.context() as losing:
            losing.setattr(port, "redeliver", lose)
            if isinstance(port, SupportsNowait):
                losing.setattr(port, "redeliver_nowait", lose_nowait)
            for message in messages:
                await message.nack(delay=0.5)
            assert await nothing_comes(consumer, 1.5)
            assert lost == consumer.statistics().requested == 20
        again = await take(consumer, 20, timeout=patience(10))
        assert payloads(again) == sorted(numbered(20))
        assert {message.attempt for message in again} == {2}
        assert consumer.statistics().requested_again == 20
        await asyncio.gather(*(message.ack() for message in again))
        assert await nothing_comes(consumer, 1.0)
        assert scenarios.all_given_back(consumer)
