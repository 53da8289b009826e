"""The cases that the embedded broker is faithful for: Shared subscriptions, one message in each entry."""

from __future__ import annotations

import time

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


@pytest.mark.slow
async def test_nacks_keep_coming(url: str, topic: str) -> None:
    """N32: each comes back at its own time while nacking goes on; with the official client alone most do not."""
    await scenarios.nacks_keep_coming(url, topic)


async def test_each_at_its_own_time(url: str, topic: str) -> None:
    """N33: delays of 3 s, 0.5 s and 1.5 s come back in the order of their times."""
    await scenarios.each_at_its_own_time(url, topic)


@pytest.mark.slow
async def test_dead_letters(url: str, topic: str) -> None:
    """U6: nacked at each attempt, a message is shown 3 times, then it is in the dead-letter topic with its reason."""
    setting = DeadLetterPolicy(2)
    async with (
        subscribed(url, topic, dead_letter=setting) as (client, consumer),
        subscribed(url, f"{topic}-sub-DLQ") as (_, dead),  # before: the broker makes no subscription for a producer
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
async def test_an_extended_lease_does_not_end_and_another_does(url: str, topic: str) -> None:
    """U44: with a lease of 2 s, a handler that extends it keeps its message, and one that hangs loses it."""
    await scenarios.an_extended_lease(url, topic)


@pytest.mark.slow
async def test_a_late_nack_counts_no_other_attempt(url: str, topic: str) -> None:
    """U11: a nack after the lease brings the message back once; an ack cancels the redelivery."""
    await scenarios.a_late_nack(url, topic)


@pytest.mark.slow
async def test_ten_messages_from_outside(url: str, topic: str) -> None:
    """U50: ten received, three nacked, two of them dead-lettered, eight acknowledged: all that is exported says so."""
    await scenarios.ten_messages_from_outside(url, topic)


@pytest.mark.slow
async def test_counts_grow(url: str, topic: str) -> None:
    """N34: nacked four times, a message is seen with the counts 0, 1, 2, 3."""
    await scenarios.counts_grow(url, topic)


@pytest.mark.slow
async def test_only_the_nacked_ones(url: str, topic: str) -> None:
    """N35: of five messages exactly the three that were nacked come again."""
    await scenarios.only_the_nacked_ones(url, topic)


@pytest.mark.slow
@pytest.mark.parametrize("redelivery", ["auto", "broker", "local"])
async def test_a_list_of_topics_and_rebuilt_ids(url: str, topic: str, redelivery: str) -> None:
    """N36: on a list of topics, ids as delivered and ids rebuilt from bytes and topic bring their messages back."""
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


@pytest.mark.slow
async def test_half_by_message_half_by_id(url: str, topic: str) -> None:
    """N37: all 20 come again, once; after acknowledging, nothing more."""
    await scenarios.half_by_message_half_by_id(url, topic, batched=False)


async def test_a_timeout_loses_nothing(url: str, topic: str) -> None:
    """U1: what is sent after a receive timed out arrives, once, the first message too."""
    await scenarios.receive_loses_nothing_by_timeout(url, topic)
