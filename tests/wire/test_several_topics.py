"""Consumers of several topics and partitions on a scripted broker: topics of ids; topics appear, go and fail."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from pulsar_nack import BrokerError, ClosedError, ConsumerPort, MessageId
from pulsar_nack.consumer import (
    SupportsNowait,
    SupportsPause,
    SupportsPublishing,
    SupportsSessions,
    SupportsSubscription,
)
from pulsar_nack.errors import BrokerRefusedError
from pulsar_nack.testing import virtual_time
from pulsar_nack.wire import ClientOptions, SubscribeOptions
from pulsar_nack.wire._consumer._port import traits_of
from tests.for_each import for_each
from tests.wire.consuming import Ended
from tests.wire.fake_broker import FakeBroker, as_usual, refuse, silence
from tests.wire.using import BASE, now, publish, received, subscribed, take, the

A, B = f"{BASE}a", f"{BASE}b"
PARTED = f"{BASE}parted"


def a_broker(messages: int = 1) -> FakeBroker:
    """Return a broker with two topics, and one of two partitions, each with messages."""
    broker = FakeBroker()
    broker.partitions[PARTED] = 2
    for number, name in enumerate((A, B, f"{PARTED}-partition-0", f"{PARTED}-partition-1")):
        broker.topic(name).ledger = 50 + number
        publish(broker, *[name.encode()] * messages, topic=name)
    return broker


def acked(broker: FakeBroker, name: str) -> int:
    """Return how many entries of a topic are acknowledged."""
    return len(the(broker, name).acked)


# --- by id -----------------------------------------------------------------------------------------------------------


@for_each(
    ("selected", "message_id", "found"),
    [
        ("a", MessageId(50, 0), A),
        ("a", MessageId(50, 0, topic="a"), A),
        ("a", MessageId(50, 0, topic=A), A),
        ("a", MessageId(50, 0, topic="b"), "no topic of this consumer"),
        ("parted", MessageId(53, 0, 1), f"{PARTED}-partition-1"),
        ("parted", MessageId(53, 0, 1, topic="parted"), f"{PARTED}-partition-1"),
        ("parted", MessageId(53, 0, 1, topic=f"{PARTED}-partition-1"), f"{PARTED}-partition-1"),
        ("parted", MessageId(53, 0), "no topic of this consumer"),
        ("parted", MessageId(53, 0, 2), "no topic of this consumer"),
        (["a", "b"], MessageId(51, 0, topic="b"), B),
        (["a", "b"], MessageId(51, 0), "names none"),
    ],
)
@virtual_time
async def test_ids_find_their_topics(selected: Any, message_id: MessageId, found: str) -> None:
    """A single topic owns any id that names no other; a partition's number suffices; among several an id names it."""
    broker = a_broker()
    async with subscribed(broker, selected) as consumer:
        port, answers = consumer.port, Ended()
        if not found.startswith(BASE):
            with pytest.raises(BrokerError, match=found):
                await port.acknowledge([message_id])
            with pytest.raises(BrokerError, match=found):
                port.acknowledge_soon(message_id, "token", answers)
            await port.redeliver([message_id])  # of a topic that is gone: nothing to request
            return
        await port.acknowledge([message_id])
        assert acked(broker, found) == 1


@virtual_time
async def test_calls_go_to_all_their_topics() -> None:
    """One call acknowledges or requests messages of several topics; it raises the first error and goes on."""
    broker = a_broker(2)
    async with subscribed(broker, ["a", "b"]) as consumer:
        port = consumer.port
        first, *rest = await take(consumer, 4)
        other = next(each for each in rest if each.topic != first.topic)
        broker.next("ACK", as_usual, refuse("MetadataError", "not here"))
        with pytest.raises(BrokerRefusedError, match="not here"):
            await port.acknowledge([first.id, other.id])
        assert acked(broker, A) + acked(broker, B) == 1
        await port.acknowledge([first.id, other.id])
        assert (acked(broker, A), acked(broker, B)) == (1, 1)
        left = [each.id for each in rest if each is not other]
        await port.redeliver([*left, MessageId(9, 9, topic=f"{BASE}gone")])
        await asyncio.sleep(0.1)
        asked = broker.commands("REDELIVER_UNACKNOWLEDGED_MESSAGES")
        assert sorted(each.ledgerId for command in asked for each in command.message_ids) == [50, 51]


@virtual_time
async def test_a_seek_to_a_message_moves_its_own_topic() -> None:
    """Times and the ids of both ends move all topics; a message's id moves one, and drops its earlier messages."""
    broker = a_broker(2)
    async with subscribed(broker, "parted") as consumer:
        port = consumer.port
        await asyncio.sleep(1)
        await port.seek(MessageId(53, 1, 1))
        assert [each.entry for each in [(await port.receive()).id for _ in range(3)]] == [0, 1, 1]
        assert port.receive_nowait() is None
        assert len(broker.commands("SEEK")) == 1
        for position in (1_700_000_000_000, MessageId(-1, -1), MessageId(2**63 - 1, 2**63 - 1)):
            await port.seek(position)
        assert len(broker.commands("SEEK")) == 7


# --- new topics ------------------------------------------------------------------------------------------------------


@virtual_time
async def test_many_share_what_is_prefetched() -> None:
    """With many partitions each prefetches less, 50 000 messages in all."""
    broker = FakeBroker()
    broker.partitions[PARTED] = 100
    async with subscribed(broker, "parted", client_options=ClientOptions(max_prefetched_bytes=0)):
        await asyncio.sleep(1)
        assert [flow.messagePermits for flow in broker.commands("FLOW")] == [500] * 100


@virtual_time
async def test_new_topics_are_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """A new partition that cannot be opened is closed, logged and tried again; so are failed looks, logged once.

    Partitions that the broker no longer names stay.
    """
    caplog.set_level("INFO", "pulsar_nack.wire")
    broker = a_broker()
    third = f"{PARTED}-partition-2"
    async with subscribed(broker, "parted", discovery_interval=10) as consumer:
        await received(consumer, seconds=1)
        broker.always("PARTITIONED_METADATA", refuse("AuthorizationError", "not now"))
        await asyncio.sleep(30)
        broker.normally("PARTITIONED_METADATA")
        publish(broker, b"new", topic=third)
        broker.partitions[PARTED] = 3
        broker.next("SUBSCRIBE", refuse("AuthorizationError", "not yet"))
        assert (await consumer.receive(timeout=30)).data == b"new"
        told = [each.partition(": ")[0] for each in caplog.messages]
        assert told == [
            f"cannot look for new topics of {PARTED}",
            f"{third} is new, and cannot be consumed yet",
            f"{third} is new, and is consumed from now on",
        ]
        broker.partitions[PARTED] = 1
        await asyncio.sleep(30)
        publish(broker, b"still", topic=third)
        assert (await consumer.receive(timeout=1)).data == b"still"


# --- topics that disappear -------------------------------------------------------------------------------------------


def pattern_of(broker: FakeBroker, **settings: Any) -> Any:
    """Consume all topics of one letter."""
    return subscribed(broker, re.compile("[ab]"), redelivery="broker", **{"discovery_interval": 5, **settings})


@virtual_time
async def test_a_topic_that_is_gone_keeps_no_other_from_redelivery() -> None:
    """Messages of both topics are due together; the remaining topic's comes, whatever happened to the other."""
    broker = a_broker()
    async with pattern_of(broker, discovery_interval=1) as consumer:
        for message in await take(consumer, 2):
            await message.nack(5)
        broker.always(
            "GET_TOPICS_OF_NAMESPACE", lambda call: call.reply("GET_TOPICS_OF_NAMESPACE_RESPONSE", topics=[B])
        )
        await asyncio.sleep(3)
        assert consumer.statistics().held == 1  # held messages of the deleted topic are forgotten
        assert (await consumer.receive(timeout=60)).data == B.encode()


@virtual_time
async def test_messages_of_a_topic_that_was_deleted_can_be_settled(caplog: pytest.LogCaptureFixture) -> None:
    """Acknowledged or nacked, also before the deletion is known, they are done; other messages continue.

    One log line says so. A topic that is created again is consumed as before.
    """
    caplog.set_level("INFO", "pulsar_nack.wire")
    broker = a_broker(4)
    broker.creates_topics = False
    async with pattern_of(broker) as consumer:
        messages = await take(consumer, 8)
        gone = [message for message in messages if message.topic == A]
        (left, *others) = [message for message in messages if message.topic == B]
        broker.delete(A)
        await asyncio.wait_for(gone[0].ack(), 4)
        await asyncio.sleep(6)
        await asyncio.wait_for(gone[1].ack(), 1)
        gone[2].ack_soon()
        await gone[3].nack(1)
        await left.nack(1)
        assert (await consumer.receive(timeout=60)).data == B.encode()
        for message in others:
            await message.ack()
        assert consumer.statistics().acked == 6
        assert await received(consumer, seconds=600) == []
        figures = consumer.statistics()
        assert (figures.held, figures.requested, figures.requested_again) == (0, 0, 0)
        await consumer.port.acknowledge_cumulative(gone[0].id)
        consumer.port.give_back([gone[0].id])
        with pytest.raises(BrokerError, match=f"{A} was deleted"):
            await consumer.port.seek(gone[0].id)
        with pytest.raises(BrokerError, match="no topic of this consumer"):
            await consumer.acknowledge(MessageId(1, 1, topic=f"{BASE}c"))
        assert sum("acknowledgements and nacks of its messages have no effect" in each for each in caplog.messages) == 1
        broker.topic(A).ledger = 60
        publish(broker, b"again", topic=A)
        (again,) = await take(consumer, 1, seconds=10)
        await again.ack()
        assert acked(broker, A) == 1


@virtual_time
async def test_acknowledgements_under_way_are_done_when_their_topic_is_deleted() -> None:
    """Acknowledgements that the broker has not answered and will not answer end without an error."""
    broker = a_broker()
    broker.always("ACK", silence)
    async with pattern_of(broker, discovery_interval=1) as consumer:
        message = await consumer.receive(timeout=60)
        acknowledging = asyncio.create_task(message.ack())
        await asyncio.sleep(0.1)
        del broker.topics[message.topic]  # its consumer is not closed by the broker
        await asyncio.wait_for(acknowledging, 20)


# --- all topics ------------------------------------------------------------------------------------------------------


@virtual_time
async def test_the_states_of_all() -> None:
    """It is connected when all are; on Failover it is active when one of them is; it has ended when all topics have."""
    broker = a_broker()
    tasks = len(asyncio.all_tasks())
    async with subscribed(broker, ["a", "b"], consumer_type="failover", consumer_name="b") as consumer:
        port: Any = consumer.port
        await asyncio.sleep(0.1)
        assert [port.is_connected, port.is_active, port.has_ended] == [True, True, False]
        async with subscribed(broker, "a", consumer_type="failover", consumer_name="a"):
            await asyncio.sleep(0.1)
            assert port.is_active
            async with subscribed(broker, "b", consumer_type="failover", consumer_name="a"):
                await asyncio.sleep(0.1)
                assert port.is_active is False
        ended = []
        for name in (A, B):
            broker.topic(name).is_terminated = True
            broker.unload(name)
            await asyncio.sleep(1)
            ended.append(port.has_ended)
        assert ended == [False, True]
        broker.always("SUBSCRIBE", silence)
        broker.unload(A)
        await asyncio.sleep(1)
        assert [port.is_connected, port.is_active, port.has_ended] == [False, None, False]
        assert not any("discovery" in task.get_name() for task in asyncio.all_tasks())
        broker.normally("SUBSCRIBE")
    async with subscribed(broker, re.compile("none-of-these")) as consumer:
        assert not consumer.port.has_ended
    await asyncio.sleep(1)
    assert len(asyncio.all_tasks()) == tasks


@virtual_time
async def test_closing_closes_all() -> None:
    """Closing, by several calls at once, closes all, also topics that are being dropped, and although one fails."""
    broker = a_broker(0)
    before = asyncio.all_tasks()
    async with pattern_of(broker, discovery_interval=1) as consumer:
        port: Any = consumer.port
        broker.next("CLOSE_CONSUMER", silence)  # the topic that is dropped, which takes 5 s
        await asyncio.sleep(0.5)
        del broker.topics[A]
        await asyncio.sleep(1)
        (left,) = port._consumers
        aclose = left.aclose

        async def fail() -> None:
            await aclose()
            raise BrokerError("gone already")

        left.aclose = fail
        waiting = asyncio.create_task(port.receive())
        await asyncio.sleep(0)
        first = asyncio.create_task(port.close())
        await asyncio.sleep(0)
        first.cancel()
        began = now()
        await port.close()
        assert now() - began > 4
        assert port.is_closed
        with pytest.raises(ClosedError):
            await waiting
        for call in (port.receive(), port.acknowledge([MessageId(1, 1, 0)]), port.redeliver([]), port.seek(0)):
            with pytest.raises(ClosedError):
                await call
        with pytest.raises(ClosedError):
            port.receive_nowait()
        assert not any(task.get_name().startswith("pulsar_nack.wire closing") for task in asyncio.all_tasks() - before)


@virtual_time
async def test_it_is_a_port() -> None:
    """It supports every optional call of a port."""
    async with subscribed(a_broker(), "a") as consumer:
        port: ConsumerPort = consumer.port
        for ability in (SupportsNowait, SupportsSessions, SupportsSubscription, SupportsPause, SupportsPublishing):
            assert isinstance(port, ability)


@for_each(("kind", "honours"), [("shared", True), ("key_shared", True), ("exclusive", False), ("failover", False)])
def test_traits(kind: Any, honours: bool) -> None:
    """Ids are honoured on Shared subscriptions; a redelivery comes at once, so it is requested at its deadline."""
    traits = traits_of(SubscribeOptions("sub", type=kind, receiver_queue_size=7, batch_index_ack=False))
    assert traits.honours_ids is honours
    assert traits.redelivery_latency < 0.001
    assert traits.min_redelivery_delay == 0
    assert (traits.max_ids_per_request, traits.receiver_queue_size, traits.batch_index_ack) == (1_000, 7, False)
