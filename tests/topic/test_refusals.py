"""What a local topic refuses, and how it says so."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest

from pulsar_nack import BucketDelayedDeliveryTracker, InvalidArgumentError, NackConfig
from pulsar_nack.cursor import Cursor
from pulsar_nack.errors import LogLockedError
from pulsar_nack.ledger import LocalLogStore
from pulsar_nack.testing import LocalBroker, virtual_time
from pulsar_nack.topic import LocalTopic


async def test_opened_twice(tmp_path: Path) -> None:
    """A topic or cursor that is open already says that it has one owner, and gives no useless advice."""
    async with await LocalTopic.open(tmp_path / "topic") as topic:
        await topic.create_subscription("s")
        with pytest.raises(LogLockedError, match="this topic is open already") as topics:
            await LocalTopic.open(tmp_path / "topic")
    async with await Cursor.open_local(tmp_path / "cursor", {1: 10}):
        with pytest.raises(LogLockedError, match="this cursor is open already") as cursors:
            await Cursor.open_local(tmp_path / "cursor", {1: 10})
    for error in (topics, cursors):
        assert "read_only" not in str(error.value)
    async with await LocalTopic.open(tmp_path / "topic") as topic:
        assert topic.subscriptions == ["s"]


async def make_cursor(folder: Path) -> str:
    """Create a cursor's folder; return the expected error."""
    async with await Cursor.open_local(folder, {1: 10}):
        return r"there are logs of a cursor, got \['cursor-0000000001'\]"


async def make_durable(folder: Path) -> str:
    """Create a durable consumer's folder; return the expected error."""
    async with LocalBroker() as broker, broker.consumer("s", durable=folder):
        return "there is the durable state of a consumer, got .*'nacks-"


async def make_tracker(folder: Path) -> str:
    """Create a bucket tracker's folder; return the expected error."""
    tracker = await BucketDelayedDeliveryTracker.open_local(folder)
    await tracker.aclose()
    return "there are other logs, got"


async def make_log(folder: Path) -> str:
    """Create another kind of log; return the expected error."""
    async with await LocalLogStore.open(folder) as store:
        await store.create("audit")
    return r"there are other logs, got \['audit'\]"


@pytest.mark.parametrize("make", [make_cursor, make_durable, make_tracker, make_log])
async def test_folder_of_something_else(make: Any, tmp_path: Path) -> None:
    """A folder with other logs and no topic is refused with what was found; nothing is created there."""
    told = await make(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidArgumentError, match=f"^home: expected a folder or a store of this topic alone; {told}"):
        await LocalTopic.open(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("type", {"type": "sharde"}),
        ("name", {"name": ""}),
        ("consumer_name", {"consumer_name": 7}),
        ("initial_position", {"initial_position": "last"}),
        ("delayed", {"delayed": NackConfig()}),
        ("ack_memory", {"ack_memory": -1}),
        ("backoff", {"backoff": "soon"}),
        ("redelivery", {"redelivery": "somehow"}),
        ("unacked_limit", {"unacked_limit": 0}),
        ("durable", {"durable": 7}),
        ("max_local_bytes", {"max_local_bytes": -1}),
        ("unacked_limit", {"unacked_limit": 10, "receiver_queue_size": 10}),
    ],
)
async def test_consumer_is_checked_at_the_call(field: str, arguments: dict[str, Any], tmp_path: Path) -> None:
    """``topic.consumer`` refuses its arguments when it is called, not when it is entered, and begins nothing."""
    async with await LocalTopic.open(tmp_path) as topic:
        given = {"name": "s", **arguments}
        with pytest.raises(InvalidArgumentError, match=f"^{field}"):
            topic.consumer(**given)
        with pytest.raises(InvalidArgumentError, match="no_such"):
            topic.consumer("s", no_such=1)
        assert topic.subscriptions == []
        subscribing = topic.consumer("s", ack_memory=0, receiver_queue_size=9, unacked_limit=10)
        assert topic.subscriptions == []
        gc.collect()
        async with subscribing:
            assert topic.subscriptions == ["s"]


@virtual_time
async def test_a_seek_of_a_topic_shows_what_was_acknowledged() -> None:
    """O2: another caller moves a topic back right after an acknowledgement: the message is delivered again."""
    async with LocalBroker() as broker, broker.consumer("s") as consumer:
        topic = await broker.topic()
        await topic.publish(b"1")
        await (await consumer.receive()).ack()
        await topic.seek("s", 0)
        await topic.publish(b"2")
        for data in (b"1", b"2"):
            message = await asyncio.wait_for(consumer.receive(), 1)
            assert message.data == data
            await message.ack()
        assert consumer.statistics().replayed == 1
        assert topic.backlog("s") == 0


@virtual_time
async def test_a_subscription_of_an_impossible_name() -> None:
    """It is refused like an unknown one, also if the name is not text."""
    async with LocalBroker() as broker:
        topic = await broker.topic()
        impossible: list[Any] = ["none", None, [None], {}]
        for name in impossible:
            for call in (topic.cursor, topic.backlog):
                with pytest.raises(InvalidArgumentError, match=r"^subscription: "):
                    call(name)
            for change in (
                topic.unsubscribe,
                topic.clear_backlog,
                lambda name: topic.skip(name, 1),
                lambda name: topic.seek(name, 0),
            ):
                with pytest.raises(InvalidArgumentError, match=r"^subscription: "):
                    await change(name)
