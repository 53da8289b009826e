"""Readers and table views of the native client on a real broker, beside those of the official client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pulsar
import pytest

from pulsar_nack import MessageId
from pulsar_nack.consumer import ReceivedMessage
from pulsar_nack.wire import Client, Reader
from pulsar_nack.wire._consumer._positions import TopicPosition
from tests.broker._admin import Admin, _path
from tests.broker._assembly import version
from tests.broker.standalone import Standalone
from tests.patience import patience


@pytest.fixture
async def client(service_url: str) -> AsyncIterator[Client]:
    """A native client."""
    async with Client(service_url) as made:
        yield made


async def send(
    client: Client, topic: str, numbers: Sequence[int], *, batch: int = 1, keys: int = 0, **settings: Any
) -> list[MessageId]:
    """Publish numbers, in batches if the batch size is not 1; return their ids."""
    async with client.producer(
        topic, batching=batch > 1, batch_max_messages=max(batch, 2), batch_delay=1.0, **settings
    ) as producer:
        sending = [producer.send_nowait(b"%d" % each, key=f"k{each % keys}" if keys else None) for each in numbers]
        await producer.flush()
        return [await each for each in sending]


async def numbers(reader: Reader) -> list[int]:
    """Read to the end; return the numbers."""
    return [int(data) for data in await data_of(reader)]


async def data_of(reader: Reader) -> list[Any]:
    """Read to the end; return the data of the messages, None where a key was removed."""
    async with asyncio.timeout(patience(20)):
        return [message.data async for message in reader.read_to_end()]


async def compact(admin: Admin, topic: str) -> None:
    """Compact a topic, and wait until the broker serves the compacted one."""
    await asyncio.to_thread(admin.request, "PUT", f"{_path(topic)}/compaction")
    async with asyncio.timeout(patience(30)):
        while (await asyncio.to_thread(admin.internal_stats, topic))["compactedLedger"]["ledgerId"] < 0:
            await asyncio.sleep(0.05)
        while (await asyncio.to_thread(admin.request, "GET", f"{_path(topic)}/compaction"))["status"] != "SUCCESS":
            await asyncio.sleep(0.05)


def official_numbers(url: str, topic: str, start: Any, *, inclusive: bool) -> list[int]:
    """Return what a reader of the official client reads up to the end."""
    return [int(data) for data in official_data(url, topic, start, inclusive=inclusive)]


def official_data(url: str, topic: str, start: Any, *, inclusive: bool, compacted: bool = False) -> list[bytes]:
    """Return the data of what a reader of the official client reads up to the end."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        reader = client.create_reader(topic, start, start_message_id_inclusive=inclusive, is_read_compacted=compacted)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(10_000).data())
        return found
    finally:
        client.close()


@pytest.mark.both_lines
@pytest.mark.parametrize("batch", [1, 5])
async def test_to_the_end_while_more_are_published(client: Client, service_url: str, topic: str, batch: int) -> None:
    """U47: reading to the end gives exactly the ten messages that were there, though ten more are published meanwhile.

    ``has_message_available`` is right before, at and after the end; the official client reads the same.
    """
    async with client.reader(topic, "earliest", inclusive=True) as reader:
        assert not await reader.has_message_available()
        assert await numbers(reader) == []
        await send(client, topic, range(10), batch=batch)
        found = []
        async for message in reader.read_to_end():
            found.append(int(message.data))
            await send(client, topic, range(10 * len(found), 10 * len(found) + batch), batch=batch)
        assert found == list(range(10))
        assert await reader.has_message_available()
        rest = [10 * turn + more for turn in range(1, 11) for more in range(batch)]
        assert await numbers(reader) == rest
        assert not await reader.has_message_available()
        for number in range(batch):
            if not number:
                await send(client, topic, range(batch), batch=batch)
            assert await reader.has_message_available()
            assert int((await reader.read(timeout=5)).data) == number
        assert not await reader.has_message_available()
        with pytest.raises(TimeoutError):
            await reader.read(timeout=0.1)
    everything = [*range(10), *rest, *range(batch)]
    assert (
        await asyncio.to_thread(official_numbers, service_url, topic, pulsar.MessageId.earliest, inclusive=True)
        == everything
    )


@pytest.mark.both_lines
@pytest.mark.parametrize("batch", [1, 4])
async def test_where_it_begins(client: Client, service_url: str, topic: str, batch: int) -> None:
    """U47: after or at each message of batches and singles, like the official client; at a time; at both ends."""
    ids = await send(client, topic, range(8), batch=batch)
    await asyncio.sleep(0.02)
    noon = datetime.now(UTC)
    await asyncio.sleep(0.02)
    ids += await send(client, topic, range(8, 12), batch=batch)
    for number, each in enumerate(ids):
        for inclusive in (False, True):
            async with client.reader(topic, each, inclusive=inclusive) as reader:
                first = number + (not inclusive)
                assert await reader.has_message_available() is (first < 12)
                assert await numbers(reader) == list(range(first, 12)), (each, inclusive)
                assert not await reader.has_message_available()
    start = pulsar.MessageId(ids[2].partition, *ids[2][:2], ids[2].batch_index)
    for inclusive in (False, True):
        expected = list(range(3 - inclusive, 12))
        assert await asyncio.to_thread(official_numbers, service_url, topic, start, inclusive=inclusive) == expected
    async with client.reader(topic, noon) as reader:
        assert await reader.has_message_available()
        assert await numbers(reader) == list(range(8, 12))
        places: list[tuple[TopicPosition, int]] = [(ids[5], 5), ("earliest", 0), ("latest", 12), (noon, 8), (ids[0], 0)]
        for place, first in places:
            await reader.seek(place)
            assert await reader.has_message_available() is (first < 12), place
            assert await numbers(reader) == list(range(first, 12)), place
    async with client.reader(topic, noon + timedelta(hours=1)) as reader:
        assert not await reader.has_message_available()
    async with client.reader(topic, "latest", inclusive=True) as reader:
        assert await numbers(reader) == [11]
    async with client.reader(topic, "latest") as reader:
        assert not await reader.has_message_available()
        await send(client, topic, [12])
        assert await numbers(reader) == [12]


@pytest.mark.parametrize("batch", [1, 7])
async def test_unloads(client: Client, admin: Admin, partitioned_topic: Callable[[int], str], batch: int) -> None:
    """U47: a partition is unloaded repeatedly while messages are published and read: each comes once, in order."""
    topic = partitioned_topic(2)
    done = False

    async def unload() -> None:
        number = 0
        while not done:
            await asyncio.sleep(0.3)
            await asyncio.to_thread(admin.unload, f"{topic}-partition-{number % 2}")
            number += 1

    async def publish() -> None:
        async with client.producer(
            topic, batching=batch > 1, batch_max_messages=max(batch, 2), routing=lambda key, _: int(key or 0) % 2
        ) as producer:
            for number in range(300):
                producer.send_nowait(b"%d" % number, key=str(number))
                await asyncio.sleep(0.005)
            await producer.flush()

    found: dict[int, list[ReceivedMessage]] = {0: [], 1: []}
    async with client.reader(topic, receiver_queue_size=20) as reader:
        unloading, publishing = asyncio.create_task(unload()), asyncio.create_task(publish())
        try:
            async with asyncio.timeout(patience(60)):
                while not publishing.done() or await reader.has_message_available():
                    async for message in reader.read_to_end():
                        found[message.id.partition].append(message)
                    await asyncio.sleep(0.01)
        finally:
            done = True
            await asyncio.gather(unloading, publishing)
        assert await numbers(reader) == []
    for partition, messages in found.items():
        ids = [message.id for message in messages]
        assert ids == sorted(set(ids))
        async with client.reader(f"{topic}-partition-{partition}") as again:
            stored = [message.id async for message in again.read_to_end()]
        assert ids == stored  # a message is stored twice if its receipt was lost
        assert {int(message.data) for message in messages} == set(range(partition, 300, 2))


async def test_a_quiet_reader_keeps_its_place(client: Client, admin: Admin, topic: str) -> None:
    """A reader from a time, and one from the latest message on, read nothing old after an unload."""
    await send(client, topic, range(5))
    await asyncio.sleep(0.02)
    async with (
        client.reader(topic, int(time.time() * 1000)) as by_time,
        client.reader(topic, "latest") as latest,
        client.reader(topic) as moved,
    ):
        await moved.seek("latest")
        for number in range(2):
            await asyncio.to_thread(admin.unload, topic)
            await send(client, topic, [10 + number])
        for reader in (by_time, latest, moved):
            assert await numbers(reader) == [10, 11]
            assert not await reader.has_message_available()


async def test_a_broker_that_is_killed(own_broker: Standalone, own_topic: str) -> None:
    """U47: a reader in the middle of a batch continues there when the broker is back."""
    async with Client(own_broker.service_url) as client, client.reader(own_topic) as reader:
        ids = await send(client, own_topic, range(20), batch=10)
        assert [int((await reader.read(timeout=5)).data) for _ in range(5)] == list(range(5))
        await asyncio.to_thread(own_broker.restart, kill=True)
        async with asyncio.timeout(patience(60)):
            assert await numbers(reader) == list(range(5, 20))
        assert reader.positions() == [ids[-1]]


async def test_what_was_read_leaves_no_backlog(client: Client, admin: Admin, topic: str) -> None:
    """The broker's statistics show what is unread; the subscription is removed with the reader."""
    await send(client, topic, range(10))
    async with client.reader(topic, subscription="mine") as reader:
        for _ in range(6):
            await reader.read(timeout=5)
        async with asyncio.timeout(patience(10)):
            while await asyncio.to_thread(admin.backlog, topic, "mine") != 4:
                await asyncio.sleep(0.1)
    async with asyncio.timeout(patience(10)):
        while (await asyncio.to_thread(admin.stats, topic))["subscriptions"] != {}:
            await asyncio.sleep(0.1)


@pytest.mark.both_lines
@pytest.mark.parametrize("batch", [1, 6])
async def test_a_compacted_topic(client: Client, admin: Admin, service_url: str, topic: str, batch: int) -> None:
    """U47: a compacted topic gives only the newest message of each key, and ends, even if the last ones were removed.

    Since 4.0 the broker keeps the last message of a removed key, which has no data.
    """
    removed = [] if version().startswith("3.") else [None, None]
    ids = await send(client, topic, range(12), keys=3, batch=batch)
    async with client.producer(topic) as producer:
        await producer.send(None, key="k0")
        await producer.send(None, key="k2")
    await compact(admin, topic)
    async with client.reader(topic, read_compacted=True) as reader:
        assert await reader.has_message_available()
        before = asyncio.get_running_loop().time()
        assert await data_of(reader) == [b"10", *removed]
        assert asyncio.get_running_loop().time() - before < patience(0.8)
        assert not await reader.has_message_available()
        await send(client, topic, [13], keys=3)
        assert await reader.has_message_available()
        assert await numbers(reader) == [13]
    async with client.reader(topic, ids[2], read_compacted=True) as reader:
        assert await data_of(reader) == [b"10", *removed, b"13"]
    if batch == 1:  # of batches the official client also delivers the removed members, as empty messages
        start = pulsar.MessageId.earliest
        expected = await asyncio.to_thread(official_data, service_url, topic, start, inclusive=True, compacted=True)
        assert expected == [b"10", *(b"" for _ in removed), b"13"]
    async with client.reader(topic) as reader:
        found = [message.data async for message in reader.read_to_end()]
        assert found == [*(b"%d" % number for number in range(12)), None, None, b"13"]


def official_view(url: str, topic: str) -> dict[str, bytes]:
    """Return the content of a table view of the official client."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        view = client.create_table_view(topic)
        found: dict[str, bytes] = {}
        view.for_each(found.__setitem__)
        return found
    finally:
        client.close()


@pytest.mark.both_lines
@pytest.mark.parametrize("compacted", [False, True])
async def test_table_view(client: Client, admin: Admin, service_url: str, topic: str, compacted: bool) -> None:
    """U48: a=1, b=2, a=3, b=null is {a: 3}, compacted or not, as in the official client.

    Changes are reported as they happen, also through an unload.
    """
    async with client.producer(topic) as producer:
        for key, value in [("a", b"1"), ("b", b"2"), ("a", b"3"), ("b", None)]:
            await producer.send(value, key=key)
        if compacted:
            await compact(admin, topic)
        async with client.table_view(topic) as view:
            assert dict(view) == {"a": b"3"}
            assert await asyncio.to_thread(official_view, service_url, topic) == {"a": b"3"}
            changes = view.changes()
            await producer.send(b"4", key="c")
            await asyncio.to_thread(admin.unload, topic)
            await producer.send(None, key="a")
            async with asyncio.timeout(patience(20)):
                assert [(each.key, each.value) for each in [await anext(changes), await anext(changes)]] == [
                    ("c", b"4"),
                    ("a", None),
                ]
            assert dict(view) == {"c": b"4"}


async def test_table_view_of_partitions(client: Client, partitioned_topic: Callable[[int], str]) -> None:
    """U48: 2 000 values of 50 keys in 3 partitions: the newest value of each key, at once and later."""
    topic = partitioned_topic(3)
    await send(client, topic, range(2_000), keys=50)
    async with client.table_view(topic, decode=lambda message: int(message.data)) as view:
        assert dict(view) == {f"k{number % 50}": number for number in range(1_950, 2_000)}
        await send(client, topic, range(2_000, 2_050), keys=50)
        async with asyncio.timeout(patience(10)):
            while min(view.values()) < 2_000:
                await asyncio.sleep(0.01)
        assert dict(view) == {f"k{number % 50}": number for number in range(2_000, 2_050)}
