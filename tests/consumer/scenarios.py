"""Conformance cases that run on several brokers; each takes a service URL and a new topic.

Times are on the real clock, so they are bounded loosely; which messages come and how often must be exact.
"""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from typing import Any

import pulsar
import pytest

from pulsar_nack import Consumer, DeadLetterPolicy
from pulsar_nack.consumer import ConsumerConnected, ConsumerDisconnected, MessageDeadLettered
from pulsar_nack.errors import LeaseExpiredError
from pulsar_nack.observe import ConsumerMetrics
from tests.consumer.official import (
    Stopwatch,
    nothing_comes,
    numbered,
    official_client,
    payloads,
    send,
    subscribed,
    take,
)
from tests.consumer.ten_messages import EXPECTED, PAYLOADS, check_statistics, counts_of, handle_ten
from tests.patience import patience

OFFICIAL_REARMS = 0.3
"""The official client resets its timer to a third of its delay at each nack: with longer gaps it redelivers."""

SLACK = patience(0.15)
"""Seconds that a busy machine may add."""


async def nacks_keep_coming(url: str, topic: str) -> None:
    """N32: each message is redelivered at its deadline while nacks go on; with the official client most are not."""
    ours, (official, longest_gap) = await asyncio.gather(
        _ours_while_nacking(url, topic), _official_while_nacking(url, topic + "-off")
    )
    assert len(ours) == 25
    late = {number: back - 1.0 for number, back in ours.items()}
    assert all(-0.2 < error < SLACK for error in late.values()), late
    if longest_gap < OFFICIAL_REARMS:
        assert official < len(ours) / 2


async def _ours_while_nacking(url: str, topic: str) -> dict[bytes, float]:
    async with subscribed(url, topic) as (client, consumer):
        await send(client, topic, numbered(25))
        nacked_at: dict[bytes, float] = {}
        back: dict[bytes, float] = {}

        async def nack_one_by_one() -> None:
            for _ in range(25):
                message = await fresh.get()
                nacked_at[message.data] = time.monotonic()
                await message.nack(delay=1.0)
                await asyncio.sleep(0.2)

        fresh: asyncio.Queue[Any] = asyncio.Queue()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(nack_one_by_one())
            while len(back) < 25:
                message = await consumer.receive(timeout=10)
                if message.attempt == 1:
                    fresh.put_nowait(message)
                    continue
                assert message.data not in back
                back[message.data] = time.monotonic() - nacked_at[message.data]
                await message.ack()
        assert await nothing_comes(consumer)
        return back


async def _official_while_nacking(url: str, topic: str) -> tuple[int, float]:
    """Return how many were redelivered during the nacks, and the longest time between two nacks in seconds."""
    async with official_client(url) as client:
        consumer = await client.subscribe(
            topic, "sub", consumer_type=pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=1000
        )
        await send(client, topic, numbered(25))
        messages = [await consumer.receive() for _ in range(25)]
        came_back = 0

        async def count() -> None:
            nonlocal came_back
            while True:
                await consumer.receive()
                came_back += 1

        counting = asyncio.create_task(count())
        nacked_at = []
        for message in messages:
            nacked_at.append(time.monotonic())
            await consumer.negative_acknowledge(message)
            await asyncio.sleep(0.2)
        during = came_back
        counting.cancel()
        await asyncio.gather(counting, return_exceptions=True)
        return during, max(after - before for before, after in pairwise(nacked_at))


async def each_at_its_own_time(url: str, topic: str) -> None:
    """N33: messages with delays of 3 s, 0.5 s and 1.5 s are redelivered in the order of their deadlines."""
    async with subscribed(url, topic) as (client, consumer):
        await send(client, topic, numbered(3))
        messages = sorted(await take(consumer, 3), key=lambda message: message.data)
        watch = Stopwatch()
        for message, delay in zip(messages, (3.0, 0.5, 1.5), strict=True):
            await message.nack(delay=delay)
        for payload, delay in ((b"1", 0.5), (b"2", 1.5), (b"0", 3.0)):
            message = await consumer.receive(timeout=10)
            assert message.data == payload
            assert -0.1 < watch.seconds - delay < SLACK
            await message.ack()


async def ten_messages_from_outside(url: str, topic: str) -> None:
    """U50: of ten messages, three nacked, two of them dead-lettered, eight acknowledged: the exported figures agree."""
    events, metrics = list[Any](), ConsumerMetrics()
    async with subscribed(url, topic, dead_letter=DeadLetterPolicy(5), hooks=[events.append]) as (client, consumer):
        metrics.add(consumer)
        await send(client, topic, PAYLOADS)
        await handle_ten(consumer, delay=0.3)
        check_statistics(consumer)
        samples = {
            " ".join([sample.name, sample.labels.get("le", "")]).strip(): sample.value
            for family in metrics.collect()
            for sample in family.samples
        }
        labels = {sample.labels["pulsar_topic"] for family in metrics.collect() for sample in family.samples}
    java, ours = "pulsar_client_consumer_message_", "pulsar_nack_consumer_"
    assert labels == {topic}
    assert (samples[f"{java}received_count_total"], samples[f"{java}nack_total"]) == (13, 3)
    assert (samples[f"{java}dlq_total"], samples[f"{java}ack_total"]) == (2, 8)
    assert samples[f"{ours}lateness_seconds_count"] == samples[f"{ours}attempts_bucket 2"] == 3
    assert samples[f"{ours}lateness_seconds_sum"] < 3 * SLACK
    assert counts_of(events) == EXPECTED
    topics = {event.topic for event in events if isinstance(event, MessageDeadLettered)}
    assert topics == {f"{topic}-sub-DLQ"}
    kinds = [type(event) for event in events if isinstance(event, ConsumerConnected | ConsumerDisconnected)]
    assert (kinds[0], kinds[-1]) == (ConsumerConnected, ConsumerDisconnected)


async def counts_grow(url: str, topic: str) -> None:
    """N34: a message nacked four times is delivered with the counts 0, 1, 2, 3."""
    async with subscribed(url, topic) as (client, consumer):
        await send(client, topic, [b"x"])
        counts = []
        for _ in range(4):
            message = await consumer.receive(timeout=10)
            counts.append(message.redelivery_count)
            await message.nack(delay=0.5)
        assert counts == [0, 1, 2, 3]
        await (await consumer.receive(timeout=10)).ack()


async def only_the_nacked_ones(url: str, topic: str) -> None:
    """N35: of five messages exactly the three that were nacked are redelivered."""
    async with subscribed(url, topic) as (client, consumer):
        await send(client, topic, numbered(5))
        for message in await take(consumer, 5):
            await (message.ack() if message.data in {b"1", b"3"} else message.nack(delay=0.3))
        again = await take(consumer, 3)
        assert payloads(again) == [b"0", b"2", b"4"]
        for message in again:
            await message.ack()
        assert await nothing_comes(consumer)


async def half_by_message_half_by_id(url: str, topic: str, *, batched: bool = False) -> None:
    """N37: all 20 are redelivered, once; after acknowledging, nothing more."""
    async with subscribed(url, topic) as (client, consumer):
        await send(client, topic, numbered(20), batched=batched)
        for message in await take(consumer, 20):
            await (message.nack(delay=0.4) if int(message.data) % 2 else consumer.negative_acknowledge(message.id, 0.4))
        again = await take(consumer, 20)
        assert payloads(again) == sorted(numbered(20))
        for message in again:
            await message.ack()
        assert await nothing_comes(consumer, 1.0)
        assert all_given_back(consumer)


def all_given_back(consumer: Consumer) -> bool:
    """Return whether nothing is unacknowledged."""
    statistics = consumer.statistics()
    return statistics.unacked == statistics.requested == statistics.kept == statistics.kept_bytes == 0


async def receive_loses_nothing_by_timeout(url: str, topic: str) -> None:
    """U1: what is sent after a receive timed out arrives once, and so does the first message."""
    async with subscribed(url, topic) as (client, consumer):
        for _ in range(3):
            assert await nothing_comes(consumer, 0.2)
        await send(client, topic, [b"m0", b"m1", b"m2"])
        assert payloads(await take(consumer, 3)) == [b"m0", b"m1", b"m2"]
        assert await nothing_comes(consumer)


async def an_extended_lease(url: str, topic: str, **settings: Any) -> None:
    """U44: one handler extends its lease of 2 s all the time; another hangs, and loses its message."""
    lease = 2.0
    async with subscribed(url, topic, lease=lease, backoff=0.2, **settings) as (client, consumer):
        await send(client, topic, [b"extended", b"hung"])
        messages = {message.data: message for message in await take(consumer, 2)}
        watch = Stopwatch()

        async def handle() -> None:
            for _ in range(10):
                await asyncio.sleep(0.5)
                await messages[b"extended"].in_progress(lease)
            await messages[b"extended"].ack()

        handling = asyncio.create_task(handle())
        again = await consumer.receive(timeout=patience(10))
        assert watch.seconds > lease + 0.1  # and 0.2 s, less the time that a message was here before the watch began
        assert (again.data, again.attempt) == (b"hung", 2)
        with pytest.raises(LeaseExpiredError):
            await messages[b"hung"].ack()
        await again.ack()
        await handling
        assert await nothing_comes(consumer, 1.5)
        figures = consumer.statistics()
        assert (figures.leases_expired, figures.acked, figures.shown) == (1, 2, 3)
        assert all_given_back(consumer)


async def a_late_nack(url: str, topic: str, **settings: Any) -> None:
    """U11: a lease of 1 s, a handler of 1.2 s that then nacks: one redelivery; an ack after that settles."""
    async with subscribed(url, topic, lease=1, backoff=1.5, **settings) as (client, consumer):
        await send(client, topic, [b"nacked", b"acked"])
        messages = {message.data: message for message in await take(consumer, 2)}
        await asyncio.sleep(1.2)
        await messages[b"nacked"].nack()
        await messages[b"acked"].ack()
        again = await consumer.receive(timeout=patience(10))
        assert (again.data, again.attempt) == (b"nacked", 2)
        await again.ack()
        assert await nothing_comes(consumer, 2)
        assert consumer.statistics().leases_expired == 2
        assert all_given_back(consumer)
