"""Replays and clears of every form of message, on partitions, lists and patterns, plain and durable."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any, Final

import pytest

from pulsar_nack import DeadLetterPolicy, MessageId
from pulsar_nack.testing import FakePublisher, virtual_time
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from tests.for_each import for_each
from tests.tiers import seeds, size
from tests.wire.fake_broker import FakeBroker, refuse
from tests.wire.test_replays import numbers
from tests.wire.using import BASE, EARLIEST, LATEST, TYPES, received, subscribed, take, the

FORMS: Final = ["single", "batch", "chunks"]
PLACES: Final[dict[str, tuple[Any, list[str]]]] = {
    "topic": (f"{BASE}t", [f"{BASE}t"]),
    "partitions": (f"{BASE}parted", [f"{BASE}parted-partition-0", f"{BASE}parted-partition-1"]),
    "list": ([f"{BASE}t", f"{BASE}u"], [f"{BASE}t", f"{BASE}u"]),
    "pattern": (re.compile(f"{BASE}[tu]"), [f"{BASE}t", f"{BASE}u"]),
}
DIAGONAL: Final = [("chunks", "topic"), ("batch", "partitions"), ("single", "list"), ("batch", "pattern")]
EVERYWHERE: Final = DIAGONAL if size(1, fast=0) == 0 else [(form, place) for form in FORMS for place in PLACES]
COUNT: Final = 12


def a_broker(names: list[str]) -> FakeBroker:
    """Return a broker with these topics."""
    broker = FakeBroker()
    broker.partitions[f"{BASE}parted"] = 2
    for ledger, name in enumerate(names, 7):
        broker.topic(name).ledger = ledger
    return broker


def publish(broker: FakeBroker, form: str, names: list[str], *, first: int = 0, count: int = COUNT) -> None:
    """Publish numbered messages, spread over topics."""
    each = count // len(names)
    for name in names:
        data = [b"%d" % number for number in range(first, first + each)]
        topic, first = broker.topic(name), first + each
        if form == "batch":
            for at in range(0, each, 3):
                topic.publish_batch(data[at : at + 3], partition_key=str(at))
            continue
        for one in data:
            if form == "single":
                topic.publish(one, partition_key=one.decode())
                continue
            for number in range(2):
                about: dict[str, Any] = {
                    "uuid": f"{name}-{one.decode()}",
                    "num_chunks_from_msg": 2,
                    "chunk_id": number,
                    "total_chunk_msg_size": len(one),
                }
                topic.publish(one if number == 0 else b"", partition_key=one.decode(), **about)


@for_each(("form", "place"), EVERYWHERE)
@virtual_time
async def test_a_seek_by_one_worker(form: str, place: str) -> None:
    """O1: two consumers have acknowledged everything; one seeks back: the two receive all of it again."""
    selected, names = PLACES[place]
    broker = a_broker(names)
    kind = "key_shared" if form == "chunks" else "shared"  # on Shared the scripted broker separates a message's chunks
    settings: dict[str, Any] = {"receiver_queue_size": 5, "consumer_type": kind}
    async with subscribed(broker, selected, **settings) as one, subscribed(broker, selected, **settings) as two:
        publish(broker, form, names)
        first = await asyncio.gather(received(one, seconds=1), received(two, seconds=1))
        assert sorted(first[0] + first[1]) == numbers(COUNT)
        await one.seek(0)
        again = await asyncio.gather(received(one), received(two))
        assert sorted(again[0] + again[1]) == numbers(COUNT)


@pytest.mark.parametrize("is_durable", seeds([False, True]))
@pytest.mark.parametrize("kind", TYPES)
@for_each(("form", "place"), EVERYWHERE)
@virtual_time
async def test_a_reset(form: str, place: str, kind: str, is_durable: bool, tmp_path: Path) -> None:
    """O2, O3: an administrator resets while the consumer is connected, and while it is away: all comes each time."""
    await _reset(form, place, kind, tmp_path if is_durable else None)


async def _reset(form: str, place: str, kind: str, folder: Path | None) -> None:
    selected, names = PLACES[place]
    broker = a_broker(names)
    publish(broker, form, names)
    settings: dict[str, Any] = {"consumer_type": kind}
    if folder is not None:
        settings["durable"] = folder / f"{form}-{place}"
    async with subscribed(broker, selected, **settings) as consumer:
        assert sorted(await received(consumer, seconds=1)) == numbers(COUNT)
        for name in names:
            broker.reset(name)
        assert sorted(await received(consumer)) == numbers(COUNT)
        assert consumer.statistics().acked_again == 0
    for name in names:
        the(broker, name).rewind(0)
    async with subscribed(broker, selected, **settings) as consumer:
        assert sorted(await received(consumer)) == numbers(COUNT)
        if folder is not None:
            assert consumer.statistics().durable_acks == 0


@for_each(("form", "place"), EVERYWHERE)
@virtual_time
async def test_a_seek_to_the_latest(form: str, place: str) -> None:
    """O4: nothing old comes, in any form; a message published afterwards is delivered at once."""
    selected, names = PLACES[place]
    broker = a_broker(names)
    publish(broker, form, names)
    async with subscribed(broker, selected) as consumer:
        await take(consumer, 2)
        await consumer.seek(LATEST)
        assert await received(consumer) == []
        publish(broker, form, names)
        assert sorted(await received(consumer, seconds=0.1)) == numbers(COUNT)


@pytest.mark.parametrize("is_durable", seeds([False, True]))
@for_each(("form", "place", "kind"), [(*each, kind) for each in EVERYWHERE for kind in ("shared", "failover")])
@virtual_time
async def test_what_is_held_and_cleared(form: str, place: str, kind: str, is_durable: bool, tmp_path: Path) -> None:
    """O8: all is nacked repeatedly, then cleared in every topic: one more delivery at most, nothing is kept."""
    selected, names = PLACES[place]
    broker, letters = a_broker(names), FakePublisher()
    publish(broker, form, names)
    settings: dict[str, Any] = {
        "consumer_type": kind,
        "redelivery": "local",
        "dead_letter": DeadLetterPolicy(9, "dead", publisher=letters),
    }
    if is_durable:
        settings["durable"] = tmp_path / f"{form}-{place}-{kind}"
    async with subscribed(broker, selected, **settings) as consumer:
        times: dict[bytes, int] = {}

        async def work() -> None:
            async for message in consumer:
                times[message.data or b""] = times.get(message.data or b"", 0) + 1
                await message.nack(0.5)

        worker = asyncio.create_task(work())
        await asyncio.sleep(2.25)
        before = dict(times)
        assert sorted(before) == numbers(COUNT)
        for name in names:
            the(broker, name).skip_all()
        await asyncio.sleep(8)
        worker.cancel()
        assert all(times[each] - before[each] <= 1 for each in times), (before, times)
        figures = consumer.statistics()
        assert (figures.held, figures.requested, figures.kept, figures.kept_bytes) == (0, 0, 0, 0)
        assert figures.dropped == COUNT
        assert letters.letters == []


@for_each(("form", "place"), DIAGONAL[:2])
@virtual_time
async def test_a_reset_of_a_durable_consumer(form: str, place: str, tmp_path: Path) -> None:
    """O2, O3: the same with a folder, connected and away; in full it is a slow test."""
    await _reset(form, place, "shared", tmp_path)


@for_each("form", FORMS)
@virtual_time
async def test_a_reset_by_id(form: str) -> None:
    """O2: a reset to the first entry of a message in the middle delivers it and the following ones."""
    broker = a_broker([f"{BASE}t"])
    publish(broker, form, [f"{BASE}t"])
    async with subscribed(broker) as consumer:
        await received(consumer, seconds=1)
        broker.reset(f"{BASE}t", start=12 if form == "chunks" else 2 if form == "batch" else 6)
        assert sorted(await received(consumer)) == sorted(b"%d" % number for number in range(6, 12))


@for_each("form", FORMS)
@virtual_time
async def test_a_reset_by_ones_own_seek(form: str) -> None:
    """O1: a seek to the id of a message delivers it and the following ones, whatever its form."""
    broker = a_broker([f"{BASE}t"])
    publish(broker, form, [f"{BASE}t"])
    async with subscribed(broker) as consumer:
        messages = sorted(await take(consumer, COUNT), key=lambda message: message.id)
        for message in messages:
            await message.ack()
        target: MessageId = messages[6].id
        await consumer.seek(target)
        assert sorted(await received(consumer)) == sorted(b"%d" % number for number in range(6, 12))


@for_each(("form", "place", "kind"), [(*each, kind) for each in EVERYWHERE for kind in TYPES])
@virtual_time
async def test_a_lost_connection(form: str, place: str, kind: str) -> None:
    """O5: open acknowledgements are sent again, confirmed ones hide what the broker lost: nothing is delivered."""
    selected, names = PLACES[place]
    broker = a_broker(names)
    publish(broker, form, names)
    async with subscribed(broker, selected, consumer_type=kind) as consumer:
        messages = await take(consumer, COUNT)
        for message in messages[::2]:
            await message.ack()
        broker.always("ACK", lambda call: call.link.transport.cut())
        acks = [asyncio.ensure_future(message.ack()) for message in messages[1::2]]
        await asyncio.sleep(0.01)
        broker.normally("ACK")
        for name in names:
            the(broker, name).rewind(0)
        assert await received(consumer) == []
        await asyncio.gather(*acks)
        for name in names:
            assert len(the(broker, name).acked) == len(broker.topic(name).entries)


@for_each(("form", "place", "kind"), [(*each, kind) for each in EVERYWHERE for kind in TYPES])
@virtual_time
async def test_a_seek_while_acknowledgements_are_on_their_way(form: str, place: str, kind: str) -> None:
    """O49: all messages being acknowledged are delivered again, once, and are unacknowledged at the broker."""
    selected, names = PLACES[place]
    broker = a_broker(names)
    publish(broker, form, names)
    async with subscribed(broker, selected, consumer_type=kind) as consumer:
        acks = [asyncio.ensure_future(message.ack()) for message in await take(consumer, COUNT)]
        await asyncio.sleep(0)
        await consumer.seek(EARLIEST)
        await asyncio.gather(*acks)
        assert sorted(await received(consumer, ack=False)) == numbers(COUNT)
        assert [the(broker, name).acked for name in names] == [set()] * len(names)


def ids_of(broker: FakeBroker, name: str, count: int) -> Any:
    """Return the ids of the first entries of a topic."""
    entries = broker.topic(name).entries[:count]
    return [pb.MessageIdData(ledgerId=each.ledger, entryId=each.entry) for each in entries]


@for_each(("form", "place", "kind"), [(*each, kind) for each in EVERYWHERE for kind in ("exclusive", "failover")])
@virtual_time
async def test_what_another_consumer_settled(form: str, place: str, kind: str) -> None:
    """O52: in each topic the middle is acknowledged while this consumer is away: it is dropped, the others come."""
    selected, names = PLACES[place]
    broker = a_broker(names)
    publish(broker, form, names)
    each = COUNT // len(names)
    async with subscribed(broker, selected, consumer_type=kind) as consumer:
        for message in await take(consumer, COUNT):
            await message.nack(30)
        broker.always("SUBSCRIBE", refuse("ServiceNotReady"))
        broker.cut()
        await asyncio.sleep(1)
        settled = {"single": 2, "batch": 1, "chunks": 4}[form]
        for name in names:
            the(broker, name).acknowledge(ids_of(broker, name, settled)[settled // 2 :], is_cumulative=False)
        if form == "batch":  # all of its members, which is the beginning
            gone = {first + at for first in range(0, COUNT, each) for at in range(3)}
        else:
            gone = {first + 1 for first in range(0, COUNT, each)}
        broker.normally("SUBSCRIBE")
        expected = sorted(b"%d" % number for number in range(COUNT) if number not in gone)
        assert sorted(await received(consumer, seconds=60)) == expected
        figures = consumer.statistics()
        assert (figures.held, figures.requested, figures.kept, figures.dropped) == (0, 0, 0, len(gone))


@for_each(("form", "place"), EVERYWHERE)
@virtual_time
async def test_a_failover_switch(form: str, place: str) -> None:
    """O53: held messages, and due ones that wait, are delivered only by the consumer that takes over."""
    selected, names = PLACES[place]
    broker = a_broker(names)
    publish(broker, form, names)
    settings: dict[str, Any] = {"consumer_type": "failover"}
    async with subscribed(broker, selected, consumer_name="b", **settings) as second:
        for number, message in enumerate(await take(second, COUNT)):
            await message.nack(1 if number % 2 else 60)
        await asyncio.sleep(2)
        figures = second.statistics()
        assert (figures.ready, figures.held) == (COUNT // 2, COUNT // 2)
        async with subscribed(broker, selected, consumer_name="a", **settings) as first:
            assert sorted(await received(first)) == numbers(COUNT)
            assert await received(second, seconds=100) == []
        assert second.statistics().dropped == COUNT


@for_each("place", PLACES)
@virtual_time
async def test_members_are_acknowledged_before_they_come(place: str) -> None:
    """O6: the second member of the first batch of each topic is not delivered."""
    selected, names = PLACES[place]
    broker = a_broker(names)
    publish(broker, "batch", names)
    each = COUNT // len(names)
    async with subscribed(broker, selected) as consumer:
        for name in names:
            topic = broker.topic(name)
            member = MessageId(topic.ledger, 0, topic.partition, 1, batch_size=3, topic=name)
            await consumer.acknowledge(member)
        expected = sorted(b"%d" % number for number in range(COUNT) if number % each != 1)
        assert sorted(await received(consumer)) == expected
