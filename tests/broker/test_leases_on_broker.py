"""Leases on a real broker: with both clients, in batches, on all subscription types, and of killed processes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pulsar_nack import Consumer, Message
from tests.consumer import scenarios
from tests.consumer.official import nothing_comes, numbered, send, subscribed, take
from tests.patience import patience

pytestmark = pytest.mark.usefixtures("transport")
KINDS = pytest.mark.parametrize("kind", ["shared", "key_shared", "exclusive", "failover"])


@KINDS
async def test_an_extended_lease_does_not_end_and_another_does(service_url: str, topic: str, kind: Any) -> None:
    """U44: with a lease of 2 s, a handler that extends it keeps its message, and one that hangs loses it."""
    await scenarios.an_extended_lease(service_url, topic, consumer_type=kind)


@pytest.mark.parametrize("redelivery", ["auto", "broker", "local"])
async def test_a_late_nack_counts_no_other_attempt(service_url: str, topic: str, redelivery: Any) -> None:
    """U11: a nack after the lease redelivers the message once; an ack cancels the redelivery."""
    await scenarios.a_late_nack(service_url, topic, redelivery=redelivery)


@pytest.mark.parametrize("batch_index_ack", [False, True])
async def test_the_lease_of_one_member_does_not_touch_the_others(
    service_url: str, topic: str, batch_index_ack: bool
) -> None:
    """U26, U44: one of a batch of five hangs: only it is redelivered, and the entry is acknowledged in the end."""
    settings: dict[str, Any] = {"lease": 1, "backoff": 0.2, "batch_index_ack_enabled": batch_index_ack}
    async with subscribed(service_url, topic, **settings) as (client, consumer):
        await send(client, topic, numbered(5), batched=True)
        messages = {message.data: message for message in await take(consumer, 5)}
        for number in (0, 1):
            await messages[b"%d" % number].ack()
        for number in (3, 4):
            await messages[b"%d" % number].in_progress(60)
        again = await consumer.receive(timeout=patience(10))
        assert (again.data, again.attempt) == (b"2", 2)
        await again.ack()
        for number in (3, 4):
            await messages[b"%d" % number].ack()
        assert await nothing_comes(consumer, 1.5)
        assert scenarios.all_given_back(consumer)
    async with subscribed(service_url, topic) as (_, consumer):
        assert await nothing_comes(consumer, 1.5)


async def test_messages_of_hung_handlers_are_delivered_once(service_url: str, topic: str) -> None:
    """U21, U44: 20 messages whose leases ended are redelivered by the broker once each, to either consumer."""
    settings: dict[str, Any] = {"lease": 3, "backoff": 0.2, "redelivery": "broker"}
    async with (
        subscribed(service_url, topic, **settings) as (client, first),
        subscribed(service_url, topic, **settings) as (_, second),
    ):
        await send(client, topic, numbered(20))
        delivered: list[Message] = []

        async def show(consumer: Consumer) -> None:
            async for message in consumer:
                delivered.append(message)
                if message.attempt > 1:
                    message.ack_soon()

        receiving = [asyncio.create_task(show(consumer)) for consumer in (first, second)]
        ends_at = asyncio.get_running_loop().time() + patience(15)
        while len(delivered) < 40 and asyncio.get_running_loop().time() < ends_at:
            await asyncio.sleep(0.05)
        await asyncio.sleep(1)
        for task in receiving:
            task.cancel()
        assert sorted(message.data for message in delivered) == sorted(numbered(20) * 2)
        assert first.statistics().leases_expired + second.statistics().leases_expired == 20


async def test_durable(service_url: str, topic: str, tmp_path: Path) -> None:
    """U9, U44: a lease ends, then the consumer is closed and reopened: the message keeps its deadline and attempt."""
    settings: dict[str, Any] = {"lease": 1, "backoff": 6, "durable": tmp_path / "state"}
    async with subscribed(service_url, topic, **settings) as (client, consumer):
        await send(client, topic, [b"x"])
        await take(consumer, 1)
        await asyncio.sleep(1.2)
        assert consumer.statistics().held == 1
    async with subscribed(service_url, topic, **settings) as (_, consumer):
        assert await nothing_comes(consumer, 3)
        again = await consumer.receive(timeout=patience(10))
        assert again.attempt == 2
        await again.ack()
        assert await nothing_comes(consumer, 1)
