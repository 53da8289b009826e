"""The retry topic of a local topic: beside it, in its own folder, on virtual time."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pulsar_nack import DeadLetterPolicy, InvalidArgumentError, LocalTopic, MessageId, NackConfig
from pulsar_nack.config import DelayedDeliveryConfig
from pulsar_nack.consumer import RetryTopicPolicy
from pulsar_nack.ledger import LocalLogStore
from pulsar_nack.testing import LocalBroker, virtual_time
from tests.patience import patience
from tests.topic.using import now

EXACT = NackConfig(negative_ack_precision_bit_cnt=0)
TOPIC = "persistent://public/default/local"
RETRY = f"{TOPIC}-billing-RETRY"
ABOUT: dict[str, Any] = {"config": EXACT, "retry_topic": RetryTopicPolicy()}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("delay", [0.2, 3.0, 3.7])
@virtual_time
async def test_exactly_in_time(delay: float, strict: bool) -> None:
    """U15: twice, then the dead-letter topic; to the ms, though the topic delivers up to a tick early or late."""
    config = DelayedDeliveryConfig(is_delayed_delivery_deliver_at_time_strict=strict)
    async with LocalBroker(delayed=config) as broker:
        topic = await broker.topic()
        dead = await broker.topic("persistent://public/default/dead")
        settings = {
            **ABOUT,
            "dead_letter": DeadLetterPolicy(2, publisher=dead.publisher()),
        }
        async with broker.consumer("billing", **settings) as consumer, dead.consumer("repair") as repair:
            await topic.publish(b"order", key="k", properties={"colour": "red"})
            began_at = now()
            for attempt in (1, 2, 3):
                message = await consumer.receive(timeout=10)
                assert (message.attempt, message.key) == (attempt, "k")
                assert message.topic == (TOPIC if attempt == 1 else RETRY)
                assert now() - began_at == pytest.approx(delay * (attempt - 1), abs=0.0011)
                await message.reconsume_later(delay)
            letter = await repair.receive(timeout=5)
            assert (letter.data, letter.properties["RECONSUMETIMES"]) == (b"order", "3")
            assert letter.properties["REAL_TOPIC"] == TOPIC
            statistics = consumer.statistics()
            assert (statistics.retried, statistics.dead_lettered, statistics.unacked) == (2, 1, 0)
        assert topic.backlog("billing") == 0


@virtual_time
async def test_a_long_nack_waits_there() -> None:
    """U45: a nack for an hour, ``spill_after`` 600 s: nothing is unacknowledged, and attempt 2 an hour later."""
    async with LocalBroker() as broker:
        topic = await broker.topic()
        policy = RetryTopicPolicy(spill_after=timedelta(seconds=600))
        async with broker.consumer("billing", config=EXACT, retry_topic=policy) as consumer:
            await topic.publish(b"order")
            began_at = now()
            await (await consumer.receive(timeout=1)).nack(3600)
            await asyncio.sleep(1)
            assert (consumer.statistics().unacked, topic.backlog("billing")) == (0, 0)
            message = await consumer.receive(timeout=4000)
            assert message.attempt == 2
            assert now() - began_at == pytest.approx(3600, abs=0.0011)
            await message.ack()


@virtual_time
async def test_redelivered_from_the_retry_topic() -> None:
    """U15: a nacked message of the retry topic is redelivered from there, and attempts continue counting."""
    async with LocalBroker() as broker:
        topic = await broker.topic()
        async with broker.consumer("billing", **ABOUT) as consumer:
            await topic.publish(b"order")
            await (await consumer.receive(timeout=1)).nack(1)
            await (await consumer.receive(timeout=5)).reconsume_later(1)
            for attempt in (3, 4):
                message = await consumer.receive(timeout=5)
                assert (message.attempt, message.topic) == (attempt, RETRY)
                await message.nack(1)
            message = await consumer.receive(timeout=5)
            await message.reconsume_later(1)
            message = await consumer.receive(timeout=5)
            assert (message.attempt, message.properties["RECONSUMETIMES"]) == (6, "5")
            await message.ack()


@virtual_time
async def test_another_consumer_gets_what_waits() -> None:
    """U15, U31: after the consumer is closed another one gets the waiting messages, at the same times."""
    async with LocalBroker() as broker:
        topic = await broker.topic()
        async with broker.consumer("billing", **ABOUT) as consumer:
            await topic.publish(b"order")
            began_at = now()
            await (await consumer.receive(timeout=1)).reconsume_later(60)
        async with broker.consumer("billing", **ABOUT) as consumer:
            message = await consumer.receive(timeout=100)
            assert now() - began_at == pytest.approx(60, abs=0.0011)
            assert message.attempt == 2
            await message.ack()


@virtual_time
async def test_paused_moved_and_deleted() -> None:
    """O1: pausing, seeking and deleting the subscription apply to both topics."""
    async with LocalBroker() as broker:
        topic = await broker.topic()
        async with broker.consumer("billing", **ABOUT) as consumer:
            await topic.publish(b"order")
            await (await consumer.receive(timeout=1)).reconsume_later(0)
            message = await consumer.receive(timeout=1)
            await message.ack()
            await consumer.seek(0)
            found = {(await consumer.receive(timeout=5)).topic for _ in range(2)}
            assert found == {TOPIC, RETRY}
            await consumer.port._port.flush()
            assert len(await consumer.port._port.last_message_ids()) == 2


@pytest.mark.parametrize("kind", ["exclusive", "failover"])
async def test_where_nothing_can_be_delayed(kind: Any, tmp_path: Path) -> None:
    """U14: on Exclusive and Failover the setting is refused by name, and nothing is created."""
    async with await LocalTopic.open(tmp_path / "orders") as topic:
        with pytest.raises(InvalidArgumentError, match="retry_topic"):
            topic.consumer("billing", kind, retry_topic=RetryTopicPolicy())
        with pytest.raises(InvalidArgumentError, match="receiver_queue_size"):
            topic.consumer("billing", receiver_queue_size=0, retry_topic=RetryTopicPolicy())
        assert not topic.subscriptions
    assert [path.name for path in tmp_path.iterdir()] == ["orders"]


async def test_a_store_has_no_place_beside_it(tmp_path: Path) -> None:
    """U14: a topic in a store has no retry topic: the error says so."""
    async with await LocalLogStore.open(tmp_path) as store, await LocalTopic.open(store) as topic:
        with pytest.raises(InvalidArgumentError, match="retry_topic: expected None, as this topic is in a LogStore"):
            topic.consumer("billing", retry_topic=RetryTopicPolicy())


async def test_in_a_folder_beside_the_topic(tmp_path: Path) -> None:
    """U15: the retry topic is a folder beside the topic's, is closed with it, and keeps its messages."""
    ids: set[MessageId] = set()
    async with (
        await LocalTopic.open(tmp_path / "orders") as topic,
        topic.consumer("billing", **ABOUT) as consumer,
        topic.consumer("audit", **ABOUT),
    ):
        await topic.publish(b"order")
        message = await consumer.receive(timeout=patience(5))
        ids.add(message.id)
        await message.reconsume_later(0.3)
    assert {path.name for path in tmp_path.iterdir()} == {"orders", "orders-audit-RETRY", "orders-billing-RETRY"}
    async with await LocalTopic.open(tmp_path / "orders") as topic:
        async with topic.consumer("billing", **ABOUT) as consumer:
            message = await consumer.receive(timeout=patience(5))
            assert (message.data, message.attempt, message.topic) == (b"order", 2, RETRY)
            assert message.id not in ids
            await message.ack()
            await consumer.unsubscribe()
        assert topic.subscriptions == ["audit"]
