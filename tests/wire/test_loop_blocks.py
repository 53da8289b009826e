"""What a storm of nacks costs the loop: few objects for the garbage collector, and no turn that handles all of them."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from pulsar_nack import Consumer, Message, MessageId
from pulsar_nack.consumer._message_table import MessageTable
from pulsar_nack.wire import Client, ClientOptions
from tests.tiers import seeds
from tests.wire.fake_broker import FakeBroker, silence
from tests.wire.fake_topics import FakeTopic

TOPIC: Final = "persistent://public/default/t"
COUNT: Final = 1_000
BATCH: Final = 100
MOST: Final = 2
"""How many objects the garbage collector tracks for each message that is prefetched, waits, or is due."""


@asynccontextmanager
async def consuming(publish: Any, count: int = COUNT, **settings: Any) -> AsyncIterator[tuple[FakeBroker, Consumer]]:
    """Yield a scripted broker, and a consumer that has prefetched this many messages."""
    broker = FakeBroker(latency=0.0)
    topic = broker.topic(TOPIC)
    settings = {"receiver_queue_size": count, "initial_position": "earliest", "unacked_limit": None, **settings}
    async with (
        Client(broker.url, ClientOptions(), dial=broker.dial) as client,
        client.subscribe("t", "s", **settings) as consumer,
    ):
        first = topic.publish(b"first")  # shows the size of messages
        await (await consumer.receive()).ack()
        assert topic.subscriptions["s"].acked == {first.place}
        publish(topic, count)
        await arrived(consumer, count - 1)
        broker.calls.clear()
        yield broker, consumer


async def arrived(consumer: Consumer, count: int) -> None:
    """Wait until this many messages are at the port; permits are given for half of its queue at a time."""
    port: Any = consumer.port
    while sum(member.queue.messages for member in port._consumers) < count:
        await asyncio.sleep(0.01)


def plain(topic: FakeTopic, count: int) -> None:
    """Publish messages with only a payload."""
    for number in range(count):
        topic.publish(b"%d" % number)


def with_more(topic: FakeTopic, count: int) -> None:
    """Publish messages with a key and a property."""
    for number in range(count):
        topic.publish(b"%d" % number, properties={"a": "b"}, partition_key="k")


def batched(topic: FakeTopic, count: int) -> None:
    """Publish batches."""
    for start in range(0, count, BATCH):
        topic.publish_batch([b"%d" % number for number in range(start, start + BATCH)])


@pytest.fixture(autouse=True)
def _nothing_else_is_tracked() -> None:
    """Freeze objects of earlier tests, so that listing all objects is cheap."""
    gc.collect()
    gc.freeze()


def tracked() -> Counter[str]:
    """Return the objects that the garbage collector tracks, by type."""
    for _ in range(3):  # it stops tracking a tuple of tuples in the second collection
        gc.collect()
    return Counter(type(each).__name__ for each in gc.get_objects())


def for_each_message(before: Counter[str], after: Counter[str]) -> dict[str, float]:
    """Return how many more objects of each type there are, for each message."""
    more = {name: (after[name] - before[name]) / COUNT for name in {*before, *after}}
    return {name: share for name, share in more.items() if abs(share) > 0.02}


def check_few(found: dict[str, float]) -> None:
    """Check that they are few."""
    assert sum(found.values()) < MOST + 0.1, found


@pytest.mark.parametrize("publish", seeds([plain, batched, with_more], fast=3))
async def test_what_is_fetched_ahead_is_little_for_the_collector(publish: Any) -> None:
    """O41: the collector tracks at most two objects for each prefetched message."""
    async with consuming(publish) as (_, consumer):
        full = tracked()
        consumer.port._inbox.clear()
        check_few(for_each_message(tracked(), full))


@pytest.mark.parametrize(
    "way", seeds([{}, {"redelivery": "local"}, {"consumer_type": "exclusive"}], fast=3), ids=["auto", "local", "alone"]
)
@pytest.mark.parametrize("publish", seeds([plain, batched, with_more], fast=3))
async def test_what_is_held_is_little_for_the_collector(publish: Any, way: dict[str, Any]) -> None:
    """O41: the collector tracks at most two objects for each held message, including a kept payload."""
    async with consuming(publish, **way) as (_, consumer):
        await hold_all(consumer, 600)
        held = tracked()
        consumer._engine.queue.clear()
        consumer._engine.table.clear()
        check_few(for_each_message(tracked(), held))


@pytest.mark.parametrize("publish", seeds([plain, batched, with_more], fast=3))
async def test_what_is_due_is_little_for_the_collector(publish: Any) -> None:
    """O41: the collector tracks at most two objects for each requested message, also after it arrived."""
    async with consuming(publish, redelivery="broker") as (broker, consumer):
        broker.always("REDELIVER_UNACKNOWLEDGED_MESSAGES", silence)
        await hold_all(consumer, 0.2)
        while consumer.statistics().requested < COUNT:
            await asyncio.sleep(0.05)
        requested = tracked()
        broker.normally("REDELIVER_UNACKNOWLEDGED_MESSAGES")
        await consumer.port.redeliver([record.id for record in consumer._engine.table._records.values()])
        await arrived(consumer, COUNT // 2)
        come = tracked()
        consumer.port._inbox.clear()
        consumer._engine.table.clear()
        nothing = tracked()
        check_few(for_each_message(nothing, requested))
        if publish is plain:
            check_few(for_each_message(nothing, come))


async def test_what_has_come_is_forgotten_as_a_request() -> None:
    """O41: a message that has arrived and is settled leaves nothing behind, whatever was requested before it."""
    states = MessageTable()
    records = [states.hold(MessageId(1, number)) for number in range(3)]
    for record in records:
        states.request(record, 0)
    states.deliver(records[2].id, 1, 1)
    states.settle_all([states.mark_acking_unknown(records[2].id)], 2)
    states.settle_all([states.mark_acking_unknown(records[1].id)], 3)
    states._check()
    assert list(states.requests.open) == [records[0]]


async def hold_all(consumer: Consumer, delay: float) -> None:
    """Receive and nack everything."""
    messages: list[Message] = [await consumer.receive() for _ in range(COUNT)]
    for message in messages:
        await message.nack(delay)
    messages.clear()
    del message
    await asyncio.sleep(0.01)
    for new in consumer._engine.mark_delete._new.values():  # type: ignore[union-attr]
        new.clear()  # as a second later


@pytest.mark.parametrize(
    "way",
    [{}, {"redelivery": "local"}, {"redelivery": "broker", "consumer_type": "exclusive"}],
    ids=["auto", "local", "rewind"],
)
async def test_no_turn_takes_a_whole_storm(monkeypatch: pytest.MonkeyPatch, way: dict[str, Any]) -> None:
    """O41: of a storm that is due at once, a turn of the loop requests or delivers a thousand messages at most."""
    turn, took = 0, Counter[int]()

    def count(method: Any) -> Any:
        def counted(table: MessageTable, *arguments: Any) -> Any:
            took[turn] += 1
            return method(table, *arguments)

        return counted

    monkeypatch.setattr(MessageTable, "request", count(MessageTable.request))
    monkeypatch.setattr(MessageTable, "redeliver", count(MessageTable.redeliver))
    storm = 1_500

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async with consuming(plain, storm, **way) as (_, consumer):
        counting = asyncio.create_task(count_turns())
        for _ in range(storm):
            await (await consumer.receive()).nack(0.4)
        seen = set[MessageId]()
        while len(seen) < storm:
            message = await consumer.receive()
            seen.add(message.id)
            message.ack_soon()
        counting.cancel()
    assert took.total() == storm
    assert max(took.values()) <= 1_000


async def test_nacks_one_after_the_other_let_the_loop_run() -> None:
    """O41: a task that nacks all received messages, without waiting, does not block the loop for long."""
    others = 0

    async def count() -> None:
        nonlocal others
        while True:
            await asyncio.sleep(0)
            others += 1

    async with consuming(plain) as (_, consumer):
        messages = [await consumer.receive() for _ in range(COUNT)]
        counting = asyncio.create_task(count())
        await asyncio.sleep(0)
        began, others = asyncio.get_running_loop().time(), 0
        for message in messages:
            await message.nack(600)
            while asyncio.get_running_loop().time() < began + 0.02:  # a slow machine
                pass
        counting.cancel()
    assert others >= 1
