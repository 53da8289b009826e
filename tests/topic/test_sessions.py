"""Consumers of local topics when other callers move, clear or take over their subscription."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pulsar_nack import DeadLetterPolicy, MessageId
from pulsar_nack.clock import LoopClock
from pulsar_nack.testing import FakePublisher, LocalBroker, virtual_time
from pulsar_nack.topic import LocalTopic
from tests.for_each import for_each
from tests.tiers import seeds
from tests.wire.using import EXACT, LATEST, received


async def publish(topic: LocalTopic, count: int, *, batch: bool = False) -> list[bytes]:
    """Publish numbered messages; return their payloads, sorted."""
    data = [b"%d" % number for number in range(count)]
    await topic.publish(data, batch=batch)
    return sorted(data)


@pytest.mark.parametrize("batch", [False, True])
@virtual_time
async def test_a_seek_by_one_worker_shows_all_again(batch: bool) -> None:
    """O1: two consumers have acknowledged everything; one seeks back: the two receive all of it again."""
    async with LocalBroker() as broker, broker.consumer("s") as one, broker.consumer("s") as two:
        expected = await publish(await broker.topic(), 20, batch=batch)
        first = await asyncio.gather(received(one), received(two))
        assert sorted(first[0] + first[1]) == expected
        await one.seek(0)
        again = await asyncio.gather(received(one), received(two))
        assert sorted(again[0] + again[1]) == expected


@pytest.mark.parametrize("is_durable", seeds([False, True]))
@pytest.mark.parametrize("batch", [False, True])
@for_each("kind", ["shared", "key_shared", "exclusive", "failover"])
@virtual_time
async def test_a_seek_by_somebody_else(kind: Any, batch: bool, is_durable: bool, tmp_path: Path) -> None:
    """O2, O3: a topic is moved back while its consumer is connected, and while it is away: all comes both times."""
    settings: dict[str, Any] = {"durable": tmp_path / kind, "wall_clock": LoopClock()} if is_durable else {}
    async with LocalBroker() as broker:
        topic = await broker.topic()
        async with broker.consumer("s", kind, **settings) as consumer:
            expected = await publish(topic, 10, batch=batch)
            assert sorted(await received(consumer)) == expected
            await topic.seek("s", 0)
            assert sorted(await received(consumer)) == expected
            assert consumer.statistics().acked_again == 0
        await topic.seek("s", 0)
        async with broker.consumer("s", kind, **settings) as consumer:
            assert sorted(await received(consumer)) == expected
        assert topic.backlog("s") == 0


@for_each(("kind", "batch"), [(kind, batch) for kind in ("shared", "exclusive", "failover") for batch in (False, True)])
@virtual_time
async def test_a_seek_while_acknowledgements_are_on_their_way(kind: Any, batch: bool, tmp_path: Path) -> None:
    """O49: all that a durable consumer was acknowledging when it sought is delivered again."""
    settings: dict[str, Any] = {"durable": tmp_path / f"{kind}-{batch}", "wall_clock": LoopClock()}
    async with LocalBroker() as broker, broker.consumer("s", kind, **settings) as consumer:
        topic = await broker.topic()
        expected = await publish(topic, 10, batch=batch)
        messages = [await consumer.receive(timeout=5) for _ in expected]
        acks = [asyncio.ensure_future(message.ack()) for message in messages]
        await asyncio.sleep(0)
        await consumer.seek(0)
        await asyncio.gather(*acks)
        again = [await consumer.receive(timeout=5) for _ in expected]
        assert sorted(message.data for message in again) == expected
        assert topic.backlog("s") == (1 if batch else 10)  # entries


@virtual_time
async def test_a_seek_while_a_durable_consumer_is_away(tmp_path: Path) -> None:
    """O3: a durable consumer is stopped, its subscription moved back 3 s later: all comes when it restarts."""
    settings: dict[str, Any] = {"durable": tmp_path, "wall_clock": LoopClock()}
    async with LocalBroker() as broker:
        topic = await broker.topic()
        expected = await publish(topic, 10)
        async with broker.consumer("s", **settings) as consumer:
            assert sorted(await received(consumer)) == expected
        await asyncio.sleep(3)
        await topic.seek("s", 0)
        async with broker.consumer("s", **settings) as consumer:
            assert sorted(await received(consumer)) == expected
            await topic.seek("s", 0)
            assert sorted(await received(consumer)) == expected


@pytest.mark.parametrize("has_messages", [True, False])
@virtual_time
async def test_seek_to_the_latest(has_messages: bool) -> None:
    """O4: after a seek to the latest id nothing old comes, and a new message is received at once."""
    async with LocalBroker() as broker, broker.consumer("s") as consumer:
        topic = await broker.topic()
        if has_messages:
            await publish(topic, 3)
        await consumer.seek(LATEST)
        assert await received(consumer) == []
        await topic.publish(b"new")
        assert (await consumer.receive(timeout=1)).data == b"new"
        await topic.seek("s", LATEST)
        assert topic.backlog("s") == 0


@pytest.mark.parametrize("clearing", ["clear", "skip", "cumulative"])
@pytest.mark.parametrize("kind", ["shared", "key_shared", "exclusive", "failover", "batch"])
@virtual_time
async def test_a_poison_message_that_was_cleared(kind: str, clearing: str) -> None:
    """O8: a message is nacked repeatedly; the backlog is cleared: it comes once more at most, and is forgotten."""
    if clearing == "cumulative" and kind not in {"exclusive", "failover"}:
        return
    letters = FakePublisher()
    dead = DeadLetterPolicy(9, "dead", publisher=letters)
    kind_of: Any = "shared" if kind == "batch" else kind
    async with (
        LocalBroker() as broker,
        broker.consumer("s", kind_of, config=EXACT, redelivery="local", dead_letter=dead) as consumer,
    ):
        topic = await broker.topic()
        await publish(topic, 2, batch=kind == "batch")
        times = 0

        async def work() -> None:
            nonlocal times
            async for message in consumer:
                if message.data == b"0":
                    times += 1
                    await message.nack(0.3)  # the other one stays in flight

        worker = asyncio.create_task(work())
        await asyncio.sleep(1.25)
        before = times
        if clearing == "clear":
            await topic.clear_backlog("s")
        elif clearing == "skip":
            await topic.skip("s", 9)
        else:
            await topic._subscriptions.used["s"].moves.acknowledge_cumulative(MessageId(*topic.last_position))
        await asyncio.sleep(5)
        assert times - before <= 1
        assert letters.letters == []
        figures = consumer.statistics()
        assert (figures.held, figures.requested, figures.kept, figures.dropped) == (0, 0, 0, 1)
        worker.cancel()


@pytest.mark.parametrize("batch", [False, True])
@virtual_time
async def test_a_failover_switch(batch: bool) -> None:
    """O53: another consumer takes over while messages are held, and due ones wait: only it delivers them."""
    async with LocalBroker() as broker, broker.consumer("s", "failover", consumer_name="b", config=EXACT) as second:
        expected = await publish(await broker.topic(), 4, batch=batch)
        for number in range(4):
            await (await second.receive()).nack(delay=1 if number < 2 else 60)
        await asyncio.sleep(2)
        assert (second.statistics().ready, second.statistics().held) == (2, 2)
        async with broker.consumer("s", "failover", consumer_name="a") as first:
            assert sorted(await received(first)) == expected
            assert await received(second, seconds=100) == []
        assert second.statistics().dropped == 4


@virtual_time
async def test_a_cumulative_ack_that_was_overtaken() -> None:
    """O54: the backlog was cleared before a cumulative acknowledgement: it does nothing, as at a broker."""
    async with LocalBroker() as broker, broker.consumer("s", "exclusive") as consumer:
        topic = await broker.topic()
        await publish(topic, 3)
        messages = [await consumer.receive() for _ in range(3)]
        await topic.clear_backlog("s")
        await consumer.acknowledge_cumulative(messages[1])
        assert topic.backlog("s") == 0
