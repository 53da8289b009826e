"""A topic's consumer over the broker's own protocol, against what a real broker does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_nack.errors import BrokerError, BrokerRefusedError
from pulsar_nack.ids import MessageId
from tests.broker._admin import Admin
from tests.broker._answer_time import leniency
from tests.broker.standalone import Standalone
from tests.broker.wire_topic import SUBSCRIPTION, publish, publish_batch, publish_chunks, wire
from tests.wire.consuming import Arrived


def numbered(count: int) -> list[bytes]:
    """Return so many payloads."""
    return [b"%d" % number for number in range(count)]


def permits(admin: Admin, topic: str) -> int:
    """Return how many messages the broker may send the subscription's only consumer."""
    (consumer,) = admin.subscription(topic, SUBSCRIPTION)["consumers"]
    return int(consumer["availablePermits"])


async def test_receives_and_acknowledges(service_url: str, admin: Admin, topic: str) -> None:
    """Messages arrive in order, and what is acknowledged is so at the broker when the call returns."""
    arrived = Arrived()
    async with wire(service_url, topic) as made:
        consumer = await made.open(arrived)
        await publish(service_url, topic, numbered(100))
        deliveries = await arrived.take(100)
        assert [delivery.data for delivery in deliveries] == numbered(100)
        await consumer.acknowledge([delivery.id for delivery in deliveries[:60]])
        assert await asyncio.to_thread(admin.backlog, topic, SUBSCRIPTION) == 40


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
async def test_permits_agree_with_the_broker(service_url: str, admin: Admin, topic: str, kind: Any) -> None:
    """What the broker may send is the same by its own count and by ours, with batches that are acknowledged in part."""
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
            assert await asyncio.to_thread(permits, admin, topic) == consumer.queue.permits.out
        assert len(arrived) == 0


@pytest.mark.alone
async def test_chosen_entries_come_again_at_once(service_url: str, topic: str) -> None:
    """Named entries come again within some ms, the others do not."""
    arrived = Arrived()
    async with wire(service_url, topic) as made:
        consumer = await made.open(arrived)
        await publish(service_url, topic, numbered(20))
        ids = [delivery.id for delivery in await arrived.take(20)]
        took = []
        for count in range(1, 11):
            began = time.monotonic()
            consumer.redeliver_nowait([ids[3], ids[11]])
            again = await arrived.take(2)
            took.append(time.monotonic() - began)
            assert {delivery.id for delivery in again} == {ids[3], ids[11]}
            assert {delivery.redelivery_count for delivery in again} == {count}
        print(f"redeliver to arrival: median {sorted(took)[5] * 1000:.2f} ms")
        assert sorted(took)[5] < 0.1 * leniency()
        await asyncio.sleep(0.2)
        assert len(arrived) == 0


@pytest.mark.both_lines
async def test_batch_members(service_url: str, admin: Admin, topic: str) -> None:
    """Acknowledged members of a batch do not come again, also at another consumer; with the last one all is done."""
    arrived, others = Arrived(), Arrived()
    async with wire(service_url, topic) as made:
        consumer = await made.open(arrived)
        await publish_batch(service_url, topic, numbered(10))
        ids = [delivery.id for delivery in await arrived.take(10)]
        await consumer.acknowledge(ids[:7])
        consumer.redeliver_nowait(ids[7:8])
        again = await arrived.take(3)
        assert [delivery.id for delivery in again] == ids[7:]
        await consumer.aclose()
        other = await made.open(others)
        rest = await others.take(3)
        assert [delivery.id for delivery in rest] == ids[7:]
        await other.acknowledge(ids[7:])
        assert await asyncio.to_thread(admin.backlog, topic, SUBSCRIPTION) == 0


async def test_batches_at_a_broker_without_index_acks(
    broker_without_index_acks: Standalone, make_topic_there: str
) -> None:
    """A broker that does not keep indexes hears of the whole entry once all its members are acknowledged."""
    broker, topic = broker_without_index_acks, make_topic_there
    admin, arrived = Admin(broker.admin_url), Arrived()
    async with wire(broker.service_url, topic) as made:
        consumer = await made.open(arrived)
        await publish_batch(broker.service_url, topic, numbered(10))
        ids = [delivery.id for delivery in await arrived.take(10)]
        await consumer.acknowledge(ids[:7])
        consumer.redeliver_nowait(ids[7:8])
        assert [delivery.id for delivery in await arrived.take(10)] == ids
        await consumer.acknowledge(ids[7:])
        assert await asyncio.to_thread(admin.backlog, topic, SUBSCRIPTION) == 0


async def test_cumulative_acks_in_a_batch_without_index_acks(
    broker_without_index_acks: Standalone, make_topic_there: str
) -> None:
    """There nothing of the batch is acknowledged cumulatively before its last message is."""
    broker, topic = broker_without_index_acks, make_topic_there
    admin, arrived = Admin(broker.admin_url), Arrived()
    async with wire(broker.service_url, topic) as made:
        consumer = await made.open(arrived, type="exclusive")
        await publish(broker.service_url, topic, numbered(2))
        await publish_batch(broker.service_url, topic, numbered(10))
        ids = [delivery.id for delivery in await arrived.take(12)]
        await consumer.acknowledge_cumulative(ids[6])
        again = Arrived()
        await consumer.aclose()
        consumer = await made.open(again, type="exclusive")
        assert [delivery.id for delivery in await again.take(10)] == ids[2:]
        await consumer.acknowledge_cumulative(ids[11])
        assert await asyncio.to_thread(admin.backlog, topic, SUBSCRIPTION) == 0


async def test_cumulative_acks_in_a_batch(service_url: str, admin: Admin, topic: str) -> None:
    """Everything before a member and the member are acknowledged, the rest of the batch is not."""
    arrived, again = Arrived(), Arrived()
    async with wire(service_url, topic) as made:
        consumer = await made.open(arrived, type="exclusive")
        await publish(service_url, topic, numbered(2))
        await publish_batch(service_url, topic, numbered(10))
        ids = [delivery.id for delivery in await arrived.take(12)]
        await consumer.acknowledge_cumulative(ids[6])
        await consumer.aclose()
        consumer = await made.open(again, type="exclusive")
        assert [delivery.id for delivery in await again.take(5)] == ids[7:]
        await consumer.acknowledge_cumulative(ids[11])
        assert await asyncio.to_thread(admin.backlog, topic, SUBSCRIPTION) == 0


@pytest.mark.parametrize("kind", ["exclusive", "failover"])
async def test_a_rewind_brings_each_once(service_url: str, topic: str, kind: Any) -> None:
    """Under load a rewind brings all that is unacknowledged once, in order, also over the next connection."""
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
    """The message that was sought is the next, by id and by time; in a batch too; acknowledgements are forgotten."""
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
async def test_an_administrator_resets_the_cursor(service_url: str, admin: Admin, topic: str) -> None:
    """When the subscription is moved from outside the consumer subscribes again, and all comes anew."""
    arrived = Arrived()
    async with wire(service_url, topic) as made:
        consumer = await made.open(arrived)
        await publish_batch(service_url, topic, numbered(5))
        ids = [delivery.id for delivery in await arrived.take(5)]
        await consumer.acknowledge(ids[:4])
        await asyncio.to_thread(admin.reset_cursor, topic, SUBSCRIPTION, 0)
        assert [delivery.id for delivery in await arrived.take(5)] == ids
        await consumer.acknowledge(ids[4:])
        assert await asyncio.to_thread(admin.backlog, topic, SUBSCRIPTION) > 0
        await consumer.acknowledge(ids[:4])
        assert await asyncio.to_thread(admin.backlog, topic, SUBSCRIPTION) == 0


@pytest.mark.both_lines
async def test_a_topic_is_unloaded(service_url: str, admin: Admin, topic: str) -> None:
    """While a topic moves, acknowledgements wait and are confirmed afterwards; what is unacknowledged comes again."""
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
        # the broker may forget what it confirms in the moment in which it closes the topic
        assert 50 <= await asyncio.to_thread(admin.backlog, topic, SUBSCRIPTION) <= 55


async def test_failover(service_url: str, partitioned_topic: Callable[[int], str]) -> None:
    """The first by name is active on a partition (on others, their hash decides); then the other."""
    topic = f"{partitioned_topic(1)}-partition-0"
    arrived, others = Arrived(), Arrived()
    async with wire(service_url, topic) as made:
        other = await made.open(others, type="failover", consumer_name="b")
        await publish(service_url, topic, numbered(10))
        taken = await others.take(3)
        await other.acknowledge([delivery.id for delivery in taken[:2]])
        first = await made.open(arrived, type="failover", consumer_name="a")
        assert [delivery.data for delivery in await arrived.take(8)] == numbered(10)[2:]
        assert (first.is_active, other.is_active) == (True, False)
        assert len(others) == 0
        await first.aclose()
        assert [delivery.data for delivery in await others.take(8)] == numbered(10)[2:]
        assert other.is_active


async def test_a_terminated_topic(service_url: str, admin: Admin, topic: str) -> None:
    """The end of a terminated topic is told once all of it was delivered and acknowledged."""
    arrived = Arrived()
    async with wire(service_url, topic) as made:
        consumer = await made.open(arrived)
        await publish(service_url, topic, numbered(3))
        await asyncio.to_thread(admin.request, "POST", _admin_path(topic) + "/terminate")
        await consumer.acknowledge([delivery.id for delivery in await arrived.take(3)])
        async with asyncio.timeout(10):
            while not consumer.has_ended:
                await asyncio.sleep(0.01)


async def test_unsubscribe_and_last_id(service_url: str, admin: Admin, topic: str) -> None:
    """The subscription is gone when the call returns; while others consume the broker refuses."""
    arrived = Arrived()
    async with wire(service_url, topic) as made:
        consumer = await made.open(arrived)
        other = await made.open(arrived)
        assert (await consumer.last_message_id()).entry == -1
        await publish_batch(service_url, topic, numbered(4))
        *_, last = await arrived.take(4)
        assert await consumer.last_message_id() == last.id
        with pytest.raises(BrokerRefusedError):
            await consumer.unsubscribe()
        await other.aclose()
        await consumer.unsubscribe()
        assert (await asyncio.to_thread(admin.stats, topic))["subscriptions"] == {}


async def test_exclusive_is_taken(service_url: str, topic: str) -> None:
    """A second consumer of an Exclusive subscription is refused with the broker's words."""
    async with wire(service_url, topic) as made:
        await made.open(Arrived(), type="exclusive")
        with pytest.raises(BrokerRefusedError, match="ConsumerBusy"):
            await made.open(Arrived(), type="exclusive")


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
async def test_chunked_messages(service_url: str, admin: Admin, topic: str, kind: Any) -> None:
    """A message in chunks arrives whole, comes again whole, and is acknowledged with all its parts."""
    arrived = Arrived()
    large = bytes(range(250)) * 10
    async with wire(service_url, topic) as made:
        consumer = await made.open(arrived, type=kind, receiver_queue_size=3)
        await publish(service_url, topic, [b"a"])
        await publish_chunks(made.context, topic, large, 1_000)
        await publish(service_url, topic, [b"b"])
        deliveries = await arrived.take(3)
        assert [delivery.data for delivery in deliveries] == [b"a", large, b"b"]
        whole = deliveries[1].id
        assert len(whole.parts) == 3
        consumer.redeliver_nowait([whole])
        await asyncio.sleep(0.5)
        again = await arrived.take(1 if kind == "shared" else 3)
        assert large in [delivery.data for delivery in again]
        await consumer.acknowledge([delivery.id for delivery in deliveries])
        assert await asyncio.to_thread(admin.backlog, topic, SUBSCRIPTION) == 0


async def test_not_durable(service_url: str, topic: str) -> None:
    """A subscription that is not durable begins after the message that it was given, in a batch too."""
    arrived, later = Arrived(), Arrived()
    async with wire(service_url, topic) as made:
        await made.open(arrived)
        await publish(service_url, topic, numbered(2))
        await publish_batch(service_url, topic, numbered(5))
        ids = [delivery.id for delivery in await arrived.take(7)]
        options: dict[str, Any] = {"type": "exclusive", "durable": False}
        for start in (0, 1, 3, 5):
            wire_reader = make_reader(made, later, start_message_id=ids[start], **options)
            await wire_reader.open()
            assert [each.id for each in await later.take(6 - start)] == ids[start + 1 :]
            await wire_reader.seek(ids[start])
            assert [each.id for each in await later.take(7 - start)] == ids[start:]
            await wire_reader.aclose()


def make_reader(made: Any, arrived: Arrived, **options: Any) -> Any:
    """Return a consumer of another subscription that is not open."""
    from pulsar_nack.wire._consumer._subscribe_options import SubscribeOptions
    from pulsar_nack.wire._consumer._topic_consumer import TopicConsumer

    consumer = TopicConsumer(made.context, made.topic, SubscribeOptions("reader", **options), arrived.put)
    made.consumers.append(consumer)
    return consumer


async def test_cumulative_on_shared(service_url: str, topic: str) -> None:
    """On a Shared subscription nothing is acknowledged cumulatively."""
    async with wire(service_url, topic) as made:
        consumer = await made.open(Arrived())
        with pytest.raises(BrokerError):
            await consumer.acknowledge_cumulative(MessageId(1, 1))


def _admin_path(topic: str) -> str:
    return "persistent/" + topic.removeprefix("persistent://")


@pytest.fixture
def make_topic_there(broker_without_index_acks: Standalone, make_name: Callable[[], str]) -> str:
    """A topic at the broker without index acks."""
    return make_name()


@pytest.fixture
def make_name(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Names of topics that nobody else has."""
    return lambda: f"persistent://public/default/{request.node.name}-{time.time_ns()}"
