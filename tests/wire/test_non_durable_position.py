"""Subscriptions that the broker does not keep: where they resume, pure and on a scripted broker."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from pulsar_nack import MessageId
from pulsar_nack.testing import virtual_time
from pulsar_nack.wire import Client
from pulsar_nack.wire._consumer._positions import NonDurablePosition
from tests.tiers import seeds
from tests.wire.consuming import TOPIC, consuming
from tests.wire.fake_broker import FakeBroker
from tests.wire.fake_topics import metadata_of
from tests.wire.frames import message_rest


def at(entry: int, index: int = -1) -> MessageId:
    """Return the id of a message."""
    return MessageId(7, entry, -1, index, batch_size=0 if index < 0 else 3)


def taken_to(last: int) -> NonDurablePosition:
    """Return a position after this many entries were taken."""
    resuming = NonDurablePosition(at(1))
    assert resuming.begin() == at(1)
    for entry in range(2, last + 1):
        assert not resuming.arrived((7, entry))
        resuming.taken(at(entry))
    return resuming


def test_it_goes_on_behind_what_was_taken() -> None:
    """The highest message counts, not the one taken last."""
    resuming = taken_to(9)
    resuming.taken(at(4))
    assert resuming.begin() == at(9)


def test_a_place_that_only_the_broker_knows() -> None:
    """It is known once a message was taken, or the broker has reported it; after a seek by time it is not."""
    position = NonDurablePosition(None, is_exact=False)
    known = [position.is_known]
    position.taken(at(3))
    known.append(position.is_known)
    position.move(at(5))
    known.append(position.is_known)
    position.move(MessageId(-1, -1), is_exact=False)
    known.append(position.is_known)
    assert known == [False, True, True, False]


def test_what_is_asked_for_decides_where_the_next_session_begins() -> None:
    """Only requests for taken messages count, and one before the session's beginning needs another session."""
    resuming = taken_to(9)
    assert not resuming.request([(7, 5), (7, 50), (6, 1)])
    resuming.taken(at(5))
    assert resuming.begin() == at(9)
    assert resuming.request([(7, 5), (7, 4)])
    assert resuming.begin() == at(3)
    assert not resuming.is_behind
    assert not resuming.request([(7, 6)])
    assert resuming.request([(7, 3)])


def test_what_is_acknowledged_is_known_while_it_may_come_again() -> None:
    """It is known from the first unacknowledged message on, and to the end of a session that was rewound."""
    resuming = taken_to(9)
    resuming.acked([(7, 4), (7, 6), (7, 70)])
    resuming.request([(7, 3)])
    assert resuming.begin() == at(2)
    assert [entry for entry in range(2, 80) if resuming.arrived((7, entry))] == [4, 6]
    resuming.taken(at(3))
    resuming.acked([(7, entry) for entry in range(2, 10)])
    assert resuming.arrived((7, 6))
    assert resuming.begin() == at(9)
    assert not resuming.arrived((7, 6))


def test_acknowledged_through() -> None:
    """Messages up to a cumulative acknowledgement are not requested again."""
    resuming = taken_to(9)
    resuming.request([(7, 3), (7, 8)])
    resuming.acked_through((7, 5))
    assert resuming.begin() == at(7)
    assert [entry for entry in range(10) if resuming.arrived((7, entry))] == list(range(6))


def test_in_the_middle_of_a_batch() -> None:
    """It resumes with the next member of a batch, and with all of it if an earlier one is requested."""
    resuming = taken_to(3)
    resuming.taken(at(4, 1))
    assert resuming.begin() == at(4, 1)
    assert resuming.request([(7, 4)])
    assert resuming.begin() == at(3)


def test_a_move_forgets_all() -> None:
    """After a seek it begins at the new position, and delivers acknowledged messages."""
    resuming = taken_to(9)
    resuming.acked([(7, 4)])
    resuming.request([(7, 3)])
    resuming.move(at(2))
    assert resuming.begin() == at(2)
    assert not resuming.arrived((7, 4))


def test_from_the_latest_on() -> None:
    """Messages that arrived and were not taken come again, though the broker decided where to begin."""
    resuming = NonDurablePosition(None)
    assert resuming.begin() is None
    assert not resuming.arrived((7, 5))
    assert resuming.begin() == at(4)


class Reading:
    """A client of a topic with numbered messages, whose subscription ends with its connection."""

    def __init__(self, count: int, **settings: Any) -> None:
        self.broker = FakeBroker()
        self.client = Client(self.broker.url, dial=self.broker.dial)
        self.settings = {"redelivery": "broker", "ack_memory": 0.01, "durable_subscription": False, **settings}
        self.publish(range(count))

    def publish(self, numbers: range) -> None:
        """Publish messages with these numbers."""
        for number in numbers:
            self.broker.topic(TOPIC).publish(b"%d" % number)

    def subscribe(self) -> Any:
        """Subscribe, from the first message on."""
        return self.client.subscribe("t", "s", start_message_id=MessageId(7, -1), **self.settings)

    @property
    def is_all_acked(self) -> bool:
        """Return whether the broker has everything acknowledged, by its present subscription."""
        subscription = self.broker.topic(TOPIC).subscriptions["s"]
        return not subscription.consumers[0].pending


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
@virtual_time
async def test_nothing_that_was_nacked_is_lost(kind: Any) -> None:
    """After a lost connection nacked messages come at their deadlines, once; those in flight or acknowledged do not."""
    reading = Reading(6, consumer_type=kind)
    async with reading.client, reading.subscribe() as consumer:
        messages = [await consumer.receive(timeout=60) for _ in range(6)]
        for number in (0, 2, 4):
            await messages[number].ack()
        await messages[1].nack(5)
        reading.broker.cut()
        await asyncio.sleep(2)
        reading.publish(range(6, 8))
        assert [(await consumer.receive(timeout=1)).data for _ in range(2)] == [b"6", b"7"]
        again = await consumer.receive(timeout=60)
        assert (again.data, again.attempt) == (b"1", 2)
        await again.ack()
        await messages[3].ack()
        await messages[5].nack(1)
        again = await consumer.receive(timeout=60)
        assert again.data == b"5"
        await again.ack()
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout=100)
        figures = consumer.statistics()
        assert (figures.held, figures.requested, figures.in_work) == (0, 0, 2)


@virtual_time
async def test_a_request_without_a_connection() -> None:
    """A message that is due without a connection comes with the next one."""
    reading = Reading(3)
    async with reading.client, reading.subscribe() as consumer:
        first, *_ = [await consumer.receive(timeout=60) for _ in range(3)]
        await first.nack(0.5)
        node = reading.broker.node(reading.broker.url)
        node.kill()
        await asyncio.sleep(2)
        node.start()
        assert (await consumer.receive(timeout=20)).id == first.id


@pytest.mark.parametrize("seed", seeds(range(10), fast=2))
@virtual_time
async def test_at_random(seed: int) -> None:
    """With random faults every message is delivered until it is acknowledged, and no longer."""
    chance = random.Random(seed)
    kind: Any = chance.choice(["shared", "exclusive"])
    reading = Reading(40, consumer_type=kind, receiver_queue_size=chance.choice([1, 5, 100]), ack_memory=1_000)
    async with reading.client, reading.subscribe() as consumer:
        done: set[bytes] = set()
        working: list[Any] = []
        while len(done) < 40:
            step = chance.random()
            if step < 0.05:
                reading.broker.cut()
            elif step < 0.1:
                await asyncio.sleep(chance.random() * 2)
            elif working and step < 0.55:
                message = working.pop(chance.randrange(len(working)))
                if chance.random() < 0.4:
                    await message.nack(chance.random() * 3)
                else:
                    await message.ack()
                    done.add(message.data)
            elif len(working) + len(done) < 40:
                try:
                    message = await consumer.receive(timeout=60)
                except TimeoutError:
                    assert working  # the others are in flight
                else:
                    assert message.data not in done
                    assert message.data not in {each.data for each in working}
                    working.append(message)
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout=100)
        assert reading.is_all_acked


@virtual_time
async def test_a_message_in_chunks_that_was_here_in_part() -> None:
    """Its first chunk comes again with the next connection, though another message was taken after it."""
    async with consuming() as made:
        parts: dict[str, Any] = {"uuid": "u", "num_chunks_from_msg": 2, "total_chunk_msg_size": 6}
        made.topic.append(message_rest(metadata_of(**parts, chunk_id=0), b"abc"))
        made.topic.publish(b"other")
        await made.open(durable=False, start_message_id=MessageId(7, -1))
        assert [delivery.data for delivery in await made.arrived.take(1)] == [b"other"]
        made.broker.cut()
        await asyncio.sleep(1)
        made.topic.append(message_rest(metadata_of(**parts, chunk_id=1), b"def"))
        assert b"abcdef" in [delivery.data for delivery in await made.arrived.take(2)]


@virtual_time
async def test_what_was_fetched_and_not_taken_from_the_latest_on() -> None:
    """It comes again, though there was no first message to name."""
    async with consuming() as made:
        await made.open(durable=False, initial_position="latest", type="exclusive")
        for number in range(3):
            made.topic.publish(b"%d" % number)
        await asyncio.sleep(1)
        made.broker.cut()
        assert [delivery.data for delivery in await made.arrived.take(3)] == [b"0", b"1", b"2"]


@virtual_time
async def test_a_whole_message_that_was_not_taken_before_a_later_one() -> None:
    """Its chunks come again after a lost connection, though a message between them was taken."""
    async with consuming() as made:
        for index, payload in enumerate([b"half", b"full"]):
            chunk = metadata_of(uuid="u", num_chunks_from_msg=2, chunk_id=index, total_chunk_msg_size=8)
            made.topic.append(message_rest(chunk, payload))
            if not index:
                made.topic.publish(b"between")
        await made.open(type="exclusive", durable=False)
        assert [each.data for each in await made.arrived.take()] == [b"between"]
        await asyncio.sleep(1)
        made.broker.cut()
        taken = await made.arrived.take(2)
        assert [each.data for each in taken] == [b"between", b"halffull"]
        made.broker.cut()
        made.topic.publish(b"later")
        assert [each.data for each in await made.arrived.take()] == [b"later"]
