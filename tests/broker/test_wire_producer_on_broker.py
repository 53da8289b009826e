"""The native client's producers on a real broker: broken connections, a dead broker, deduplication, access modes."""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import pulsar_nack
from pulsar_nack import MessageId
from pulsar_nack.errors import BrokerRefusedError
from pulsar_nack.wire import Client, ClientOptions, Producer
from tests.broker._admin import Admin, AdminError
from tests.broker._native import no_task_left, port_of, through
from tests.broker._proxy import TcpProxy
from tests.broker.standalone import Standalone

QUICK = ClientOptions(backoff_maximum=0.3)  # after short sessions the pauses between sessions grow
NUMBERS = [b"%d" % number for number in range(3_000)]


async def stored(url: str, topic: str) -> list[bytes]:
    """Return all messages of a topic, in order."""
    found: list[bytes] = []
    async with (
        pulsar_nack.connect(url) as client,
        client.subscribe(topic, "all", consumer_type="exclusive", initial_position="earliest") as consumer,
    ):
        with contextlib.suppress(TimeoutError):
            while True:
                message = await consumer.receive(timeout=1)
                found.append(message.data)
                await message.ack()
    return found


@pytest.fixture
def deduplicated_topic(admin: Admin) -> str:
    """Return a topic in a namespace in which the broker drops duplicates."""
    with contextlib.suppress(AdminError):
        admin.request("PUT", "namespaces/public/deduplicated", {})
    admin.request("POST", "namespaces/public/deduplicated/deduplication", body=True)
    return f"persistent://public/deduplicated/{uuid.uuid4().hex}"


@asynccontextmanager
async def cutting(proxy: TcpProxy) -> AsyncIterator[None]:
    """Break all connections repeatedly, at once or in the middle of what the broker sends."""
    chance = random.Random(7)

    async def cut() -> None:
        while True:
            await asyncio.sleep(chance.uniform(0.05, 0.3))
            proxy.cut() if chance.random() < 0.5 else proxy.cut_after(chance.randrange(200))

    task = asyncio.create_task(cut())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def send_slowly(producer: Producer) -> list[MessageId]:
    """Send all numbers within about 3 s, without waiting for receipts."""
    sending = []
    for number, payload in enumerate(NUMBERS):
        sending.append(producer.send_nowait(payload))
        if number % 100 == 0:
            await asyncio.sleep(0.1)
    return await asyncio.gather(*sending)


@pytest.mark.parametrize("batching", [False, True])
async def test_connections_that_break_with_deduplication(
    service_url: str, deduplicated_topic: str, batching: bool
) -> None:
    """However connections break while messages are sent, each is stored once, in order."""
    with no_task_left():
        async with TcpProxy(port_of(service_url)) as proxy:
            async with (
                Client(service_url, QUICK, dial=through(proxy)) as client,
                client.producer(deduplicated_topic, batching=batching, batch_delay=0.005, name="p") as producer,
                cutting(proxy),
            ):
                await send_slowly(producer)
            assert proxy.accepted > 3
    assert await stored(service_url, deduplicated_topic) == NUMBERS


async def test_connections_that_break_without_deduplication(service_url: str, topic: str) -> None:
    """Without deduplication some may be stored twice, but none is missing, and the first of each are in order."""
    async with TcpProxy(port_of(service_url)) as proxy:
        async with (
            Client(service_url, QUICK, dial=through(proxy)) as client,
            client.producer(topic) as producer,
            cutting(proxy),
        ):
            ids = await send_slowly(producer)
        assert proxy.accepted > 3
    assert ids == sorted(ids)
    found = await stored(service_url, topic)
    assert list(dict.fromkeys(found)) == NUMBERS


async def test_chunks_on_connections_that_break(service_url: str, topic: str) -> None:
    """Chunked messages arrive whole, at least once, however connections break while chunks are sent."""
    payloads = [bytes([number]) * (200_000 + number) for number in range(60)]
    async with TcpProxy(port_of(service_url)) as proxy:
        async with (
            Client(service_url, QUICK, dial=through(proxy)) as client,
            client.producer(topic, chunking=True, chunk_max_bytes=16_384) as producer,
            cutting(proxy),
        ):
            for payload in payloads:
                await producer.send(payload)
        assert proxy.accepted > 1
    assert list(dict.fromkeys(await stored(service_url, topic))) == payloads


async def test_a_broker_that_is_killed(own_broker: Standalone, own_topic: str) -> None:
    """What is sent while the broker is dead is stored once it is back, with all that it had confirmed before."""
    topic = own_topic
    async with (
        pulsar_nack.connect(own_broker.service_url) as client,
        client.producer(topic, batching=True, send_timeout=90) as producer,
    ):
        await producer.send(b"first")
        sending = asyncio.create_task(send_slowly(producer))
        await asyncio.sleep(1)
        await asyncio.to_thread(own_broker.kill)
        await asyncio.sleep(1)
        await asyncio.to_thread(own_broker.start)
        ids = await sending
    assert len(set(ids)) == len(NUMBERS)
    found = await stored(own_broker.service_url, topic)
    assert list(dict.fromkeys(found)) == [b"first", *NUMBERS]


async def test_names_and_sequence_ids(service_url: str, deduplicated_topic: str) -> None:
    """A name exists once; the next producer with it continues its sequence ids, and an old one is no new message."""
    async with pulsar_nack.connect(service_url) as client:
        async with client.producer(deduplicated_topic, name="p") as producer:
            assert producer.last_sequence_id == -1
            assert [(await producer.send(b"%d" % number, sequence_id=10 * number)).entry for number in range(3)] == [
                0,
                1,
                2,
            ]
            with pytest.raises(BrokerRefusedError, match="ProducerBusy"):
                await client.producer(deduplicated_topic, name="p")
        async with client.producer(deduplicated_topic, name="p") as producer:
            assert producer.last_sequence_id == 20
            assert await producer.send(b"again", sequence_id=20) == MessageId(-1, -1)
            assert (await producer.send(b"3")).entry == 3
    assert await stored(service_url, deduplicated_topic) == [b"0", b"1", b"2", b"3"]


async def test_producers_that_are_the_only_one(service_url: str, topic: str) -> None:
    """A waiting producer gets its turn when the other is closed; a fencing one takes over, and the other raises."""
    async with pulsar_nack.connect(service_url) as client:
        first = await client.producer(topic, access_mode="exclusive")
        with pytest.raises(BrokerRefusedError):
            await client.producer(topic, access_mode="exclusive")
        waiting = asyncio.ensure_future(_opened(client, topic, "wait_for_exclusive"))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        await first.send(b"first")
        await first.aclose()
        async with await waiting as second:
            await second.send(b"second")
        async with (
            client.producer(topic, access_mode="exclusive") as third,
            client.producer(topic, access_mode="exclusive_with_fencing") as fourth,
        ):
            await fourth.send(b"fourth")
            with pytest.raises(BrokerRefusedError, match="ProducerFenced"):
                await third.send(b"too late")
    assert await stored(service_url, topic) == [b"first", b"second", b"fourth"]


async def _opened(client: Client, topic: str, access_mode: Any) -> Producer:
    return await client.producer(topic, access_mode=access_mode)


async def test_a_terminated_topic(service_url: str, admin: Admin, topic: str) -> None:
    """A producer of a terminated topic raises, also for messages being sent."""
    async with pulsar_nack.connect(service_url) as client, client.producer(topic) as producer:
        await producer.send(b"a")
        path = topic.replace("://", "/")
        admin.request("POST", f"{path}/terminate")
        with pytest.raises(BrokerRefusedError, match="TopicTerminatedError"):
            await producer.send(b"b")


async def test_an_unloaded_topic(service_url: str, admin: Admin, partitioned_topic: Callable[[int], str]) -> None:
    """A topic that the broker unloads and loads loses nothing that is sent meanwhile."""
    topic = partitioned_topic(3)
    async with pulsar_nack.connect(service_url) as client, client.producer(topic, batching=True) as producer:
        sending = asyncio.create_task(send_slowly(producer))
        for partition in range(3):
            await asyncio.sleep(0.5)
            await asyncio.to_thread(admin.unload, f"{topic}-partition-{partition}")
        ids = await sending
    assert len(set(ids)) == len(NUMBERS)
    found: set[bytes] = set()
    for partition in range(3):
        found |= set(await stored(service_url, f"{topic}-partition-{partition}"))
    assert found == set(NUMBERS)


@pytest.mark.parametrize("way", ["batching", "chunking"])
async def test_a_program_that_starts_again(service_url: str, admin: Admin, deduplicated_topic: str, way: str) -> None:
    """O10, O45: a producer begins below where it was: what is new is stored once, with real ids, and nothing else."""
    topic = deduplicated_topic
    options: dict[str, Any] = {"name": "import", way: True, **({"chunk_max_bytes": 2_000} if way == "chunking" else {})}
    payloads = [b"%03d" % number * (2_000 if way == "chunking" else 1) for number in range(15)]

    async def send(client: Client, numbers: range) -> list[MessageId]:
        async with client.producer(topic, **options) as producer:
            return await asyncio.gather(*(producer.send(payloads[number], sequence_id=number) for number in numbers))

    async with pulsar_nack.connect(service_url) as client:
        await send(client, range(10))
        before = entries_of(admin, topic)
        ids = await send(client, range(5, 15))
    assert [each.ledger for each in ids[:5]] == [-1] * 5
    assert all(each.ledger >= 0 for each in ids[5:])
    assert entries_of(admin, topic) - before == (5 * 4 if way == "chunking" else 1)
    assert await stored(service_url, topic) == payloads


def entries_of(admin: Admin, topic: str) -> int:
    """Return how many entries a topic has."""
    entries = admin.request("GET", f"{topic.replace('://', '/')}/internalStats")["numberOfEntries"]
    assert isinstance(entries, int)
    return entries


@pytest.mark.both_lines
@pytest.mark.parametrize("deduplicates", [False, True])
async def test_parts_while_the_topic_is_unloaded(
    service_url: str, admin: Admin, topic: str, deduplicated_topic: str, deduplicates: bool
) -> None:
    """O43, O44: all chunked messages are stored whole, a Shared subscription gets them, and few chunks are wasted."""
    topic = deduplicated_topic if deduplicates else topic
    chance = random.Random(7)
    rounds, each_round = 6, 20
    payloads = [b"%03d" % number * 83_000 for number in range(rounds * each_round)]
    async with (
        pulsar_nack.connect(service_url) as client,
        client.subscribe(topic, "shared", initial_position="earliest") as consumer,
        client.producer(topic, chunking=True, chunk_max_bytes=100_000) as producer,
    ):
        ids: list[MessageId] = []
        for number in range(rounds):
            mine = payloads[number * each_round : (number + 1) * each_round]
            sending = [asyncio.ensure_future(producer.send(payload)) for payload in mine]
            await asyncio.sleep(chance.uniform(0, 0.06))
            await asyncio.to_thread(admin.unload, topic)
            ids += await asyncio.gather(*sending)
        delivered: list[bytes] = []
        while set(delivered) != set(payloads):
            message = await consumer.receive(timeout=20)
            delivered.append(message.data)
            await message.ack()
    assert all(each.ledger == -1 or len(each.parts) == 3 for each in ids)
    if deduplicates:
        assert len(delivered) == len(payloads)
        assert entries_of(admin, topic) < 3 * len(payloads) * 1_100 // 720
