"""Durable acknowledgements on a real broker: consumers and brokers that are killed with signal 9, and reconnects."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import pytest

from pulsar_nack import AlreadySettledError, Consumer, Message, MessageId
from tests.broker._admin import Admin
from tests.broker.standalone import Standalone
from tests.consumer import scenarios
from tests.consumer.durable_worker import working
from tests.consumer.official import (
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


async def unload(admin: Admin, topic: str) -> None:
    """Make the broker drop all connections of a topic; the client reconnects, and gets what is unacknowledged."""
    await asyncio.sleep(patience(0.4))  # the client sends them within 100 ms, the broker stores them within 1 s
    await asyncio.to_thread(admin.unload, topic)


async def is_done(url: str, topic: str, **settings: Any) -> bool:
    """Return whether another consumer of the subscription gets nothing, so that the broker has all acknowledgements."""
    await asyncio.sleep(0.3)
    async with subscribed(url, topic, **settings) as (_, after):
        return await nothing_comes(after, 1.0)


async def test_a_timeout_loses_nothing(service_url: str, topic: str, tmp_path: Path) -> None:
    """U1: messages sent after a durable consumer's receives timed out arrive once, and no more once acknowledged."""
    settings = {"durable": tmp_path / "state"}
    async with subscribed(service_url, topic, **settings) as (client, consumer):
        for _ in range(3):
            assert await nothing_comes(consumer, 0.2)
        await send(client, topic, [b"m0", b"m1", b"m2"])
        messages = await take(consumer, 3)
        assert payloads(messages) == [b"m0", b"m1", b"m2"]
        assert await nothing_comes(consumer)
        await asyncio.gather(*(message.ack() for message in messages))
    async with subscribed(service_url, topic, **settings) as (_, consumer):
        assert await nothing_comes(consumer, 1.0)


async def test_cancelled_receives_lose_nothing(service_url: str, topic: str, tmp_path: Path) -> None:
    """U2: receives cancelled at random moments, even while an attempt is recorded, lose none of 300 messages."""
    async with subscribed(service_url, topic, durable=tmp_path / "state") as (client, consumer):
        sending = asyncio.create_task(send(client, topic, numbered(300)))
        chance, seen = random.Random(7), list[Message]()
        while len(seen) < 300:
            call = asyncio.create_task(consumer.receive(timeout=patience(5)))
            await asyncio.wait([call], timeout=chance.random() * 0.004)
            if not call.done():
                call.cancel()
            try:
                seen.append(await call)
            except asyncio.CancelledError:
                continue
        await sending
        assert payloads(seen) == sorted(numbered(300))
        assert {message.attempt for message in seen} == {1}
        assert await nothing_comes(consumer)
        await asyncio.gather(*(message.ack() for message in seen))
        assert scenarios.all_given_back(consumer)


@pytest.mark.parametrize("index_acks", [True, False])
async def test_acked_members_stay_acked_over_reconnects(
    service_url: str,
    admin: Admin,
    broker_without_index_acks: Standalone,
    own_topic: str,
    tmp_path: Path,
    index_acks: bool,
) -> None:
    """U3: of a batch of 10 only the nacked member is redelivered, over two reconnects, a kill and two restarts."""
    topic, url = own_topic, service_url if index_acks else broker_without_index_acks.service_url
    its_admin = admin if index_acks else Admin(broker_without_index_acks.admin_url)
    settings = {"durable": tmp_path / "state", "batch_index_ack_enabled": index_acks}
    async with subscribed(url, topic, **settings) as (client, consumer):
        await send(client, topic, numbered(10), batched=True)
        for message in await take(consumer, 10):
            await (message.nack(4.0) if message.data == b"3" else message.ack())
        await unload(its_admin, topic)
        again = await consumer.receive(timeout=patience(5))
        assert (again.data, again.attempt) == (b"3", 2)
        await again.nack(2.0)
        assert await the_one(consumer) == (b"3", 3)
        await unload(its_admin, topic)
        assert await nothing_comes(consumer, 2.0)
        assert consumer.statistics().durable_acks == 1
    async with working(url, topic, tmp_path / "state", "nack:1") as worker:
        assert await worker.said(2) == ["3 4", "3 5"]
        worker.process.kill()
    async with subscribed(url, topic, **settings) as (_, consumer):
        message = await consumer.receive(timeout=patience(5))
        assert (message.data, message.attempt > 5) == (b"3", True)
        await message.ack()
        assert await nothing_comes(consumer, 1.0)
    assert await is_done(url, topic)


async def the_one(consumer: Consumer) -> tuple[bytes, int]:
    """Receive a message, and return its payload and attempt."""
    message = await consumer.receive(timeout=patience(5))
    return message.data, message.attempt


@pytest.mark.timeout(240)
async def test_a_broker_that_forgot_acks_gets_them_again(
    own_broker: Standalone, own_topic: str, tmp_path: Path
) -> None:
    """U10: acks that a killed broker lost, or missed while away for longer than ack_memory, are repeated."""
    url, topic, memory = own_broker.service_url, own_topic, patience(1)
    async with subscribed(url, topic, durable=tmp_path / "state", ack_memory=memory) as (client, consumer):
        await send(client, topic, numbered(40))
        messages = await take(consumer, 40)
        await asyncio.sleep(1.5)
        await asyncio.gather(*(message.ack() for message in messages[:20]))
        receiving = asyncio.create_task(consumer.receive(timeout=patience(30)))
        await asyncio.to_thread(own_broker.kill)
        acking = asyncio.gather(*(message.ack() for message in messages[20:30]))  # the native client waits for receipts
        await asyncio.sleep(memory)
        await asyncio.to_thread(own_broker.start)
        await acking
        for message in messages[30:]:
            await message.nack(3.0)
        again = [await receiving, *await take(consumer, 9, timeout=patience(15))]
        assert sorted(message.id for message in again) == sorted(message.id for message in messages[30:])
        assert await nothing_comes(consumer, 3.0)
        await asyncio.gather(*(message.ack() for message in again))
    assert await is_done(url, topic)


@pytest.mark.timeout(400)
async def test_acks_outlive_a_kill_of_both(own_broker: Standalone, own_topic: str, tmp_path: Path) -> None:
    """U10: consumer and broker are killed at once after 50 acks, which the broker had or had not: none is lost.

    The official client sends them every 100 ms, and sometimes just before the kill.
    """
    for turn in range(4):
        missing = await _kill_both(own_broker, f"{own_topic}-{turn}", tmp_path / f"state-{turn}")
        if is_over_wire() or missing == 50:
            return
    pytest.fail("the broker always had some of the acknowledgements")


async def _kill_both(broker: Standalone, topic: str, folder: Path) -> int:
    """Acknowledge 50 messages, kill both, and check that none comes back; return how many the broker did not know."""
    url = broker.service_url
    async with subscribed(url, topic) as (client, _):
        await send(client, topic, numbered(50))
    async with working(url, topic, folder, "ack:50") as worker:
        await worker.died()
        killed = Stopwatch()
        await asyncio.to_thread(broker.kill)
    await asyncio.to_thread(broker.start)
    memory = patience(1)
    await asyncio.sleep(max(memory + 0.5 - killed.seconds, 0.0))
    missing = await asyncio.to_thread(Admin(broker.admin_url).backlog, topic, "sub")
    async with subscribed(url, topic, durable=folder, ack_memory=memory) as (_, consumer):
        again: list[Message] = []
        async with asyncio.timeout(patience(20)):
            while True:
                if not await nothing_comes_to(consumer, again):
                    await again[-1].ack()
                elif is_over_wire() or consumer.statistics().acked_again >= missing:
                    break
        # the native client had all 50 confirmed: what comes is replayed, or the broker lost it, which looks the same
        assert is_over_wire() or (len(again), consumer.statistics().acked_again) == (0, missing)
    assert await is_done(url, topic)
    return missing


async def test_one_of_ack_and_nack_wins(service_url: str, topic: str, tmp_path: Path) -> None:
    """U20: ack and nack of 40 messages from two tasks each: one of them raises, and a restart agrees with the other."""
    settings = {"durable": tmp_path / "state"}
    acked: set[bytes] = set()
    async with subscribed(service_url, topic, **settings) as (client, consumer):
        await send(client, topic, numbered(40))
        for number, message in enumerate(await take(consumer, 40)):
            calls = [message.ack(), message.nack(3.0)]
            first, second = await asyncio.gather(*(calls if number % 2 else calls[::-1]), return_exceptions=True)
            ack, nack = (first, second) if number % 2 else (second, first)
            assert (ack is None) is not (nack is None)
            assert isinstance(ack or nack, AlreadySettledError)
            if ack is None:
                acked.add(message.data)
    assert 0 < len(acked) < 40
    async with subscribed(service_url, topic, **settings) as (_, consumer):
        again = await take(consumer, 40 - len(acked))
        assert {message.data for message in again} == set(numbered(40)) - acked
        await asyncio.gather(*(message.ack() for message in again))
        assert await nothing_comes(consumer, 1.0)
    assert await is_done(service_url, topic)


async def test_a_killed_consumer_leaves_its_nacks_to_the_other(service_url: str, topic: str, tmp_path: Path) -> None:
    """U21: of two durable consumers one is killed with pending nacks: the other gets them at once, none is lost."""
    async with official_client(service_url) as client, subscribing(client, service_url) as subscribe:
        async with working(service_url, topic, tmp_path / "one", "nack:60") as worker:
            await send(client, topic, numbered(15))
            await worker.said(15)
            other = await subscribe(topic, durable=tmp_path / "two")
            await send(client, topic, numbered(15, first=15))
            worker.process.kill()
        messages = await take(other, 30, timeout=patience(5))
        assert payloads(messages) == sorted(numbered(30))
        await asyncio.gather(*(message.ack() for message in messages))
        assert await nothing_comes(other)
    assert await is_done(service_url, topic)


async def nothing_comes_to(consumer: Consumer, received: list[Message]) -> bool:
    """Receive for a second; return whether nothing came."""
    try:
        received.append(await consumer.receive(timeout=1.0))
    except TimeoutError:
        return True
    return False


async def test_many_redeliveries_are_each_delivered_once(service_url: str, topic: str, tmp_path: Path) -> None:
    """U23: 300 messages nacked twice through the broker, with durable state, are delivered three times each."""
    settings = {"durable": tmp_path / "state", "redelivery": "broker"}
    async with subscribed(service_url, topic, **settings) as (client, consumer):
        await send(client, topic, numbered(300))
        seen: list[tuple[bytes, int]] = []
        for _ in range(900):
            message = await consumer.receive(timeout=patience(5))
            seen.append((message.data, message.attempt))
            await (message.nack(0.5) if message.attempt < 3 else message.ack())
        assert sorted(seen) == sorted((data, attempt) for data in numbered(300) for attempt in (1, 2, 3))
        assert await nothing_comes(consumer, 1.0)
        assert scenarios.all_given_back(consumer)
    assert await is_done(service_url, topic)


async def test_acked_after_it_was_asked_for(service_url: str, topic: str, tmp_path: Path) -> None:
    """U24: acknowledged between the request and the redelivery: acknowledged again and never delivered."""
    settings = {"durable": tmp_path / "state", "redelivery": "broker"}
    async with subscribed(service_url, topic, **settings) as (client, consumer):
        await send(client, topic, numbered(20))
        messages = await take(consumer, 20)
        await asyncio.gather(*(message.nack(1.0) for message in messages))
        async with asyncio.timeout(patience(5)):
            while consumer.statistics().requested < 20:
                await asyncio.sleep(0.001)
        await asyncio.gather(*(consumer.acknowledge(message.id) for message in messages))
        assert await nothing_comes(consumer, 1.0)
        assert scenarios.all_given_back(consumer)
    async with subscribed(service_url, topic, **settings) as (_, consumer):
        assert await nothing_comes(consumer, 1.0)


async def test_other_members_in_flight_are_left_alone(service_url: str, topic: str, tmp_path: Path) -> None:
    """U26: batch of 5, nack 0, ack 2: only 0 is redelivered; after a restart 0, 1, 3 and 4 are, and 2 never."""
    settings = {"durable": tmp_path / "state"}
    async with subscribed(service_url, topic, **settings) as (client, consumer):
        await send(client, topic, numbered(5), batched=True)
        messages = sorted(await take(consumer, 5), key=lambda message: message.id)
        assert [message.id.batch_index for message in messages] == [0, 1, 2, 3, 4]
        await messages[2].ack()
        await messages[0].nack(1.0)
        assert await the_one(consumer) == (messages[0].data, 2)
        assert await nothing_comes(consumer, 1.0)
    async with subscribed(service_url, topic, **settings) as (_, consumer):
        again = sorted(await take(consumer, 4), key=lambda message: message.id)
        assert [(message.id.batch_index, message.attempt) for message in again] == [(0, 3), (1, 2), (3, 2), (4, 2)]
        await asyncio.gather(*(message.ack() for message in again))
        assert await nothing_comes(consumer, 1.0)
    assert await is_done(service_url, topic)


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_an_administrators_reset_shows_everything(
    service_url: str, topic: str, admin: Admin, tmp_path: Path, is_restarted: bool
) -> None:
    """U32: after ack_memory an administrator's reset delivers all, also over a restart; ``seek`` does so at once."""
    began_ms = round(time.time() * 1000) - 5_000
    settings = {"durable": tmp_path / "state", "ack_memory": 1.0}
    async with subscribed(service_url, topic, **settings) as (client, consumer):
        await send(client, topic, numbered(12))
        await asyncio.gather(*(message.ack() for message in await take(consumer, 12)))
        if not is_restarted:
            await asyncio.sleep(1.5)
            await asyncio.to_thread(admin.reset_cursor, topic, "sub", began_ms)
            assert payloads(await take(consumer, 12, timeout=patience(5))) == sorted(numbered(12))
            assert consumer.statistics().replayed == 12
            await consumer.seek(MessageId(-1, -1))
            assert payloads(await take(consumer, 12, timeout=patience(5))) == sorted(numbered(12))
    if is_restarted:
        async with subscribed(service_url, topic, **settings) as (_, consumer):
            await asyncio.sleep(1.5)
            await asyncio.to_thread(admin.reset_cursor, topic, "sub", began_ms)
            assert payloads(await take(consumer, 12, timeout=patience(5))) == sorted(numbered(12))


async def test_receiving_pauses_while_the_state_is_full(
    service_url: str, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """K41: half acknowledged batches fill the state: new messages wait, one warning; completed, all 80 batches come."""
    settings = {"durable": tmp_path / "state", "max_ack_state_bytes": 4_096, "redelivery": "local"}
    async with subscribed(service_url, topic, **settings) as (client, consumer):
        for number in range(80):
            await send(client, topic, [b"%d a" % number, b"%d b" % number], batched=True)
        seen: list[bytes] = []
        left = await acknowledge_halves(consumer, seen)
        statistics = consumer.statistics()
        assert 5 < len(left) < 80
        assert (statistics.is_ack_state_full, statistics.times_gated, statistics.gated > 0) == (True, 1, True)
        assert 0 < statistics.durable_ack_bytes <= 4_096
        await left[0].nack(0.5)
        again = await consumer.receive(timeout=patience(5))
        assert (again.data, again.attempt) == (left[0].data, 2)
        left[0] = again
        while left:
            await asyncio.gather(*(message.ack() for message in left))
            left = await acknowledge_halves(consumer, seen)
        assert sorted(seen) == sorted(b"%d %s" % (number, name) for number in range(80) for name in (b"a", b"b"))
        assert not consumer.statistics().is_ack_state_full
        assert len([record for record in caplog.records if "acknowledgement state" in record.message]) == 1
    assert await is_done(service_url, topic)


async def acknowledge_halves(consumer: Consumer, seen: list[bytes]) -> list[Message]:
    """Acknowledge the first message of each batch until nothing comes for a second; return the others."""
    left: list[Message] = []
    received: list[Message] = []
    while not await nothing_comes_to(consumer, received):
        message = received.pop()
        seen.append(message.data)
        if message.id.batch_index == 0:
            await message.ack()
        else:
            left.append(message)
    return left
