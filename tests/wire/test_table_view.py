"""Table views on a scripted broker: their content, changes, memory, errors and end."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

import pytest

from pulsar_nack import ClosedError, InvalidArgumentError
from pulsar_nack.consumer import ReceivedMessage
from pulsar_nack.errors import MissingExtraError, TopicNotFoundError
from pulsar_nack.testing import virtual_time
from pulsar_nack.wire import TableChange, TableChanges
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from tests.wire.fake_broker import refuse
from tests.wire.fake_topics import FakeTopic
from tests.wire.test_reader import TOPIC, cluster


def put(topic: FakeTopic, **values: Any) -> None:
    """Publish the values of keys; None: without a value."""
    for key, value in values.items():
        if value is None:
            topic.publish(b"", partition_key=key, null_value=True)
        else:
            topic.publish(b"%d" % value, partition_key=key)


@virtual_time
async def test_newest_values() -> None:
    """U48: a=1, b=2, a=3, b=null is {a: 3}; changes are reported as they happen."""
    async with cluster() as (broker, topic, client):
        put(topic, a=1, b=2)
        put(topic, a=3, b=None)
        async with client.table_view("t") as view:
            assert view == {"a": b"3"}
            assert (view["a"], view.get("b"), len(view), "a" in view, "b" in view) == (b"3", None, 1, True, False)
            assert (list(view), list(view.items()), dict(view)) == (["a"], [("a", b"3")], {"a": b"3"})
            assert isinstance(view, Mapping)
            with pytest.raises(KeyError):
                view["b"]
            changes = view.changes()
            put(topic, c=4)
            change = await anext(changes)
            assert (change.key, change.value, change.message.data) == ("c", b"4", b"4")
            put(topic, a=None, d=5)
            assert [(each.key, each.value) for each in [await anext(changes), await anext(changes)]] == [
                ("a", None),
                ("d", b"5"),
            ]
            assert dict(view) == {"c": b"4", "d": b"5"}
        assert broker.commands("SUBSCRIBE")[0].read_compacted


@virtual_time
async def test_it_follows_partitions_through_lost_connections() -> None:
    """U48: the newest value of each key from several partitions, after a cut and an unload too."""
    async with cluster() as (broker, _, client):
        broker.partitions[TOPIC] = 2
        topics = [broker.topic(f"{TOPIC}-partition-{number}") for number in range(2)]
        for number in range(20):
            put(topics[number % 2], **{f"k{number % 6}": number})
        async with client.table_view("t") as view:
            assert dict(view) == {f"k{number % 6}": b"%d" % number for number in range(14, 20)}
            broker.cut()
            put(topics[0], k0=100)
            await asyncio.sleep(5)
            broker.unload(topics[1].name)
            put(topics[1], k1=None)
            await asyncio.sleep(5)
            assert view["k0"] == b"100"
            assert "k1" not in view


@virtual_time
async def test_a_slow_loop_gets_the_newest_change_of_each_key() -> None:
    """U48: of any number of changes one waits for each key; loops are independent, and see only later changes."""
    async with cluster() as (_, topic, client), client.table_view("t") as view:
        slow, other = view.changes(), view.changes()
        for number in range(300):
            put(topic, **{f"k{number % 3}": number})
        await asyncio.sleep(5)
        put(topic, k0=None)
        await asyncio.sleep(5)
        assert len(slow._waiting) == 3
        assert [(each.key, each.value) for each in [await anext(slow) for _ in range(3)]] == [
            ("k0", None),
            ("k1", b"298"),
            ("k2", b"299"),
        ]
        late = view.changes()
        put(topic, k9=9)
        assert (await anext(late)).key == "k9"
        assert [(await anext(other)).key for _ in range(4)] == ["k0", "k1", "k2", "k9"]
        del slow
        gc.collect()
        assert len(view._changes) == 2


class Value:
    """A value that can be counted."""

    def __init__(self, message: ReceivedMessage) -> None:
        self.data = message.data


@virtual_time
async def test_memory_is_one_value_a_key() -> None:
    """U48: after 2 000 values for four keys, of which one was removed, three values are held, and no message."""
    made: WeakSet[Value] = WeakSet()
    total = 0

    def decode(message: ReceivedMessage) -> Value:
        nonlocal total
        total += 1
        made.add(value := Value(message))
        return value

    async with cluster() as (_, topic, client):
        put(topic, k0=0, k1=0)
        async with client.table_view("t", receiver_queue_size=10, decode=decode) as view:
            unread = view.changes()
            for number in range(2_000):
                put(topic, **{f"k{number % 4}": number})
                if not number % 5:
                    await asyncio.sleep(0.1)
            put(topic, k2=None)
            await asyncio.sleep(5)
            del unread
            gc.collect()
            assert (total, len(made), sorted(view)) == (2_002, 3, ["k0", "k1", "k3"])
            assert view["k3"].data == b"1999"
            assert not [each for each in gc.get_objects() if isinstance(each, ReceivedMessage)]
            assert view._reader._kept == {}
            assert len(view._reader._port._inbox) == 0


@virtual_time
async def test_messages_that_change_nothing() -> None:
    """Messages without a key and unreadable values are counted; an empty value removes the key."""

    def decode(message: Any) -> Any:
        return json.loads(message.data)

    async with cluster() as (_, topic, client):
        topic.publish(b"1")
        put(topic, a=1, b=2, c=3)
        topic.publish(b"", partition_key="a")
        topic.publish(b"{", partition_key="b")
        topic.publish(b"?", partition_key="c", encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")])
        topic.publish(b"null", partition_key="d")
        put(topic, x=None)
        async with client.table_view("t", decode=decode) as view:
            assert dict(view) == {"b": 2, "c": 3}
            assert (view.without_key, view.unreadable) == (1, 2)
            changes = view.changes()
            put(topic, x=None, b=None)
            assert (await anext(changes)).key == "b"


@virtual_time
async def test_values_and_keys_are_cut_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A large unreadable value, which its decoder's error quotes, fills no log; neither does its key."""
    async with cluster() as (_, topic, client):
        topic.publish(b"x" * 1_000_000, partition_key="k" * 100_000)
        async with client.table_view("t", decode=lambda message: float(message.data)) as view:
            assert view.unreadable == 1
    assert "cannot be read: ValueError" in caplog.text
    assert len(caplog.text) < 1_000


@virtual_time
async def test_an_error_reaches_the_user(caplog: pytest.LogCaptureFixture) -> None:
    """When the topic is deleted, each access and the changes raise, and it is logged."""
    async with cluster() as (broker, topic, client):
        put(topic, a=1)
        view = await client.table_view("t")
        changes = view.changes()
        waiting = asyncio.create_task(anext(changes))
        broker.creates_topics = False
        broker.delete(TOPIC)
        with pytest.raises(TopicNotFoundError):
            await waiting
        for access in (lambda: view["a"], lambda: len(view), lambda: dict(view), view.changes, lambda: "a" in view):
            with pytest.raises(TopicNotFoundError):
                access()
        with pytest.raises(TopicNotFoundError):
            await anext(changes)
        assert "ended" in repr(view)
        assert "the view of persistent://public/default/t ends" in caplog.text
        await view.aclose()


@virtual_time
async def test_a_codec_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The view ends with the error that names the extra, and shows no outdated values."""
    async with cluster() as (_, topic, client):
        put(topic, a=1)
        async with client.table_view("t") as view:
            monkeypatch.setitem(sys.modules, "cramjam", None)
            topic.publish(b"x", partition_key="a", compression=pb.LZ4, uncompressed_size=9)
            await asyncio.sleep(1)
            with pytest.raises(MissingExtraError, match="compression"):
                view["a"]
        with pytest.raises(MissingExtraError, match="compression"):
            await client.table_view("t")


async def all_of(changes: TableChanges) -> list[TableChange]:
    """Return the changes up to the end."""
    return [change async for change in changes]


@virtual_time
async def test_it_ends() -> None:
    """Closing it, or its client, ends loops over changes and leaves no task; the values stay."""
    async with cluster() as (broker, topic, client):
        put(topic, a=1)
        async with client.table_view("t") as view:
            following = asyncio.create_task(all_of(aiter(view)))
            await asyncio.sleep(0)
            put(topic, b=2)
            await asyncio.sleep(1)
        assert [each.key for each in await following] == ["b"]
        assert dict(view) == {"a": b"1", "b": b"2"}
        assert repr(view) == f"<TableView of {TOPIC!r}, 2 keys, closed>"
        await view.close()
        other = await client.table_view("t")
        iterating = asyncio.create_task(all_of(other.changes()))
        await asyncio.sleep(1)
    assert await iterating == []
    assert dict(other) == {"a": b"1", "b": b"2"}
    with pytest.raises(ClosedError):
        client.table_view("t")
    assert broker.links == []


@virtual_time
async def test_opening_that_fails_or_is_cancelled() -> None:
    """A failed or cancelled opening leaves nothing."""
    async with cluster() as (broker, topic, client):
        put(topic, a=1)
        with pytest.raises(InvalidArgumentError, match="decode"):
            client.table_view("t", decode=3)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="start"):
            client.table_view("t", start="latest")  # type: ignore[call-arg]
        broker.next("GET_LAST_MESSAGE_ID", refuse("MetadataError"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(failing(client), 0.0035)
        await asyncio.sleep(1)
        assert all(not each.consumers for each in topic.subscriptions.values())
        with pytest.raises(Exception, match="MetadataError"):
            await client.table_view("t")
        assert all(not each.consumers for each in topic.subscriptions.values())


async def failing(client: Any) -> None:
    """Open a view."""
    async with client.table_view("t"):
        raise AssertionError


@virtual_time
async def test_a_dropped_view_closes_itself() -> None:
    """It warns, and the broker no longer has its consumer."""
    async with cluster() as (broker, topic, client):
        put(topic, a=1)
        with pytest.warns(ResourceWarning, match="TableView of"):
            assert dict(await client.table_view("t")) == {"a": b"1"}
        await asyncio.sleep(2)
        assert len(broker.commands("CLOSE_CONSUMER")) == 1
