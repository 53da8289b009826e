"""The native consumer's calls for the end of its topics, for all messages at once, and for a forced unsubscribe."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pulsar_nack import BrokerError, ClosedError, Consumer, MessageId
from pulsar_nack.errors import BrokerRefusedError
from pulsar_nack.testing import virtual_time
from tests.for_each import for_each
from tests.wire.fake_broker import FakeBroker, refuse
from tests.wire.using import BASE, EARLIEST, LATEST, TOPIC, TYPES, broker_with, publish, received, subscribed, take

OTHER = f"{BASE}other"


def places(ids: list[MessageId]) -> list[tuple[str | None, int, int, int]]:
    """Return topic, partition, entry and batch index of each id."""
    return sorted((each.topic, each.partition, each.entry, each.batch_index) for each in ids)


@virtual_time
async def test_the_last_ids_of_topics_and_partitions() -> None:
    """There is one for each topic and partition: a message's, a batch's last member's, or one with entry -1."""
    broker = FakeBroker()
    broker.partitions[TOPIC] = 2
    broker.topic(f"{TOPIC}-partition-0").publish(b"0")
    broker.topic(f"{TOPIC}-partition-0").publish_batch([b"1", b"2", b"3"])
    broker.topic(OTHER).publish(b"4")
    async with subscribed(broker, [TOPIC, OTHER]) as consumer:
        assert places(await consumer.last_message_ids()) == [
            (OTHER, -1, 0, -1),
            (f"{TOPIC}-partition-0", 0, 1, 2),
            (f"{TOPIC}-partition-1", 1, -1, -1),
        ]
        with pytest.raises(BrokerError, match=r"there are 3 topics or partitions: use last_message_ids\(\)"):
            await consumer.get_last_message_id()
        assert sorted(await received(consumer, seconds=1)) == [b"0", b"1", b"2", b"3", b"4"]
    async with subscribed(broker, [OTHER]) as consumer:
        last = await consumer.get_last_message_id()
        assert places([last]) == [(OTHER, -1, 0, -1)]
        broker.next("GET_LAST_MESSAGE_ID", refuse("MetadataError"))
        with pytest.raises(BrokerRefusedError, match="MetadataError"):
            await consumer.last_message_ids()
    with pytest.raises(ClosedError):
        await consumer.last_message_ids()


@virtual_time
async def test_what_is_available() -> None:
    """True until the last message of each topic was received, also for batches and while others publish."""
    broker = FakeBroker()
    broker.partitions[TOPIC] = 2
    async with subscribed(broker, [TOPIC, OTHER]) as consumer:
        assert not await consumer.has_message_available()
        for name in (f"{TOPIC}-partition-1", OTHER):
            broker.topic(name).publish(b"0")
            broker.topic(name).publish_batch([b"1", b"2"])
            for left in (2, 1, 0):
                assert await consumer.has_message_available()
                message = await consumer.receive(timeout=1)
                if left:
                    await message.ack()
            assert not await consumer.has_message_available(), "the last one is being processed"
            await message.nack(delay=5)
            assert not await consumer.has_message_available(), "it is held"
            again = await consumer.receive(timeout=6)
            await again.ack()
            assert not await consumer.has_message_available()
        assert await received(consumer, seconds=1) == []


@for_each("start", ["latest", "earliest"])
@virtual_time
async def test_where_a_subscription_begins_or_is_moved_to(start: str) -> None:
    """Messages before the subscription are not available; those that a seek goes back to are."""
    broker = broker_with(b"0", b"1")
    async with subscribed(broker, initial_position=start) as consumer:
        assert await consumer.has_message_available() is (start == "earliest")
        await consumer.seek(LATEST)
        assert not await consumer.has_message_available()
        await consumer.seek(EARLIEST)
        assert await consumer.has_message_available()
        assert await received(consumer, seconds=1) == [b"0", b"1"]
        assert not await consumer.has_message_available()


@virtual_time
async def test_what_waits_here_is_available() -> None:
    """A due message counts although no call received it, but not once it is acknowledged by its id."""
    broker = broker_with(b"0")
    async with subscribed(broker, redelivery="local") as consumer:
        message = await consumer.receive(timeout=1)
        await message.nack(delay=1)
        assert not await consumer.has_message_available()
        await asyncio.sleep(2)
        assert await consumer.has_message_available()
        await consumer.acknowledge(message.id)
        assert not await consumer.has_message_available()


@for_each("kind", TYPES)
@virtual_time
async def test_everything_comes_again_from_partitions(kind: str) -> None:
    """Received messages of each partition are redelivered, in order with one consumer; held messages are not."""
    broker = FakeBroker()
    broker.partitions[TOPIC] = 2
    names = [f"{TOPIC}-partition-{number}" for number in range(2)]
    for number, name in enumerate(names):
        for at in range(5):
            broker.topic(name).publish(b"%d%d" % (number, at))
    async with subscribed(broker, consumer_type=kind) as consumer:
        messages: dict[bytes, Any] = {}
        while len([each for each in messages if each[1:] == b"2"]) < 2:
            message = await consumer.receive(timeout=1)
            messages[message.data] = message
        await messages[b"00"].ack()
        await messages[b"01"].nack(delay=5)
        await consumer.redeliver_unacknowledged_messages()
        found: dict[bytes, int] = {}
        for _ in range(8):
            message = await consumer.receive(timeout=1)
            found[message.data] = message.attempt
            await message.ack()
        every = {b"%d%d" % (number, at): 1 for number in range(2) for at in range(5)}
        again = dict.fromkeys(messages, 2)
        assert {**found, b"00": 2, b"01": 2} == every | again
        if kind in {"failover", "exclusive"}:
            for number in range(2):
                order = [data for data in found if data[:1] == b"%d" % number]
                assert order == sorted(order)
        message = await consumer.receive(timeout=6)
        assert (message.data, message.attempt) == (b"01", 2)
        await message.ack()
        assert await received(consumer, seconds=1) == []


@virtual_time
async def test_all_that_is_unacknowledged_of_one_partition() -> None:
    """On Exclusive one partition begins again; a waiting message of another partition stays."""
    broker, name = FakeBroker(), f"{BASE}parted"
    broker.partitions[name] = 2
    async with subscribed(broker, "parted", consumer_type="exclusive") as consumer:
        publish(broker, b"0", topic=f"{name}-partition-0")
        assert (await consumer.receive(timeout=1)).data == b"0"
        waiting = asyncio.create_task(consumer.receive())
        await asyncio.sleep(1)
        consumer.pause()
        publish(broker, b"1", topic=f"{name}-partition-1")
        await asyncio.sleep(1)
        await consumer.redeliver_unacknowledged_messages()
        consumer.resume()
        messages = [await waiting, *await take(consumer, 1)]
        assert sorted((each.data, each.attempt) for each in messages) == [(b"0", 2), (b"1", 1)]
        for message in messages:
            await message.ack()


@virtual_time
async def test_leaving_by_force() -> None:
    """The command has the flag only if asked for; a broker that ignores it refuses, and the consumer continues."""
    broker = broker_with(b"0")
    async with subscribed(broker) as consumer:
        broker.next("UNSUBSCRIBE", refuse("NotAllowedError"))
        with pytest.raises(BrokerRefusedError, match="NotAllowedError"):
            await consumer.unsubscribe(force=True)
        broker.next("UNSUBSCRIBE", refuse("NotAllowedError"))
        with pytest.raises(BrokerRefusedError, match="NotAllowedError"):
            await consumer.unsubscribe()
        assert await received(consumer, seconds=1) == [b"0"]
        await consumer.unsubscribe(force=True)
        with pytest.raises(ClosedError):
            await consumer.receive()
    assert [(each.force, each.HasField("force")) for each in broker.commands("UNSUBSCRIBE")] == [
        (True, True),
        (False, False),
        (True, True),
    ]


@virtual_time
async def test_cancelled_questions() -> None:
    """A cancelled call changes nothing, and the next one is answered."""
    broker = broker_with(b"0")
    consumer: Consumer
    async with subscribed(broker) as consumer:
        for call in (consumer.last_message_ids, consumer.has_message_available, consumer.get_last_message_id):
            task = asyncio.create_task(call())
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        assert await consumer.has_message_available()
        assert await received(consumer, seconds=1) == [b"0"]
