"""Topics that are deleted or created again, patterns, seeks and late brokers, with both clients on a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pulsar
import pytest

import pulsar_nack
from pulsar_nack import InvalidArgumentError, MessageId
from pulsar_nack.errors import TopicNotFoundError
from pulsar_nack.wire import KeyShared
from tests.broker._admin import Admin, AdminError
from tests.broker._native import port_of
from tests.consumer.official import (
    Subscribe,
    is_over_wire,
    nothing_comes,
    numbered,
    official_client,
    payloads,
    send,
    subscribing,
    take,
)
from tests.patience import patience
from tests.processes import run_python

LATEST = MessageId.from_bytes(pulsar.MessageId.latest.serialize())
EARLIEST = MessageId(-1, -1)


@pytest.fixture
async def clients(service_url: str, transport: str) -> AsyncIterator[tuple[Any, Subscribe]]:
    """An official client to send with, and what subscribes with either client."""
    assert transport
    async with official_client(service_url) as client, subscribing(client, service_url) as subscribe:
        yield client, subscribe


@pytest.fixture
def strict_namespace(admin: Admin) -> Iterator[str]:
    """A namespace in which only an administrator creates topics."""
    name = f"public/strict-{uuid.uuid4().hex[:8]}"
    admin.request("PUT", f"namespaces/{name}", {})
    admin.request("POST", f"namespaces/{name}/autoTopicCreation", {"allowAutoTopicCreation": False})
    yield name
    with contextlib.suppress(AdminError):
        admin.request("DELETE", f"namespaces/{name}?force=true")


async def test_receive_raises_when_the_topic_is_deleted(
    clients: tuple[Any, Subscribe], admin: Admin, strict_namespace: str
) -> None:
    """O9: a waiting receive raises; once the topic exists again the native client continues from its first message."""
    _, subscribe = clients
    topic = f"persistent://{strict_namespace}/one"
    admin.request("PUT", f"persistent/{strict_namespace}/one")
    consumer = await subscribe(topic)
    waiting = asyncio.create_task(consumer.receive())
    await asyncio.sleep(0.1)
    await asyncio.to_thread(admin.delete, topic)
    with pytest.raises(TopicNotFoundError, match="was deleted, and may not be created again"):
        await asyncio.wait_for(waiting, patience(5))
    with pytest.raises(TopicNotFoundError):
        await consumer.receive(timeout=patience(5))
    if is_over_wire():
        admin.request("PUT", f"persistent/{strict_namespace}/one")
        await send(clients[0], topic, numbered(5))
        async with asyncio.timeout(patience(20)):
            while not consumer.port.is_connected:
                await asyncio.sleep(0.05)
        assert payloads(await take(consumer, 5)) == numbered(5)


async def test_a_topic_of_a_pattern_that_is_made_again_at_once(service_url: str, admin: Admin, topic: str) -> None:
    """O55: all messages of the new topic are delivered."""
    async with (
        official_client(service_url) as client,
        pulsar_nack.connect(service_url) as native,
        native.subscribe(re.compile(f"{topic}.*"), "sub") as consumer,
    ):
        await send(client, topic, [b"old"])
        await (await consumer.receive(timeout=patience(10))).ack()
        for _ in range(3):
            await asyncio.to_thread(admin.delete, topic)
            await send(client, topic, numbered(20))
            messages = await take(consumer, 20, patience(10))
            assert payloads(messages) == sorted(numbered(20))
            for message in messages:
                await message.ack()


async def test_a_pattern_does_not_create_topics_again(service_url: str, admin: Admin, topic: str) -> None:
    """O9: a deleted topic stays deleted, though this broker creates topics for subscribers."""
    async with (
        official_client(service_url) as client,
        pulsar_nack.connect(service_url) as native,
        native.subscribe(re.compile(f"{topic}.*"), "sub", initial_position="earliest") as consumer,
    ):
        await send(client, topic, [b"x"])
        await consumer.receive(timeout=patience(10))
        await asyncio.to_thread(admin.delete, topic)
        await asyncio.sleep(2)
        assert topic not in await native.topics()
        assert await nothing_comes(consumer)


@pytest.mark.parametrize("form", ["{0}-.*", "^{0}-.*", "public/default/{0}-.*", "^persistent://public/default/{0}-.*"])
async def test_patterns_mean_the_same_with_both_clients(clients: tuple[Any, Subscribe], topic: str, form: str) -> None:
    """O18: a pattern may name the namespace or be anchored; one with a flag works, or is refused at once."""
    client, subscribe = clients
    await send(client, f"{topic}-1", [b"x"])
    await send(client, f"{topic}-2", [b"y"])
    text = form.format(topic.rpartition("/")[2])
    if not is_over_wire():
        options = {"is_pattern_topic": True, "initial_position": pulsar.InitialPosition.Earliest}
        assert payloads(await take(await subscribe(text, **options), 2)) == [b"x", b"y"]
        with pytest.raises(InvalidArgumentError, match="flags"):
            await subscribe(f"(?i){text}", **options)
        return
    for pattern in (re.compile(text), re.compile(f"(?i){text[:-5]}{text[-5:].upper()}")):
        given: Any = pattern
        consumer = await subscribe(given, initial_position="earliest")
        assert payloads(await take(consumer, 2)) == [b"x", b"y"]
        await consumer.aclose()


REFUSED = """
import asyncio, sys
import pulsar, pulsar.asyncio, pulsar_nack

async def main():
    client = pulsar.asyncio.Client(sys.argv[1], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    for pattern in sys.argv[2:]:
        try:
            async with asyncio.timeout(30), pulsar_nack.subscribe(client, pattern, "s", is_pattern_topic=True):
                print("taken")
        except pulsar_nack.InvalidArgumentError:
            print("refused")
    await client.close()
    await asyncio.sleep(0.05)

asyncio.run(main())
"""
HOSTILE = ["persistent://public/default/(?i)x", "(?P<x>a)", "(?<=a)b", "a[", "((a{900}){900}){900}", "a{3,1}", r"\x4"]
TAKEN = [r"[\w.-]+-\d{1,3}", "(?!x)a|b", "[^a-z_]+?$", "größe-.*", "a{1000}", "(((((a+)+)+)+)+)", "x" * 1_000]


def test_no_pattern_ends_the_process(service_url: str) -> None:
    """O56: patterns at which the official library would abort are refused; it accepts all that are passed on."""
    done = run_python("-c", REFUSED, service_url, *HOSTILE, *TAKEN)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["refused"] * len(HOSTILE) + ["taken"] * len(TAKEN)


async def test_all_topics_seek_to_their_ends(
    clients: tuple[Any, Subscribe], partitioned_topic: Callable[[int], str], topic: str
) -> None:
    """O57: a list seeks to the earliest and the latest id, and (O7) to a datetime, in every topic and partition."""
    client, subscribe = clients
    topics = [topic, partitioned_topic(2)]
    earliest: Any = "earliest" if is_over_wire() else pulsar.InitialPosition.Earliest
    consumer = await subscribe(topics, initial_position=earliest)
    for each in topics:
        await send(client, each, numbered(4))
    for message in await take(consumer, 8):
        await message.ack()
    for position in (EARLIEST, datetime(2001, 1, 1, tzinfo=UTC), 0):
        await consumer.seek(position)
        delivered = await take(consumer, 8)
        assert payloads(delivered) == sorted(numbered(4) * 2)
        for message in delivered:
            await message.ack()
    if not is_over_wire():  # there O4 holds it
        await consumer.seek(EARLIEST)
        await consumer.seek(LATEST)
        for each in topics:
            await send(client, each, [b"new"])
        assert payloads(await take(consumer, 2)) == [b"new"] * 2
    with pytest.raises(InvalidArgumentError, match="not in seconds"):
        await consumer.seek(int(datetime.now(UTC).timestamp()))


@pytest.mark.parametrize("what", ["subscribe", "producer", "topics"])
async def test_a_broker_that_comes_up_later(service_url: str, topic: str, what: str) -> None:
    """O13: subscribing succeeds although the broker starts to listen only 2 s after the call."""
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    pumps: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError), contextlib.closing(writer):
            while data := await reader.read(65_536):
                writer.write(data)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port_of(service_url))
        pumps.update(map(asyncio.create_task, (pump(reader, far_writer), pump(far_reader, writer))))

    async def later() -> asyncio.Server:
        await asyncio.sleep(2)
        return await asyncio.start_server(accept, "127.0.0.1", port)

    starting = asyncio.create_task(later())
    async with asyncio.timeout(patience(20)), pulsar_nack.connect(f"pulsar://127.0.0.1:{port}") as client:
        if what == "topics":
            assert isinstance(await client.topics(), list)
        else:
            async with client.producer(topic) if what == "producer" else client.subscribe(topic, "sub"):
                pass
    (await starting).close()
    await asyncio.gather(*pumps)


@pytest.mark.parametrize("limit", ["maxUnackedMessagesPerConsumer", "maxUnackedMessagesPerSubscription"])
async def test_a_limit_of_the_namespace_is_reported(
    service_url: str,
    admin: Admin,
    strict_namespace: str,
    limit: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """O20: when a consumer holds the namespace's limit nothing more comes; a log line and the statistics say why."""
    monkeypatch.setattr("pulsar_nack.consumer._consumer_state.HELD_BACK_S", 1.0)
    admin.request("POST", f"namespaces/{strict_namespace}/{limit}", 100)
    admin.request("PUT", f"persistent/{strict_namespace}/one")
    topic = f"persistent://{strict_namespace}/one"
    async with (
        official_client(service_url) as client,
        pulsar_nack.connect(service_url) as native,
        native.subscribe(topic, "sub", initial_position="earliest", receiver_queue_size=50) as consumer,
    ):
        await send(client, topic, numbered(1_000))
        held, last_at, loop = 0, 0.0, asyncio.get_running_loop()
        async with asyncio.timeout(patience(30)):
            while held < 100 or loop.time() < last_at + patience(1):  # a busy broker also pauses before the limit
                with contextlib.suppress(TimeoutError):
                    await (await consumer.receive(timeout=0.2)).nack(600)
                    held, last_at = held + 1, loop.time()
        assert 100 <= held < 300
        waiting = asyncio.create_task(consumer.receive())
        async with asyncio.timeout(patience(10)):
            while not consumer.statistics().is_held_back:
                await asyncio.sleep(0.05)
        assert f"nothing comes while {held} messages are unacknowledged here" in caplog.text
        waiting.cancel()


async def test_a_later_consumer_of_key_shared_gets_its_keys_while_one_is_held(service_url: str, topic: str) -> None:
    """O20: with `allow_out_of_order`, also on brokers before 4.0, where it gets nothing at all without."""
    settings: dict[str, Any] = {"consumer_type": "key_shared", "key_shared": KeyShared(allow_out_of_order=True)}
    async with (
        pulsar_nack.connect(service_url) as native,
        native.producer(topic) as producer,
        native.subscribe(topic, "sub", initial_position="earliest", **settings) as first,
    ):
        await producer.send(b"held", key="0")
        await (await first.receive(timeout=patience(10))).nack(600)
        async with native.subscribe(topic, "sub", **settings) as later:
            await asyncio.gather(*(producer.send(b"x", key=str(number)) for number in range(100)))
            for _ in range(10):
                await (await later.receive(timeout=patience(5))).ack()
