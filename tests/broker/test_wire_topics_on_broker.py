"""Native consumers of many topics on a real broker: topics that appear and disappear, and to which topic ids belong."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import pulsar_nack
from pulsar_nack import BrokerError, Consumer, MessageId
from pulsar_nack.errors import BrokerRefusedError, UndecodableMessageError
from pulsar_nack.wire import Client
from pulsar_nack.wire._connection._handlers import Handler
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from tests.broker._admin import Admin
from tests.consumer.official import EXACT, nothing_comes, numbered, payloads, take
from tests.patience import patience
from tests.wire.frames import encode_message


@pytest.fixture
async def client(service_url: str) -> AsyncIterator[Client]:
    """A native client."""
    async with pulsar_nack.connect(service_url) as native:
        yield native


async def produce(client: Client, topic: str, messages: list[bytes], **options: Any) -> list[MessageId]:
    """Send messages, each as a separate entry."""
    async with client.producer(topic) as producer:
        return [await producer.send(message, **options) for message in messages]


async def grow(admin: Admin, topic: str, count: int) -> None:
    """Add partitions to a topic."""
    name = topic.removeprefix("persistent://public/default/")
    await asyncio.to_thread(admin.request, "POST", f"persistent/public/default/{name}/partitions", count)


async def test_new_partitions_join(client: Client, admin: Admin, partitioned_topic: Callable[[int], str]) -> None:
    """A new partition is consumed within the interval, from its first message on."""
    topic = partitioned_topic(2)
    async with client.subscribe(topic, "sub", discovery_interval=0.5) as consumer:
        await grow(admin, topic, 4)
        sent = await produce(client, f"{topic}-partition-3", [b"new"])
        message = await consumer.receive(timeout=patience(4))
        assert (message.data, message.id, message.id.partition) == (b"new", sent[0], 3)
        await message.ack()
        await produce(client, topic, numbered(20))
        messages = await take(consumer, 20)
        assert payloads(messages) == sorted(numbered(20))
        assert len({each.id.partition for each in messages}) == 4
        for each in messages:
            await each.ack()
    async with client.subscribe(topic, "sub") as after:
        assert await nothing_comes(after)


async def test_topics_of_a_pattern_come_and_go(client: Client, admin: Admin, topic: str) -> None:
    """O9: matching topics join when they are created; a deleted one leaves, and is not created again."""
    first, second = f"{topic}-a", f"{topic}-b"
    await produce(client, first, [b"before"])
    async with client.subscribe(re.compile(f"{re.escape(topic)}-.*"), "sub", discovery_interval=0.5) as consumer:
        await produce(client, first, [b"a"])
        message = await consumer.receive(timeout=patience(4))
        assert (message.data, message.topic) == (b"a", first)
        await message.ack()
        await produce(client, second, [b"b"])
        message = await consumer.receive(timeout=patience(4))
        assert (message.data, message.topic) == (b"b", second)
        await message.ack()
        await asyncio.to_thread(admin.delete, first)
        await has_left(consumer, first)
        await asyncio.sleep(1)  # two more looks for it
        assert first not in await client.topics()
        assert second in await client.topics()
        await produce(client, second, [b"b2"])
        await (await consumer.receive(timeout=patience(4))).ack()
    await asyncio.to_thread(admin.delete, second)


async def has_left(consumer: Consumer, topic: str) -> None:
    """Wait until a topic is no longer consumed."""
    async with asyncio.timeout(patience(5)):
        while topic in {member.topic for member in consumer.port._consumers}:
            await asyncio.sleep(0.05)


@pytest.mark.both_lines
async def test_topics_of_a_pattern_are_announced(client: Client, admin: Admin, topic: str) -> None:
    """The broker announces topics, partitioned ones too, when they are created and deleted, without polling."""
    first, second, parted = f"{topic}-a", f"{topic}-b", f"{topic}-p"
    await produce(client, first, [b"before"])
    pattern = re.compile(f"{re.escape(topic)}-.*")
    async with client.subscribe(pattern, "sub", discovery_interval=3600) as consumer:
        assert len(consumer.port._consumers) == 1
        await asyncio.sleep(1)
        for name in (second, parted):
            if name == parted:
                await asyncio.to_thread(admin.create_partitions, parted, 3)
            began_at = time.monotonic()
            await produce(client, name, numbered(9))
            messages = await take(consumer, 9, timeout=patience(3))
            print(f"{name}: {time.monotonic() - began_at:.3f} s")
            assert payloads(messages) == sorted(numbered(9))
            for message in messages:
                await message.ack()
        await asyncio.to_thread(admin.delete, first)
        await has_left(consumer, first)
    await asyncio.to_thread(admin.delete, second)
    await asyncio.to_thread(admin.delete, parted, partitioned=True)


async def test_ids_belong_to_their_topics(client: Client, partitioned_topic: Callable[[int], str], topic: str) -> None:
    """On partitions and another topic ids find their topics, to acknowledge and to request, by number and topic."""
    parted = partitioned_topic(3)
    async with client.subscribe([parted, topic], "sub", redelivery="broker", config=EXACT) as consumer:
        await produce(client, parted, numbered(9))
        await produce(client, topic, numbered(3, 9))
        for message in await take(consumer, 12):
            await consumer.negative_acknowledge(MessageId.from_bytes(message.id.to_bytes(), message.topic), 0.2)
        again = await take(consumer, 12)
        assert payloads(again) == sorted(numbered(12))
        for message in again:
            await consumer.port.acknowledge([MessageId.from_bytes(message.id.to_bytes(), message.topic)])
    async with client.subscribe([parted, topic], "sub") as after:
        assert await nothing_comes(after)


async def test_seeking_and_looking(client: Client, partitioned_topic: Callable[[int], str]) -> None:
    """A seek by message moves its partition, by time or to the earliest all; the last ids are those that were sent."""
    topic = partitioned_topic(2)
    async with client.subscribe(topic, "sub") as consumer:
        sent = await produce(client, topic, numbered(6))
        await asyncio.sleep(0.2)
        middle_ms = round(time.time() * 1000)
        await asyncio.sleep(0.2)
        later = await produce(client, topic, numbered(6, 10))
        for message in await take(consumer, 12):
            await message.ack()
        last = {message_id.partition: message_id for message_id in await consumer.port.last_message_ids()}
        assert last == {partition: max(each for each in later if each.partition == partition) for partition in (0, 1)}
        await consumer.seek(middle_ms)
        messages = await take(consumer, 6)
        assert sorted(message.id for message in messages) == sorted(later)
        for message in messages:
            await message.ack()
        assert await nothing_comes(consumer)
        target = min(each for each in sent if each.partition == 1)
        await consumer.seek(target)
        of_one = sorted(each for each in [*sent, *later] if each.partition == 1)
        messages = await take(consumer, len(of_one))
        assert sorted(message.id for message in messages) == of_one
        for message in messages:
            await message.ack()
        await consumer.seek(MessageId(-1, -1))
        messages = await take(consumer, 12)
        assert sorted(message.id for message in messages) == sorted([*sent, *later])
        for message in messages:
            await message.ack()
        assert await nothing_comes(consumer)


async def test_refusals_have_the_words_of_the_broker(client: Client, topic: str) -> None:
    """U22: a refusal is raised with the broker's words, topic and subscription, and leaves no consumer."""
    async with client.subscribe(topic, "sub", consumer_type="exclusive"):
        with pytest.raises(BrokerRefusedError, match=f"subscribing to {topic} as 'sub': .*Exclusive") as caught:
            await client.subscribe(topic, "sub", consumer_type="exclusive")
        assert caught.value.code == "ConsumerBusy"
    with pytest.raises(BrokerError, match="no-such-tenant"):
        await client.subscribe("persistent://no-such-tenant/space/topic", "sub")


async def test_unsubscribing(client: Client, admin: Admin, partitioned_topic: Callable[[int], str]) -> None:
    """Afterwards the broker does not know the subscription; it refuses while the subscription has other consumers."""
    topic = partitioned_topic(2)
    consumer = await client.subscribe(topic, "sub")
    other = await client.subscribe(topic, "sub")
    with pytest.raises(BrokerError):
        await consumer.port.unsubscribe()
    await other.aclose()
    await consumer.port.unsubscribe()
    await consumer.aclose()
    stats = await asyncio.to_thread(admin.stats, f"{topic}-partition-0")
    assert stats["subscriptions"] == {}


@pytest.mark.both_lines
async def test_a_failover_consumer_hands_over(client: Client, partitioned_topic: Callable[[int], str]) -> None:
    """U31: on Failover the consumer that takes over gets what the other holds; the other drops it."""
    topic = partitioned_topic(1)
    settings: dict[str, Any] = {"consumer_type": "failover", "config": EXACT}
    async with client.subscribe(topic, "sub", consumer_name="b", **settings) as first:
        await produce(client, topic, numbered(5))
        messages = await take(first, 5)
        await messages[0].ack()
        for message in messages[1:4]:
            await message.nack(delay=3)
        async with client.subscribe(topic, "sub", consumer_name="a", **settings) as second:
            handed_over = await take(second, 4)
            assert payloads(handed_over) == numbered(4, 1)
            for message in handed_over:
                await message.ack()
            assert await nothing_comes(first, 4.0)
            assert first.statistics().held == 0
            assert await nothing_comes(second)


async def test_what_cannot_be_read_stops_nothing(client: Client, topic: str) -> None:
    """An encrypted message is delivered with its error between the others, and can be acknowledged."""
    async with client.subscribe(topic, "sub") as consumer:
        await produce(client, topic, [b"0"])
        await send_encrypted(client, topic)
        await produce(client, topic, [b"2"])
        first, second, third = await take(consumer, 3)
        assert (first.data, third.data) == (b"0", b"2")
        assert isinstance(second.error, UndecodableMessageError)
        with pytest.raises(UndecodableMessageError, match="encrypted"):
            assert second.data
        await second.nack(delay=0.1)
        again = await consumer.receive(timeout=patience(3))
        assert again.attempt == 2
        for message in (first, again, third):
            await message.ack()
    async with client.subscribe(topic, "sub") as after:
        assert await nothing_comes(after)


async def send_encrypted(client: Client, topic: str) -> None:
    """Send a message that claims to be encrypted."""
    connection = await client._open_context().broker(topic)
    receipt: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    class Events(Handler):
        def on_receipt(self, command: Any) -> None:
            receipt.set_result(None)

        def on_send_error(self, command: Any) -> None:
            receipt.set_exception(BrokerError(command.message))

    request_id, producer_id = connection.request_id(), next(connection.handler_ids)
    asked = pb.BaseCommand(type=pb.BaseCommand.PRODUCER)
    asked.producer.topic, asked.producer.producer_id, asked.producer.request_id = topic, producer_id, request_id
    connection.producers[producer_id] = Events()
    name = (await connection.request(asked, request_id)).producer_success.producer_name
    sending = pb.BaseCommand(type=pb.BaseCommand.SEND)
    sending.send.producer_id, sending.send.sequence_id = producer_id, 0
    metadata = pb.MessageMetadata(producer_name=name, sequence_id=0, publish_time=1, encryption_algo="RSA/AES")
    metadata.encryption_keys.add(key="key", value=b"secret")
    connection.send(encode_message(sending, metadata, b"nobody can read this"))
    await receipt
    request_id = connection.request_id()
    closing = pb.BaseCommand(type=pb.BaseCommand.CLOSE_PRODUCER)
    closing.close_producer.producer_id, closing.close_producer.request_id = producer_id, request_id
    await connection.request(closing, request_id)
    del connection.producers[producer_id]
