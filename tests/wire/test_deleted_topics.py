"""Topics that are deleted under their consumers, and created again or not."""

from __future__ import annotations

import asyncio
import random
import re
from functools import partial
from typing import Any

import pytest

from pulsar_nack.errors import ClosedError, RequestTimeoutError, TopicNotFoundError
from pulsar_nack.testing import run, virtual_time
from pulsar_nack.wire import Client, ClientOptions
from tests.for_each import for_each
from tests.tiers import size
from tests.wire.fake_broker import Answer, FakeBroker, cut, later, refuse, silence
from tests.wire.using import BASE, TYPES, subscribed

SELECTIONS: dict[str, tuple[Any, str]] = {
    "pattern": (re.compile("orders-.*"), "orders-1"),
    "name": ("orders-1", "orders-1"),
    "list": (["orders-1", "other"], "orders-1"),
    "partitions": ("parted", "parted-partition-1"),
}


def forbidding(*names: str) -> FakeBroker:
    """A broker that creates no topics, with these topics."""
    broker = FakeBroker()
    broker.creates_topics = False
    for number, name in enumerate(names):
        broker.topic(f"{BASE}{name}").ledger = 10 + number
    return broker


MADE_AGAIN = [("pattern", "shared", tells, gap) for tells in (True, False) for gap in (0.0, 0.2, 20.0)]
MADE_AGAIN += [("pattern", consumer_type, True, 0.0) for consumer_type in TYPES[1:]]
MADE_AGAIN += [(kind, "shared", False, gap) for kind in SELECTIONS if kind != "pattern" for gap in (0.0, 0.2)]


@for_each(("kind", "consumer_type", "tells", "gap"), MADE_AGAIN)
def test_all_of_a_topic_that_is_created_again_is_delivered(
    kind: str, consumer_type: str, tells: bool, gap: float
) -> None:
    """O55: created again at once or later, by name or pattern, on all types: no earlier message is skipped."""
    selected, name = SELECTIONS[kind]
    run(_delivered_again(selected, name, consumer_type, tells=tells, gap=gap))


async def _delivered_again(selected: Any, name: str, consumer_type: Any, *, tells: bool, gap: float) -> None:
    broker = FakeBroker()
    broker.tells_of_topics = tells
    broker.partitions[f"{BASE}parted"] = 2
    broker.topic(BASE + name).publish(b"before")
    subscribing = {"consumer_type": consumer_type, "discovery_interval": 5, "initial_position": "latest"}
    async with subscribed(broker, selected, **subscribing) as consumer:
        broker.topic(BASE + name).publish(b"old")
        await (await consumer.receive(timeout=5)).ack()
        broker.delete(BASE + name)
        await asyncio.sleep(gap)
        again = broker.topic(BASE + name)
        again.ledger += 100
        for number in range(20):
            again.publish(b"%d" % number)
        delivered = [(await consumer.receive(timeout=30)).data for _ in range(20)]
        assert sorted(delivered, key=int) == [b"%d" % number for number in range(20)]


@virtual_time
async def test_receive_raises_while_the_topic_of_a_consumer_is_deleted() -> None:
    """O9: waiting and later calls raise at once; acks succeed, held messages are forgotten; a new topic is consumed."""
    broker = forbidding("one")
    for number in range(3):
        broker.topic(f"{BASE}one").publish(b"%d" % number)
    async with subscribed(broker, "one") as consumer:
        messages = [await consumer.receive(timeout=1) for _ in range(3)]
        await messages[0].nack(20)
        waiting = asyncio.create_task(consumer.receive())
        await asyncio.sleep(1)
        broker.delete(f"{BASE}one")
        with pytest.raises(TopicNotFoundError, match=f"{BASE}one was deleted, and may not be created again"):
            await asyncio.wait_for(waiting, 2)
        with pytest.raises(TopicNotFoundError, match="does not exist"):
            await consumer.receive(timeout=1)
        async with asyncio.timeout(0.1):
            await messages[1].ack()
            messages[2].ack_soon()
            with pytest.raises(TopicNotFoundError):
                await consumer.port.last_message_ids()
        assert consumer.statistics().held == 0
        assert len(broker.topics) == 0
        await asyncio.sleep(100)
        again = broker.topic(f"{BASE}one")
        again.ledger = 99
        again.publish(b"again")
        await asyncio.sleep(100)
        assert (await consumer.receive(timeout=1)).data == b"again"


@virtual_time
async def test_calls_that_wait_for_a_topic_end_when_it_turns_out_to_be_deleted() -> None:
    """O9: they raise as soon as the broker reports the deletion, and not when the request times out."""
    broker = forbidding("one")
    async with subscribed(broker, "one") as consumer:
        (member,) = consumer.port._consumers
        broker.delete(f"{BASE}one")
        await asyncio.sleep(0.01)
        assert member.missing is None
        calls = [asyncio.create_task(call) for call in (member.seek(0), member.last_message_id())]
        marking = asyncio.create_task(member.mark_delete_position())
        async with asyncio.timeout(2):
            for call in calls:
                with pytest.raises(TopicNotFoundError):
                    await call
            assert await marking is None


@pytest.mark.parametrize("selected", [["one", "two"], re.compile("one|two"), "parted"])
@virtual_time
async def test_others_go_on_without_a_topic_that_is_deleted(selected: Any, caplog: pytest.LogCaptureFixture) -> None:
    """O9: other topics of a list are consumed, with one log line, until all are deleted; a pattern waits for more."""
    names = ["one", "two"] if selected != "parted" else ["parted-partition-0", "parted-partition-1"]
    broker = forbidding(*names)
    broker.partitions[f"{BASE}parted"] = 2
    async with subscribed(broker, selected, discovery_interval=5) as consumer:
        waiting = asyncio.create_task(consumer.receive())
        broker.delete(BASE + names[0])
        await asyncio.sleep(20)
        assert not waiting.done()
        broker.topic(BASE + names[1]).publish(b"left")
        assert (await waiting).data == b"left"
        told = [each for each in caplog.messages if "the other topics continue" in each]
        is_pattern = isinstance(selected, re.Pattern)
        assert len(told) == (0 if is_pattern else 1)
        broker.delete(BASE + names[1])
        with pytest.raises(TimeoutError if is_pattern else TopicNotFoundError):
            await consumer.receive(timeout=20)


@pytest.mark.parametrize("selected", [["one", "two"], "parted"])
@virtual_time
async def test_what_is_asked_of_all_topics_leaves_out_a_deleted_one(selected: Any) -> None:
    """Last ids, message availability, a seek by time, and unsubscribing; if all are deleted, calls raise."""
    names = ["one", "two"] if selected != "parted" else ["parted-partition-0", "parted-partition-1"]
    for deleted in (1, 2):
        broker = forbidding(*names)
        broker.partitions[f"{BASE}parted"] = 2
        left = broker.topic(BASE + names[1])
        async with subscribed(broker, selected) as consumer:
            left.publish(b"left")
            await (await consumer.receive(timeout=5)).ack()
            for name in names[:deleted]:
                broker.delete(BASE + name)
            await asyncio.sleep(5)
            calls = (consumer.last_message_ids, consumer.has_message_available, partial(consumer.seek, 0))
            if deleted == 2:
                for call in calls:
                    with pytest.raises(TopicNotFoundError):
                        await call()
            else:
                assert [each.topic for each in await consumer.last_message_ids()] == [left.name]
                assert not await consumer.has_message_available()
                await consumer.seek(0)
                assert await consumer.has_message_available()
                assert (await consumer.receive(timeout=5)).data == b"left"
            await consumer.unsubscribe()
            with pytest.raises(ClosedError):
                await consumer.receive()
            assert [topic.subscriptions for topic in broker.topics.values()] == [{}] * (2 - deleted)


@virtual_time
async def test_new_partitions_are_found_while_another_topic_is_deleted() -> None:
    """O9: in a list; the deleted topic is consumed again once it is created again."""
    broker = forbidding("one", "parted-partition-0")
    broker.partitions[f"{BASE}parted"] = 1
    async with subscribed(broker, ["one", "parted"], discovery_interval=5) as consumer:
        broker.delete(f"{BASE}one")
        await asyncio.sleep(20)
        broker.partitions[f"{BASE}parted"] = 2
        for number, name in enumerate(("parted-partition-1", "one")):
            broker.topic(BASE + name).ledger = 20 + number
            broker.topic(BASE + name).publish(name.encode())
            assert (await consumer.receive(timeout=60)).data == name.encode()


@pytest.mark.parametrize("selected", [["one", "two"], re.compile("one|two"), "parted"])
@pytest.mark.parametrize("is_told", [False, True])
@virtual_time
async def test_what_is_asked_while_a_topic_is_deleted_is_asked_of_the_others(selected: Any, *, is_told: bool) -> None:
    """O9: calls that wait for a topic which is deleted, or forgotten, go on without it."""
    names = ["one", "two"] if selected != "parted" else ["parted-partition-0", "parted-partition-1"]
    for way in range(5):
        broker = forbidding(*names)
        broker.tells_of_topics = is_told
        broker.partitions[f"{BASE}parted"] = 2
        left = broker.topic(BASE + names[1])
        left.publish(b"left")
        async with (
            Client(broker.url, dial=broker.dial) as client,
            client.subscribe(selected, "s", initial_position="earliest", discovery_interval=5) as consumer,
            client.reader(selected, discovery_interval=5) as reader,
        ):
            assert (await reader.read()).data == (await consumer.receive()).data == b"left"
            broker.delete(BASE + names[0])
            await asyncio.sleep(0.01)
            async with asyncio.timeout(10):
                if way == 0:
                    assert [each.topic for each in await consumer.last_message_ids()] == [left.name]
                elif way == 1:
                    await consumer.seek(0)
                    assert (await consumer.receive()).data == b"left"
                elif way == 2:
                    assert not await reader.has_message_available()
                elif way == 3:
                    assert [message async for message in reader.read_to_end()] == []
                else:
                    await reader.seek("earliest")
                    assert (await reader.read()).data == b"left"


@virtual_time
async def test_a_topic_that_is_not_there_is_refused_at_once() -> None:
    """O9: the error when subscribing has the same class and the broker's text."""
    broker = forbidding()
    async with Client(broker.url, dial=broker.dial) as client:
        with pytest.raises(TopicNotFoundError, match=r"subscribing to .*one.*does not exist") as caught:
            await client.subscribe("one", "s")
        assert caught.value.code == "TopicNotFound"


def test_a_patterns_consumer_creates_no_topic_again() -> None:
    """O9: with any pauses between attempts, also if the broker creates topics on subscribing."""

    async def life() -> None:
        broker = FakeBroker()
        broker.tells_of_topics = True
        for name in ("orders-0", "orders-1"):
            broker.topic(BASE + name)
        async with subscribed(broker, re.compile("orders-.*")) as consumer:
            await asyncio.sleep(1)
            broker.delete(f"{BASE}orders-0")
            await asyncio.sleep(1)
            assert list(broker.topics) == [f"{BASE}orders-1"]
            assert [member.topic for member in consumer.port._consumers] == [f"{BASE}orders-1"]

    for seed in range(size(200, fast=10)):
        random.seed(seed)
        run(life())


@virtual_time
async def test_a_pattern_asks_only_for_partitions_that_it_saw() -> None:
    """O9: no lookup that would create a partitioned topic: none for plain ones, others ask not to create."""
    broker = forbidding("orders-1", "orders-2-partition-0", "orders-3-partition-7")
    broker.partitions[f"{BASE}orders-2"] = 2
    broker.topic(f"{BASE}orders-2-partition-1")
    async with subscribed(broker, re.compile("orders-.*")) as consumer:
        assert {member.topic.removeprefix(BASE) for member in consumer.port._consumers} == {
            "orders-1",
            "orders-2-partition-0",
            "orders-2-partition-1",
            "orders-3-partition-7",
        }
    asked = broker.commands("PARTITIONED_METADATA")
    assert sorted(each.topic for each in asked) == [f"{BASE}orders-2", f"{BASE}orders-3"]
    assert not any(each.metadata_auto_creation_enabled for each in asked)


@virtual_time
async def test_a_pattern_that_matches_nothing_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """O19: one log line after the first look, with pattern and namespace; none if something matches."""
    broker = FakeBroker()
    broker.topic(f"{BASE}orders-1")
    async with Client(broker.url, dial=broker.dial) as client:
        async with client.subscribe(re.compile("orders-.*"), "s", discovery_interval=5):
            await asyncio.sleep(20)
        assert caplog.messages == []
        async with client.subscribe(re.compile("tenant/space/orders-.*"), "s", discovery_interval=5):
            await asyncio.sleep(20)
    what = "no topic matches the pattern 'tenant/space/orders-.*' in namespace tenant/space yet"
    assert caplog.messages == [f"{what}: this consumer waits for one"]


@pytest.mark.parametrize("tells", [True, False])
@virtual_time
async def test_what_comes_while_a_reader_at_the_end_is_cut_off_is_read(tells: bool) -> None:
    """A non-durable subscription from the end that has received nothing resumes at the end when it began."""
    broker = FakeBroker()
    broker.tells_mark_delete = tells
    topic = broker.topic(f"{BASE}one")
    topic.publish(b"before")
    settings: dict[str, Any] = {"durable_subscription": False, "initial_position": "latest"}
    async with subscribed(broker, "one", consumer_type="exclusive", **settings) as reader:
        for number in range(3):
            broker.cut()
            topic.publish(b"%d" % number)
            await asyncio.sleep(10)
        assert [(await reader.receive(timeout=5)).data for _ in range(3)] == [b"0", b"1", b"2"]
        with pytest.raises(TimeoutError):
            await reader.receive(timeout=5)


@pytest.mark.parametrize("answer", [cut, refuse("NotAllowedError"), silence, later(1)])
@virtual_time
async def test_a_reader_at_the_end_begins_whatever_the_broker_reports(answer: Answer) -> None:
    """If the end is not reported, or only later, there is still one reader, and only one."""
    broker = FakeBroker()
    topic = broker.topic(f"{BASE}one")
    broker.next("GET_LAST_MESSAGE_ID", answer)
    settings: dict[str, Any] = {"consumer_type": "exclusive", "durable_subscription": False}
    async with Client(broker.url, ClientOptions(request_timeout=3), dial=broker.dial) as client:
        if answer is silence:
            with pytest.raises(RequestTimeoutError):
                await client.subscribe("one", "s", **settings)
            await asyncio.sleep(1)
            assert topic.subscriptions["s"].consumers == []
        async with client.subscribe("one", "s", **settings) as reader:
            topic.publish(b"x")
            assert (await reader.receive(timeout=5)).data == b"x"
            assert len(topic.subscriptions["s"].consumers) == 1
