"""Consumers of local topics without prefetched messages, and messages without a value."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_nack import BrokerError, ClosedError, Consumer, DeadLetterPolicy, InvalidArgumentError, MessageId
from pulsar_nack.topic import LocalTopic
from tests.for_each import for_each
from tests.patience import patience


@pytest.fixture
async def topic(tmp_path: Path) -> AsyncIterator[LocalTopic]:
    """Return a topic."""
    async with await LocalTopic.open(tmp_path / "topic") as opened:
        yield opened


async def delivered(consumer: Consumer) -> list[Any]:
    """Return what is delivered until nothing comes for a moment, with the attempt."""
    found = []
    try:
        while True:
            message = await consumer.receive(timeout=patience(0.1))
            found.append((message.data, message.attempt))
            await message.ack()
    except TimeoutError:
        return found


def first_attempts(*payloads: bytes) -> list[Any]:
    """Return these as first attempts."""
    return [(payload, 1) for payload in payloads]


async def test_what_was_fetched_ahead_goes_to_others(topic: LocalTopic) -> None:
    """O17: a paused consumer's messages go to another one as new ones, except for the rest of a batch in process."""
    async with topic.consumer("s") as first:
        await topic.publish([b"a", b"b"], batch=True)
        await topic.publish([b"c", b"d"])
        in_work = await first.receive(timeout=5)
        async with topic.consumer("s") as second:
            first.pause()
            await topic.publish(b"e")
            assert await delivered(second) == first_attempts(b"c", b"d", b"e")
            assert await delivered(first) == []
            await in_work.nack(delay=0)
            assert await delivered(second) == []
        first.resume()
        assert sorted(await delivered(first)) == [(b"a", 2), (b"b", 1)]


@for_each("kind", ["exclusive", "failover"])
async def test_where_only_one_gets_messages_they_stay(kind: Any, tmp_path: Path) -> None:
    """O17: no other consumer could have them; they are delivered after the resume."""
    async with await LocalTopic.open(tmp_path / kind) as topic, topic.consumer("s", kind) as consumer:
        await topic.publish([b"a", b"b"])
        await asyncio.sleep(0.02)
        consumer.pause()
        await topic.publish(b"c")
        assert await delivered(consumer) == []
        consumer.resume()
        assert await delivered(consumer) == first_attempts(b"a", b"b", b"c")


@for_each("kind", ["shared", "key_shared", "exclusive", "failover"])
async def test_without_a_queue_nothing_is_held(kind: Any, tmp_path: Path) -> None:
    """O16: a message is in flight once a call waits for it; a cancelled call loses nothing."""
    async with (
        await LocalTopic.open(tmp_path / kind) as topic,
        topic.consumer("s", kind, receiver_queue_size=0) as consumer,
    ):
        await topic.publish([b"a", b"b"], key="k")
        await topic.publish([b"c", b"d"], key="k", batch=True)
        await asyncio.sleep(0.02)
        assert topic.statistics().subscriptions["s"].in_flight == 0
        for number, payload in enumerate((b"a", b"b", b"c", b"d")):
            message = await consumer.receive(timeout=5)
            assert message.data == payload
            await asyncio.sleep(0.01)
            assert topic.statistics().subscriptions["s"].in_flight == min(number + 1, 3)
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await consumer.receive(timeout=0.01)
        await topic.publish(b"e", key="k")
        assert (await consumer.receive(timeout=5)).data == b"e"


async def test_a_long_job_keeps_no_others(topic: LocalTopic) -> None:
    """O16: while one of two workers is busy the other one handles all messages."""
    async with (
        topic.consumer("s", receiver_queue_size=0) as first,
        topic.consumer("s", receiver_queue_size=0) as second,
    ):
        await topic.publish([b"%d" % number for number in range(6)])
        await first.receive(timeout=5)
        assert await delivered(second) == first_attempts(*(b"%d" % number for number in range(1, 6)))


@for_each("batch", [False, True])
async def test_null_differs_from_empty(batch: bool, tmp_path: Path) -> None:
    """O14: over a restart too, in batches, and as a dead letter."""
    home = tmp_path / str(batch)
    async with await LocalTopic.open(home) as topic:
        await topic.create_subscription("s", initial_position="earliest")
        await topic.publish([None, b"", b"x"], batch=batch)
        await topic.publish(None)
    async with await LocalTopic.open(home) as topic, await LocalTopic.open(tmp_path / f"dead {batch}") as dead:
        await dead.create_subscription("repair")
        policy = DeadLetterPolicy(1, topic="dead", publisher=dead.publisher())
        async with topic.consumer("s", dead_letter=policy) as consumer, dead.consumer("repair") as repair:
            messages = [await consumer.receive(timeout=5) for _ in range(4)]
            assert [message.data for message in messages] == [None, b"", b"x", None]
            assert (messages[0].producer_name, messages[0].sequence_id) == (None, None)
            assert (messages[0].schema_version, messages[0].is_replicated) == (None, False)
            for message in messages:
                await message.dead_letter("why")
            assert [data for data, _ in await delivered(repair)] == [None, b"", b"x", None]
        with pytest.raises(InvalidArgumentError, match="payload"):
            await topic.publish([])


async def test_unsubscribing(topic: LocalTopic) -> None:
    """A consumer deletes its subscription and is closed, unless others consume it."""
    async with topic.consumer("s") as first:
        await topic.publish(b"a")
        async with topic.consumer("s"):
            with pytest.raises(BrokerError, match="other consumers"):
                await first.unsubscribe()
        assert (await first.receive(timeout=5)).data == b"a"
        await first.unsubscribe()
        with pytest.raises(ClosedError):
            await first.receive()
    assert topic.subscriptions == []


async def test_unsubscribing_by_force(topic: LocalTopic) -> None:
    """The other consumers are closed; their messages are gone with the subscription, which begins again."""
    async with topic.consumer("s") as first, topic.consumer("s") as second:
        with pytest.raises(BrokerError, match="other consumers"):
            await first.unsubscribe()
        waiting = asyncio.create_task(second.receive())
        await asyncio.sleep(0)
        await first.unsubscribe(force=True)
        await topic.publish(b"a")
        for call in (waiting, second.receive(), first.receive()):
            with pytest.raises(ClosedError):
                await call
        assert topic.subscriptions == []
    async with topic.consumer("s") as again:
        assert (await again.receive(timeout=5)).data == b"a"


async def test_the_end_of_the_topic(topic: LocalTopic) -> None:
    """Its last message, also a batch's, is known; availability is known before, at and after the end."""
    async with topic.consumer("s") as consumer, topic.consumer("later", initial_position="latest") as later:
        assert (await consumer.get_last_message_id()).entry == -1
        assert not await consumer.has_message_available()
        single = await topic.publish(b"a")
        assert await consumer.last_message_ids() == [single]
        batch = await topic.publish([b"b", b"c"], batch=True)
        last = await consumer.get_last_message_id()
        assert (last, last.batch_size, last.topic) == (batch[-1], 2, topic.name)
        for number in range(3):
            assert await consumer.has_message_available()
            message = await consumer.receive(timeout=5)
            if number < 2:
                await message.ack()
        assert not await consumer.has_message_available()
        await message.ack()
        assert not await consumer.has_message_available()
        assert await later.has_message_available()
        await later.seek(MessageId(2**63 - 1, 2**63 - 1))
        assert not await later.has_message_available()
