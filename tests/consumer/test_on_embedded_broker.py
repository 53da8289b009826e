"""The cases in which the embedded broker is faithful: Shared subscriptions, one message in each entry."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pulsar_nack import DeadLetterPolicy, InvalidArgumentError, MessageId
from pulsar_nack.consumer import RetryTopicPolicy
from pulsar_nack.testing import EmbeddedBroker
from tests.consumer import scenarios
from tests.consumer.official import nothing_comes, numbered, payloads, send, subscribed, take
from tests.patience import patience

pytestmark = [
    pytest.mark.skipif(not EmbeddedBroker.available(), reason="pulsar-lite does not run here"),
    pytest.mark.usefixtures("transport"),
]
QUICK: list[Any] = [scenarios.each_at_its_own_time, scenarios.receive_loses_nothing_by_timeout]
SLOW: list[Any] = [
    scenarios.nacks_keep_coming,
    scenarios.an_extended_lease,
    scenarios.a_late_nack,
    scenarios.ten_messages_from_outside,
    scenarios.counts_grow,
    scenarios.only_the_nacked_ones,
    scenarios.half_by_message_half_by_id,
]


@pytest.mark.parametrize("scenario", [*QUICK, *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)])
async def test_scenarios(url: str, topic: str, scenario: Callable[[str, str], Awaitable[None]]) -> None:
    """N32, N33, N34, N35, N37, U1, U11, U44, U50: they hold on this broker as on Apache Pulsar."""
    await scenario(url, topic)


@pytest.mark.slow
async def test_dead_letters(url: str, topic: str) -> None:
    """U6: nacked at each attempt, a message is delivered 3 times, then dead-lettered with its reason."""
    setting = DeadLetterPolicy(2)
    async with (
        subscribed(url, topic, dead_letter=setting) as (client, consumer),
        subscribed(url, f"{topic}-sub-DLQ") as (_, dead),  # before: the broker creates no subscription for a producer
    ):
        await send(client, topic, [b"poison", b"fine"])
        attempts = 0
        while attempts < 3:
            message = await consumer.receive(timeout=10)
            if message.data == b"fine":
                await message.ack()
                continue
            attempts += 1
            assert message.attempt == attempts
            await message.nack(0.2)
        letter = await dead.receive(timeout=10)
        assert letter.data == b"poison"
        assert letter.properties["PULSAR_NACK_REASON"] == "3 attempts failed"
        await letter.ack()
        assert await nothing_comes(consumer, 1)
        assert consumer.statistics().dead_lettered == 1


@pytest.mark.slow
async def test_retry_topic(url: str, topic: str) -> None:
    """U15, U45: consumed later, and nacked for long, a message comes from the retry topic, in time, as next attempt."""
    async with subscribed(url, topic, retry_topic=RetryTopicPolicy(spill_after=1)) as (client, consumer):
        await send(client, topic, [b"order"])
        message = await consumer.receive(timeout=10)
        for attempt, settle in ((2, message.reconsume_later), (3, None)):
            due_at = time.monotonic() + 1.5
            await (message.nack if settle is None else settle)(1.5)
            message = await consumer.receive(timeout=10)
            assert (message.attempt, message.topic) == (attempt, f"{topic}-sub-RETRY")
            assert -0.01 <= time.monotonic() - due_at < patience(0.3)
        await message.ack()
        statistics = consumer.statistics()
        assert (statistics.retried, statistics.nacked, statistics.unacked) == (2, 1, 0)
        assert await nothing_comes(consumer, 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("consumer_type", ["exclusive", "failover"])
async def test_no_retry_topic_where_nothing_can_be_delayed(url: str, topic: str, consumer_type: str) -> None:
    """U14: on Exclusive and Failover subscribing is refused."""
    with pytest.raises(InvalidArgumentError, match="retry_topic"):
        async with subscribed(url, topic, retry_topic=RetryTopicPolicy(), consumer_type=consumer_type):
            pass


@pytest.mark.slow
@pytest.mark.parametrize("redelivery", ["auto", "broker", "local"])
async def test_a_list_of_topics_and_rebuilt_ids(url: str, topic: str, redelivery: str) -> None:
    """N36: on a list of topics, ids as delivered and ids rebuilt from bytes and topic redeliver their messages."""
    topics = [topic, f"{topic}-b"]
    async with subscribed(url, topics, redelivery=redelivery) as (client, consumer):
        for number, name in enumerate(topics):
            await send(client, name, numbered(4, 10 * number))
        messages = await take(consumer, 8)
        for number, message in enumerate(messages):
            rebuilt = MessageId.from_bytes(message.id.to_bytes(), message.topic)
            await consumer.negative_acknowledge(rebuilt if number % 2 else message.id, 0.4)
        again = await take(consumer, 8)
        assert payloads(again) == payloads(messages) == sorted([*numbered(4), *numbered(4, 10)])
        for number, message in enumerate(again):
            rebuilt = MessageId.from_bytes(message.id.to_bytes(), message.topic)
            await consumer.acknowledge(rebuilt if number % 2 else message.id)
        assert await nothing_comes(consumer, 1.0)
        assert scenarios.all_given_back(consumer)
