"""A consumer that seeks on a scripted broker: messages that the seek forgets without moving them come again."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pulsar_nack import BrokerError, InvalidArgumentError
from pulsar_nack.testing import virtual_time
from tests.wire.consuming import consuming
from tests.wire.fake_broker import Call, FakeBroker, refuse, silence
from tests.wire.using import BASE, TOPIC, broker_with, now, publish, subscribed, take


@pytest.mark.parametrize("position", [-1, 2**63, 1.5, True, "x", None, 1_790_000_000, 1_790_000_000_000_000])
@virtual_time
async def test_what_is_no_position_is_refused_before_anything_changes(position: Any) -> None:
    """O7: seconds and microseconds are refused; a nack is still redelivered at its deadline."""
    broker = broker_with(b"x")
    async with subscribed(broker) as consumer:
        await (await consumer.receive()).nack(5)
        with pytest.raises(InvalidArgumentError, match="position"):
            await consumer.seek(position)
        before = now()
        assert (await consumer.receive(timeout=60)).data == b"x"
        assert now() - before == pytest.approx(5, abs=0.01)


@virtual_time
async def test_a_datetime_is_a_publish_time() -> None:
    """O7: in all partitions the messages published then or later come again."""
    broker = FakeBroker()
    broker.partitions[TOPIC] = 2
    noon = datetime(2026, 9, 21, 12, tzinfo=UTC)
    for number in range(10):
        at_ms = int(noon.timestamp()) * 1000 + number // 2
        broker.topic(f"{TOPIC}-partition-{number % 2}").publish(b"%d" % number, publish_time=at_ms)
    async with subscribed(broker) as consumer:
        for _ in range(10):
            await (await consumer.receive(timeout=60)).ack()
        await consumer.seek(noon + timedelta(milliseconds=3))
        assert {each.data for each in await take(consumer, 4)} == {b"6", b"7", b"8", b"9"}


@virtual_time
async def test_a_seek_in_one_partition_loses_nothing_of_another() -> None:
    """Held messages of the other partition are forgotten with all nacks, and come again."""
    broker = FakeBroker()
    broker.partitions[TOPIC] = 2
    for number in range(2):
        broker.topic(f"{TOPIC}-partition-{number}").publish(b"%d" % number)
    async with subscribed(broker) as consumer:
        first, second = await take(consumer, 2)
        await first.nack(3600)
        await second.nack(3600)
        await consumer.seek(first.id)
        assert {each.data for each in await take(consumer, 2)} == {b"0", b"1"}


@virtual_time
async def test_a_seek_to_another_topic_or_a_deleted_one_changes_nothing() -> None:
    """It is refused, and held messages are redelivered at their deadlines."""
    broker = broker_with(b"x")
    broker.creates_topics = False
    broker.topic(f"{BASE}t2").ledger = 60
    publish(broker, b"y", topic=f"{BASE}t2")
    async with subscribed(broker, re.compile("t.*"), discovery_interval=1) as consumer:
        held, gone = sorted(await take(consumer, 2), key=lambda message: message.data)
        await held.nack(30)
        began = now()
        broker.delete(f"{BASE}t2")
        await asyncio.sleep(5)
        for position, why in ((held.id._replace(topic=f"{BASE}other"), "of no topic"), (gone.id, "was deleted")):
            with pytest.raises(BrokerError, match=why):
                await consumer.seek(position)
        again = await consumer.receive(timeout=60)
        assert (again.data, again.attempt) == (b"x", 2)
        assert now() - began == pytest.approx(30, abs=0.1)


@pytest.mark.parametrize("answer", [refuse("MetadataError"), silence])
@virtual_time
async def test_a_seek_that_fails_or_is_cancelled_loses_nothing(answer: Any) -> None:
    """Held messages come again."""
    broker = broker_with(b"x")
    async with subscribed(broker) as consumer:
        await (await consumer.receive()).nack(3600)
        broker.next("SEEK", answer)
        with pytest.raises((BrokerError, TimeoutError)):
            await asyncio.wait_for(consumer.seek(0), 2)
        assert (await consumer.receive(timeout=60)).data == b"x"


@pytest.mark.parametrize("refusal", [("ConsumerNotFound", "no such"), ("MetadataError", "Consumer not found")])
@pytest.mark.parametrize("is_told_late", [False, True])
@pytest.mark.parametrize("kind", ["SEEK", "GET_LAST_MESSAGE_ID", "UNSUBSCRIBE"])
@virtual_time
async def test_what_is_asked_while_the_topic_is_unloaded_is_asked_again(
    kind: str, refusal: tuple[str, str], *, is_told_late: bool
) -> None:
    """The broker has closed and forgotten the consumer that asked; the next one gets an answer.

    The broker may refuse before it says that it closed the consumer.
    """
    async with consuming() as made:
        entry = made.topic.publish(b"x")
        consumer = await made.open()
        await made.arrived.take(1)

        def closed_meanwhile(call: Call) -> None:
            if is_told_late:
                asyncio.get_running_loop().call_later(0.02, made.broker.unload, TOPIC)
            else:
                made.broker.unload(TOPIC)
            refuse(*refusal)(call)

        made.broker.next(kind, closed_meanwhile)
        if kind == "SEEK":
            await consumer.seek(0)
            assert [each.data for each in await made.arrived.take(1)] == [b"x"]
        elif kind == "UNSUBSCRIBE":
            await consumer.unsubscribe()
            assert not made.topic.subscriptions
        else:
            assert (await consumer.last_message_id())[:2] == entry.place
        assert len(made.broker.commands(kind)) == 2
        made.broker.always(kind, refuse(*refusal))
        if kind != "UNSUBSCRIBE":  # from a consumer that stays open it is an answer
            with pytest.raises(BrokerError, match=refusal[1]):
                await (consumer.seek(0) if kind == "SEEK" else consumer.last_message_id())
