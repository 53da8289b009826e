"""The wire consumer of one topic, without a Consumer above it, against a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest

from pulsar_nack.ids import MessageId
from tests.broker._admin import Admin
from tests.broker.standalone import Standalone
from tests.broker.wire_topic import SUBSCRIPTION, publish, publish_batch, wire
from tests.patience import patience
from tests.wire.consuming import Arrived


def numbered(count: int) -> list[bytes]:
    """Return ``count`` payloads."""
    return [b"%d" % number for number in range(count)]


def permits(admin: Admin, topic: str) -> int:
    """Return how many messages the broker may send to the subscription's only consumer."""
    (consumer,) = admin.subscription(topic, SUBSCRIPTION)["consumers"]
    return int(consumer["availablePermits"])


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
async def test_permits_agree_with_the_broker(service_url: str, admin: Admin, topic: str, kind: Any) -> None:
    """The broker counts as many permits as we do, with batches that are acknowledged in part."""
    arrived = Arrived()
    async with wire(service_url, topic) as made:
        consumer = await made.open(arrived, type=kind, receiver_queue_size=100)
        for _ in range(3):
            await publish_batch(service_url, topic, numbered(10))
        await publish(service_url, topic, numbered(7))
        ids = [delivery.id for delivery in await arrived.take(37)]
        assert {each.batch_size for each in ids[:30]} == {10}
        assert await asyncio.to_thread(permits, admin, topic) == consumer.queue.permits.out == 63
        await consumer.acknowledge([each for each in ids if each.batch_index in {1, 2, 7}])
        for _ in range(3):
            consumer.redeliver_nowait(ids)
            await asyncio.sleep(0.5)
            left = 37 - 9
            assert len(await arrived.take(left)) == left
            with contextlib.suppress(TimeoutError):  # the broker may not have processed the last FLOW yet
                async with asyncio.timeout(patience(5)):
                    while await asyncio.to_thread(permits, admin, topic) != consumer.queue.permits.out:
                        await asyncio.sleep(0.05)
            assert await asyncio.to_thread(permits, admin, topic) == consumer.queue.permits.out
        assert len(arrived) == 0


@pytest.mark.parametrize("index_acks", [True, False])
async def test_cumulative_acks_in_a_batch(
    service_url: str, admin: Admin, broker_without_index_acks: Standalone, own_topic: str, index_acks: bool
) -> None:
    """Messages before a member, and the member if the broker keeps indexes, are acknowledged; with the last one all."""
    url = service_url if index_acks else broker_without_index_acks.service_url
    its_admin = admin if index_acks else Admin(broker_without_index_acks.admin_url)
    arrived, again = Arrived(), Arrived()
    async with wire(url, own_topic) as made:
        consumer = await made.open(arrived, type="exclusive")
        await publish(url, own_topic, numbered(2))
        await publish_batch(url, own_topic, numbered(10))
        ids = [delivery.id for delivery in await arrived.take(12)]
        await consumer.acknowledge_cumulative(ids[6])
        await consumer.aclose()
        consumer = await made.open(again, type="exclusive")
        left = ids[7:] if index_acks else ids[2:]
        assert [delivery.id for delivery in await again.take(len(left))] == left
        await consumer.acknowledge_cumulative(ids[11])
        assert await asyncio.to_thread(its_admin.backlog, own_topic, SUBSCRIPTION) == 0


async def test_a_cumulative_ack_in_the_first_batch_of_a_ledger(service_url: str, admin: Admin, topic: str) -> None:
    """Without batch index acknowledgement it acknowledges the ledgers before that one."""
    arrived, again = Arrived(), Arrived()
    async with wire(service_url, topic) as made:
        consumer = await made.open(arrived, type="exclusive", batch_index_ack=False)
        await publish(service_url, topic, numbered(2))
        assert len(await arrived.take(2)) == 2
        await asyncio.to_thread(admin.unload, topic)  # the next message goes into a new ledger
        await publish_batch(service_url, topic, numbered(10))
        ids = [delivery.id for delivery in await arrived.take(12)][2:]
        assert {each.entry for each in ids} == {0}
        await consumer.acknowledge_cumulative(ids[6])
        await consumer.aclose()
        consumer = await made.open(again, type="exclusive", batch_index_ack=False)
        assert [delivery.id for delivery in await again.take(10)] == ids


@pytest.mark.parametrize("kind", ["exclusive", "failover"])
async def test_a_rewind_brings_each_once(service_url: str, topic: str, kind: Any) -> None:
    """Under load a rewind delivers all unacknowledged messages once, in order, also over the next connection."""
    arrived = Arrived()
    async with wire(service_url, topic) as made:
        consumer = await made.open(arrived, type=kind, receiver_queue_size=50)
        await publish(service_url, topic, numbered(400), batching_enabled=True)
        first = await arrived.take(30)
        await consumer.acknowledge([delivery.id for delivery in first[:10]])
        for _ in range(5):
            consumer.redeliver_nowait([first[10].id])
            await asyncio.sleep(0.01)
            seen = await arrived.take(60)
            assert [delivery.data for delivery in seen] == numbered(400)[10:70]
        made.context.pool.connections()[0].close(OSError("a test wants it"))
        seen = await arrived.take(60)
        assert [delivery.data for delivery in seen] == numbered(400)[10:70]
        consumer.redeliver_nowait([first[10].id])
        await asyncio.sleep(0.01)
        rest = await arrived.take(390)
        assert [delivery.data for delivery in rest] == numbered(400)[10:]


@pytest.mark.both_lines
async def test_seek(service_url: str, admin: Admin, topic: str) -> None:
    """The next message is the one sought, by id and by time; in a batch too; acknowledgements are forgotten."""
    arrived = Arrived()
    async with wire(service_url, topic) as made:
        consumer = await made.open(arrived)
        await publish(service_url, topic, numbered(5))
        await asyncio.sleep(0.05)
        at_ms = int(time.time() * 1000)
        await asyncio.sleep(0.05)
        await publish_batch(service_url, topic, numbered(10))
        ids = [delivery.id for delivery in await arrived.take(15)]
        await consumer.acknowledge(ids)
        await consumer.seek(ids[2])
        assert [delivery.id for delivery in await arrived.take(13)] == ids[2:]
        await consumer.acknowledge(ids[2:])
        await consumer.seek(at_ms)
        assert [delivery.id for delivery in await arrived.take(10)] == ids[5:]
        await consumer.seek(ids[9])
        assert [delivery.id for delivery in await arrived.take(6)] == ids[9:]
        await consumer.acknowledge(ids[9:])
        assert await asyncio.to_thread(admin.backlog, topic, SUBSCRIPTION) == 0
        await consumer.seek(MessageId(-1, -1))
        assert [delivery.id for delivery in await arrived.take(15)] == ids
        await consumer.seek(MessageId(2**63 - 1, 2**63 - 1))
        await asyncio.sleep(0.3)
        assert len(arrived) == 0
        assert await consumer.last_message_id() == ids[-1]


@pytest.mark.both_lines
async def test_a_topic_is_unloaded(service_url: str, admin: Admin, topic: str) -> None:
    """While a topic moves, acknowledgements wait and are confirmed afterwards; unacknowledged messages come again."""
    arrived = Arrived()
    async with wire(service_url, topic) as made:
        consumer = await made.open(arrived)
        await publish(service_url, topic, numbered(100))
        ids = [delivery.id for delivery in await arrived.take(100)]
        unloading = asyncio.create_task(asyncio.to_thread(admin.request, "PUT", _admin_path(topic) + "/unload"))
        for each in ids[:50]:
            await consumer.acknowledge([each])
            await asyncio.sleep(0.002)
        await unloading
        await asyncio.sleep(1)
        again = arrived.take_nowait()
        assert {delivery.id for delivery in again} >= set(ids[50:])
        assert consumer.sessions.subscribed_times == 2
        # the broker may forget what it confirms while it closes the topic
        assert 50 <= await asyncio.to_thread(admin.backlog, topic, SUBSCRIPTION) <= 55


async def test_a_terminated_topic(service_url: str, admin: Admin, topic: str) -> None:
    """The end of a terminated topic is reported once all its messages were delivered and acknowledged."""
    arrived = Arrived()
    async with wire(service_url, topic) as made:
        consumer = await made.open(arrived)
        await publish(service_url, topic, numbered(3))
        await asyncio.to_thread(admin.request, "POST", _admin_path(topic) + "/terminate")
        await consumer.acknowledge([delivery.id for delivery in await arrived.take(3)])
        async with asyncio.timeout(patience(5)):
            while not consumer.has_ended:
                await asyncio.sleep(0.01)


def _admin_path(topic: str) -> str:
    return "persistent/" + topic.removeprefix("persistent://")
