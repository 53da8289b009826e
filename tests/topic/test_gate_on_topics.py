"""The gate on a local topic, end to end: what stops, what passes, and that delivery resumes (PIP-299)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from pulsar_nack import DelayedDeliveryConfig, Delivery
from pulsar_nack.config import CursorConfig, TopicConfig
from pulsar_nack.testing import FaultyPort, LocalBroker, virtual_time
from pulsar_nack.topic import LocalTopic
from pulsar_nack.topic._dispatcher import SubscriptionType
from tests.tiers import seeds, size
from tests.topic.using import numbered, subscribed, until_quiet

LIMIT = 1_024
LITTLE = TopicConfig(cursor=CursorConfig(max_per_cursor_metadata_size_in_bytes=LIMIT))
TICK = DelayedDeliveryConfig(delayed_delivery_tick_time_millis=1, is_delayed_delivery_deliver_at_time_strict=True)


async def acknowledge_each_second(port: FaultyPort) -> list[Delivery]:
    """Acknowledge every second message as it comes, until no more come; return the others."""
    kept: list[Delivery] = []
    for number in range(1_000_000):
        try:
            delivery = await asyncio.wait_for(port.receive(), 1)
        except TimeoutError:
            break
        if number % 2:
            await port.acknowledge([delivery.id])
        else:
            kept.append(delivery)
    return kept


def is_paused(topic: LocalTopic) -> bool:
    """Return whether new messages wait."""
    return topic.statistics().subscriptions["s"].is_paused


@asynccontextmanager
async def paused(messages: int = 1_000) -> AsyncIterator[tuple[LocalBroker, LocalTopic, FaultyPort, list[Delivery]]]:
    """Yield a topic, a port of a paused subscription, and the messages in flight."""
    async with subscribed(LITTLE, receiver_queue_size=4) as (broker, topic, port):
        await topic.publish(numbered(messages))
        kept = await acknowledge_each_second(port)
        assert is_paused(topic)
        assert topic.cursor("s").metadata_size_bytes <= LIMIT
        yield broker, topic, port, kept


async def drain(port: FaultyPort, topic: LocalTopic) -> None:
    """Acknowledge all messages that come until none is left."""
    async with asyncio.timeout(600):
        while topic.backlog("s"):
            await port.acknowledge([(await port.receive()).id])


@virtual_time
async def test_it_continues() -> None:
    """K41: new messages stop at the limit; acks are accepted; when all holes are filled delivery runs to the end."""
    async with paused() as (_, topic, port, kept):
        assert 0 < len(kept) < 100
        backlog = topic.backlog("s")
        await port.acknowledge([kept[-1].id])
        assert topic.backlog("s") == backlog - 1
        await port.acknowledge([delivery.id for delivery in kept])
        await drain(port, topic)
        assert not is_paused(topic)


@virtual_time
async def test_all_kinds_of_subscriptions() -> None:
    """O27: single acknowledgements leave holes on each type, and pause it; in order or cumulatively there are none."""
    for kind in SubscriptionType:
        async with subscribed(LITTLE, kind=kind.value, receiver_queue_size=4) as (_, topic, port):
            await topic.publish(numbered(300))
            for number in range(100):
                delivery = await port.receive()
                if number % 2 or kind.is_shared:
                    await port.acknowledge([delivery.id])
                else:
                    await port.acknowledge_cumulative(delivery.id)
            assert not is_paused(topic)
            kept = await acknowledge_each_second(port)
            assert (is_paused(topic), 0 < len(kept) < 100) == (True, True)
            assert topic.cursor("s").metadata_size_bytes <= LIMIT
            await port.acknowledge([delivery.id for delivery in kept])
            await drain(port, topic)
            assert not is_paused(topic)


@virtual_time
async def test_what_comes_back_passes_lowest_first() -> None:
    """K42: while paused, requested entries come, lowest first, before any new one."""
    async with paused() as (broker, topic, port, kept):
        asked = [delivery.id for delivery in kept[5:15]]
        await port.redeliver(asked[::-1])
        came = [delivery.id for delivery in await until_quiet(port)]
        assert came[:10] == asked
        assert len(came) <= 11  # redelivered entries made room for a moment
        assert is_paused(topic)
        await port.close()
        other: FaultyPort = await broker.subscribe("s", receiver_queue_size=4)
        again = await until_quiet(other)
        assert [delivery.id for delivery in again] == [*(delivery.id for delivery in kept), *came[10:]]
        await drain_from(other, topic, again)


async def drain_from(port: FaultyPort, topic: LocalTopic, held: list[Delivery]) -> None:
    """Acknowledge messages in flight, and all that come until none is left."""
    await port.acknowledge([delivery.id for delivery in held])
    await drain(port, topic)


@pytest.mark.parametrize("move", ["skip", "clear", "seek", "seek to a time"])
@virtual_time
async def test_moving_resumes(move: str) -> None:
    """K43: a skip, a clear of the backlog and a seek make delivery continue."""
    async with paused() as (_, topic, port, kept):
        if move == "skip":
            assert await topic.skip("s", len(kept)) == len(kept)
        elif move == "clear":
            await topic.clear_backlog("s")
            await topic.publish(b"new")
        elif move == "seek":
            await port.seek(kept[0].id)
        else:
            await topic.seek("s", 0)
        delivery = await asyncio.wait_for(port.receive(), 1)
        assert delivery.data == {"clear": b"new", "skip": b"%d" % (int(kept[-1].data) + 1)}.get(move, b"0")
        assert not is_paused(topic)


@virtual_time
async def test_delayed_messages_that_come_due() -> None:
    """K44: while paused, delayed messages above the highest acknowledged position wait, those below pass."""
    async with subscribed(LITTLE, delayed=TICK, receiver_queue_size=4) as (_, topic, port):
        below = await topic.publish([b"below"] * 3, deliver_after=100)
        await topic.publish([b"0", b"1"])
        above = await topic.publish([b"above"] * 3, deliver_after=50)
        await topic.publish([b"%d" % number for number in range(2, 100)])
        held = await until_quiet(port)
        await port.acknowledge([held[1].id])
        held += await until_quiet(port)
        assert is_paused(topic)
        await asyncio.sleep(60)
        assert await until_quiet(port) == []
        await asyncio.sleep(50)
        assert [delivery.id for delivery in await until_quiet(port)] == below
        assert is_paused(topic)
        await port.acknowledge([held[-1].id])
        came = await until_quiet(port)
        await port.acknowledge([delivery.id for delivery in [*held, *came]])
        came += await until_quiet(port)
        assert [delivery.id for delivery in came[:3]] == above


@virtual_time
async def test_all_that_comes_due_is_held_on_demand() -> None:
    """K44: with hold_due_delayed no delayed message passes while paused; afterwards they all come."""
    strict = TopicConfig(cursor=LITTLE.cursor, hold_due_delayed=True)
    async with subscribed(strict, delayed=TICK, receiver_queue_size=4) as (_, topic, port):
        below = await topic.publish([b"below"] * 3, deliver_after=100)
        await topic.publish(numbered(200))
        kept = await acknowledge_each_second(port)
        assert is_paused(topic)
        await asyncio.sleep(200)
        assert await until_quiet(port) == []
        await port.acknowledge([delivery.id for delivery in kept])
        first = await until_quiet(port)
        assert [delivery.id for delivery in first[:3]] == below
        await port.acknowledge([delivery.id for delivery in first])
        await drain(port, topic)


@virtual_time
async def test_holes_that_are_all_delayed_drain() -> None:
    """K44: when every hole is a delayed message, the state shrinks as they are delivered."""
    two_a_ledger = TopicConfig(cursor=LITTLE.cursor, max_entries_per_ledger=2)
    async with subscribed(two_a_ledger, delayed=TICK, receiver_queue_size=4) as (_, topic, port):
        for number in range(400):
            await topic.publish(b"%d" % number, deliver_after=3_600 if number % 2 else None)
        seen = await until_quiet_acknowledging(port)
        assert 0 < seen < 200
        assert is_paused(topic)
        await asyncio.sleep(3_600)
        await drain(port, topic)


async def until_quiet_acknowledging(port: FaultyPort) -> int:
    """Acknowledge what comes until nothing comes for a second; return how many came."""
    seen = 0
    while True:
        try:
            delivery = await asyncio.wait_for(port.receive(), 1)
        except TimeoutError:
            return seen
        await port.acknowledge([delivery.id])
        seen += 1


@virtual_time
async def test_the_last_ack_is_never_missed() -> None:
    """K45: at whatever moment the acks arrive while the reader decides, delivery continues."""
    for pause in range(12):
        async with paused(messages=200) as (_, topic, port, kept):
            *first, last = kept
            await port.acknowledge([delivery.id for delivery in first])
            publishing = asyncio.create_task(topic.publish(b"more"))
            for _ in range(pause):
                await asyncio.sleep(0)
            await port.acknowledge([last.id])
            await drain(port, topic)
            await publishing
            await drain(port, topic)


@pytest.mark.parametrize("sizes", [(0,), (0, 2, 70, 200)], ids=["single", "batches"])
@pytest.mark.parametrize("seed", seeds(range(4)))
@virtual_time
async def test_what_is_in_flight_can_always_be_persisted(seed: int, sizes: tuple[int, ...]) -> None:
    """K48: whichever messages in flight are acknowledged, between two persists too, the state fits into the limit."""
    random = Random(seed)
    async with subscribed(LITTLE, receiver_queue_size=1_000) as (_, topic, port):
        for _ in range(size(300, fast=60)):
            if members := random.choice(sizes):
                await topic.publish([b"m"] * members, batch=True)
            else:
                await topic.publish(b"m")
        held: dict[tuple[int, int], list[Delivery]] = {}
        for _ in range(40):
            for delivery in await until_quiet(port):
                held.setdefault(delivery.id.position, []).append(delivery)
            if not held:
                break
            chosen = random.sample(sorted(held), max(len(held) // 2, 1))
            for position in chosen:
                mine = held.pop(position)
                part = random.sample(mine, max(len(mine) // 2, 1))
                await port.acknowledge([delivery.id for delivery in part])
                if rest := [delivery for delivery in mine if delivery not in part]:
                    held[position] = rest
                assert topic.cursor("s").metadata_size_bytes <= LIMIT
            if random.random() < 0.3:
                await topic.flush()
        for mine in held.values():
            await port.acknowledge([delivery.id for delivery in mine])
        await drain(port, topic)
