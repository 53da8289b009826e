"""Dead letters on a real broker: with the native client, the official client, and beside the Java client's own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import pulsar_nack
from pulsar_nack import Consumer, DeadLetterPolicy
from pulsar_nack.errors import UndecodableMessageError
from pulsar_nack.wire._protocol import _entries
from tests.broker._admin import Admin
from tests.broker._java_client import JavaClient
from tests.broker._native import native, port_of
from tests.broker._peers import Got, Java, Official, Out, Wire
from tests.broker._proxy import TcpProxy
from tests.broker.standalone import Standalone
from tests.consumer.official import EXACT, nothing_comes, official_client, take
from tests.patience import patience
from tests.wire.frames import decode_entry

OURS = {"PULSAR_NACK_ATTEMPTS", "PULSAR_NACK_REASON"}
_names = count()


class Ways(NamedTuple):
    """The clients of one test."""

    official: Any
    native: Any
    url: str


@pytest.fixture
async def ways(service_url: str) -> AsyncIterator[Ways]:
    """Both Python clients."""
    async with official_client(service_url) as official, pulsar_nack.connect(service_url) as client:
        yield Ways(official, client, service_url)


@pytest.fixture(params=["native", "official"])
def way(request: pytest.FixtureRequest) -> str:
    """The client of the consumer and the producer under test."""
    return str(request.param)


@asynccontextmanager
async def giving_up(ways: Ways, way: str, topic: str, most: int = 2, **settings: Any) -> AsyncIterator[Consumer]:
    """Open a consumer on the subscription ``sub`` that dead-letters after ``limit`` redeliveries."""
    setting = settings.pop("setting", None) or DeadLetterPolicy(most, initial_subscription="repair")
    about: dict[str, Any] = {"config": EXACT, "dead_letter": setting, **settings}
    if way == "native":
        async with ways.native.subscribe(topic, "sub", initial_position="earliest", **about) as consumer:
            yield consumer
    else:
        async with pulsar_nack.subscribe(ways.official, topic, "sub", **about) as consumer:
            yield consumer


async def nack_to_the_end(consumer: Consumer, payload: bytes, attempts: int) -> None:
    """Nack one message whenever it comes, acknowledge the others, and wait until nothing is in flight."""
    for attempt in range(1, attempts + 1):
        message = await consumer.receive(timeout=patience(5))
        while message.data != payload:
            await message.ack()
            message = await consumer.receive(timeout=patience(5))
        assert message.attempt == attempt
        await message.nack(0.2)
    assert await nothing_comes(consumer, 1.5)


async def letters(ways: Ways, topic: str, count: int) -> list[Got]:
    """Return all ``count`` dead letters, read from the subscription that existed first."""
    reader = await Wire(ways.native).subscribe(topic, "repair")
    found = await reader.read(count, patience(10))
    assert await reader.read(1, 0.5) == []
    await reader.close()
    return found


async def test_to_the_end(ways: Ways, way: str, topic: str, admin: Admin) -> None:
    """U6: a message nacked at each attempt is delivered 3 times, then dead-lettered with all that it had."""
    async with giving_up(ways, way, topic) as consumer:
        poison = Out(b"poison", {"colour": "red"}, "customer 7", "o", 1_700_000_000_123)
        await Wire(ways.native).produce(topic, [poison])
        await nack_to_the_end(consumer, b"poison", 3)
        statistics = consumer.statistics()
        assert (statistics.dead_lettered, statistics.unacked) == (1, 0)
        assert statistics.dead_letter_failures == 0
    (letter,) = await letters(ways, f"{topic}-sub-DLQ", 1)
    assert (letter.payload, letter.key, letter.ordering_key) == (b"poison", "customer 7", "o")
    assert letter.event_time_ms == poison.event_time_ms
    assert letter.properties["colour"] == "red"
    assert letter.properties["REAL_TOPIC"] == topic
    assert letter.properties["REAL_SUBSCRIPTION"] == "sub"
    assert letter.properties["PULSAR_NACK_ATTEMPTS"] == "3"
    assert await backlog_ends(admin, topic)


async def backlog_ends(admin: Admin, topic: str) -> bool:
    """Return whether the subscription's backlog soon is empty."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience(5)):
            while await asyncio.to_thread(admin.backlog, topic, "sub"):
                await asyncio.sleep(0.1)
            return True
    return False


@pytest.mark.parametrize("index_acks", [True, False])
async def test_one_of_a_batch(
    service_url: str, broker_without_index_acks: Standalone, way: str, own_topic: str, index_acks: bool
) -> None:
    """U4: of a batch of 10, 9 acked, one nacked at both attempts: a dead letter of that one, with all that it had."""
    url = service_url if index_acks else broker_without_index_acks.service_url
    async with official_client(url) as official, pulsar_nack.connect(url) as client:
        ways = Ways(official, client, url)
        batch = [Out(b"%d" % each, {"number": str(each)}, f"key {each}") for each in range(10)]
        async with giving_up(ways, way, own_topic, 1, **index_acking(way)) as consumer:
            places = await Wire(client).produce(own_topic, batch, batching=True)
            assert [place[3] for place in places] == list(range(10))
            await nack_to_the_end(consumer, b"7", 2)
        (letter,) = await letters(ways, f"{own_topic}-sub-DLQ", 1)
        assert (letter.payload, letter.key) == (b"7", "key 7")
        origin = ":".join(map(str, places[7]))
        assert letter.properties == {
            "number": "7",
            "REAL_TOPIC": own_topic,
            "REAL_SUBSCRIPTION": "sub",
            "ORIGIN_MESSAGE_ID": origin,
            "ORIGIN_MESSAGE_IDY_TIME": origin,
            "PULSAR_NACK_ATTEMPTS": "2",
            "PULSAR_NACK_REASON": "2 attempts failed",
        }
        assert await nothing_is_left(ways, own_topic)


@pytest.mark.parametrize("index_acks", [True, False])
async def test_the_last_round_of_a_batch_in_which_some_succeed(
    service_url: str, broker_without_index_acks: Standalone, way: str, own_topic: str, index_acks: bool
) -> None:
    """U5: a batch is nacked twice, then all members but one are acknowledged: only that one is dead-lettered."""
    url = service_url if index_acks else broker_without_index_acks.service_url
    async with official_client(url) as official, pulsar_nack.connect(url) as client:
        ways = Ways(official, client, url)
        async with giving_up(ways, way, own_topic, 2, **index_acking(way)) as consumer:
            await Wire(client).produce(own_topic, [Out(b"%d" % each) for each in range(5)], batching=True)
            for attempt in (1, 2, 3):
                messages = await take(consumer, 5, patience(5))
                assert {message.attempt for message in messages} == {attempt}
                for message in messages:
                    await (message.ack() if attempt == 3 and message.data != b"3" else message.nack(0.2))
            assert await nothing_comes(consumer, 1.5)
        assert [letter.payload for letter in await letters(ways, f"{own_topic}-sub-DLQ", 1)] == [b"3"]
        assert await nothing_is_left(ways, own_topic)


def index_acking(way: str) -> dict[str, Any]:
    """Settings of a consumer that acknowledges single members of a batch at the broker, as the native one does."""
    return {} if way == "native" else {"batch_index_ack_enabled": True}


async def nothing_is_left(ways: Ways, topic: str) -> bool:
    """Return whether the subscription's next consumer gets nothing."""
    async with ways.native.subscribe(topic, "sub") as consumer:
        return await nothing_comes(consumer, 1.0)


@pytest.mark.both_lines
@pytest.mark.parametrize("consumer_type", ["exclusive", "failover", "key_shared"])
async def test_on_other_subscriptions(ways: Ways, topic: str, consumer_type: str, admin: Admin) -> None:
    """U6: if the broker does not count, 3 redeliveries also make 4 deliveries, and other messages stay as they are."""
    async with giving_up(ways, "native", topic, 3, consumer_type=consumer_type) as consumer:
        await Wire(ways.native).produce(topic, [Out(each, key="k") for each in (b"before", b"poison", b"after")])
        delivered = {message.data: message for message in await take(consumer, 3, patience(5))}
        await delivered[b"poison"].nack(0.2)
        for attempt in (2, 3, 4):
            message = await consumer.receive(timeout=patience(5))
            assert (message.data, message.attempt) == (b"poison", attempt)
            await message.nack(0.2)
        assert await nothing_comes(consumer, 1.5)
        for data in (b"before", b"after"):
            await delivered[data].ack()
    (letter,) = await letters(ways, f"{topic}-sub-DLQ", 1)
    assert (letter.payload, letter.properties["PULSAR_NACK_ATTEMPTS"]) == (b"poison", "4")
    assert await backlog_ends(admin, topic)


async def test_index_acks_that_the_broker_does_not_know(broker_without_index_acks: Standalone, way: str) -> None:
    """U25: index acks on here and off at the broker, whose count stays at 1: the third attempt is the last."""
    url, topic = broker_without_index_acks.service_url, f"persistent://public/default/u25-{way}-{os.getpid()}"
    async with official_client(url) as official, pulsar_nack.connect(url) as client:
        ways = Ways(official, client, url)
        async with giving_up(ways, way, topic, **index_acking(way)) as consumer:
            await Wire(client).produce(topic, [Out(each) for each in (b"0", b"poison", b"2")], batching=True)
            await nack_to_the_end(consumer, b"poison", 3)
        assert [letter.payload for letter in await letters(ways, f"{topic}-sub-DLQ", 1)] == [b"poison"]
        assert await nothing_is_left(ways, topic)


async def test_the_count_goes_on_over_restarts(ways: Ways, way: str, topic: str, tmp_path: Path) -> None:
    """U7: closed and reopened between attempts, while the broker counts from 0 again: 3 attempts in all."""
    seen = []
    async with giving_up(ways, way, topic):
        await Wire(ways.native).produce(topic, [Out(b"poison")])
    for _ in range(3):
        async with giving_up(ways, way, topic, durable=tmp_path / "durable") as consumer:
            message = await consumer.receive(timeout=patience(5))
            seen.append(message.attempt)
            await message.nack(0.3)
    assert seen == [1, 2, 3]
    async with giving_up(ways, way, topic, durable=tmp_path / "durable") as consumer:
        assert await nothing_comes(consumer, 1.5)
    found = await letters(ways, f"{topic}-sub-DLQ", 1)
    assert [letter.properties["PULSAR_NACK_ATTEMPTS"] for letter in found] == ["3"]


async def test_partitions_share_one_topic(
    ways: Ways, way: str, partitioned_topic: Callable[[int], str], admin: Admin
) -> None:
    """U15: messages of all partitions go to one dead-letter topic, named after the partitioned topic."""
    topic = partitioned_topic(3)
    async with giving_up(ways, way, topic, 1) as consumer:
        await Wire(ways.native).produce(topic, [Out(b"%d" % each) for each in range(6)])
        for message in await take(consumer, 6, patience(5)):
            await message.dead_letter("bad")
        assert consumer.statistics().dead_lettered == 6
    found = await letters(ways, f"{topic}-sub-DLQ", 6)
    assert {letter.payload for letter in found} == {b"%d" % each for each in range(6)}
    assert {letter.properties["REAL_TOPIC"] for letter in found} == {topic}
    assert {letter.properties["ORIGIN_MESSAGE_ID"].split(":")[2] for letter in found} == {"0", "1", "2"}


async def test_large_ones_go_in_chunks(ways: Ways, way: str, topic: str) -> None:
    """A message that was too large for one entry is chunked as a dead letter too."""
    data = os.urandom(6 << 20)
    async with giving_up(ways, way, topic, 1) as consumer:
        await Wire(ways.native).produce(topic, [Out(data, {"a": "b"})], chunking=True)
        await (await consumer.receive(timeout=patience(5))).dead_letter("too large")
    (letter,) = await letters(ways, f"{topic}-sub-DLQ", 1)
    assert letter.payload == data
    assert letter.properties["a"] == "b"


async def test_what_cannot_be_read(ways: Ways, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that cannot be unpacked is one dead letter, as it is stored; other messages are delivered as usual."""
    await Wire(ways.native).produce(topic, [Out(b"%d" % each) for each in range(5)], batching=True, compression="zlib")
    await Wire(ways.native).produce(topic, [Out(b"readable")])

    def damaged(*_: object) -> bytes:
        raise UndecodableMessageError("payload: damaged zlib data")

    monkeypatch.setattr(_entries, "decompress", damaged)  # before the first message comes
    async with giving_up(ways, "native", topic) as consumer:
        message = await consumer.receive(timeout=patience(5))
        assert message.data == b"readable"
        await message.ack()
        while not consumer.statistics().dead_lettered:
            await asyncio.sleep(0.05)
    monkeypatch.undo()
    (letter,) = await letters(ways, f"{topic}-sub-DLQ", 1)
    assert letter.properties["PULSAR_NACK_REASON"].startswith("UndecodableMessageError: payload: damaged zlib")
    entry = decode_entry(letter.payload)
    assert [payload for _, _, payload in entry.members()] == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.both_lines
async def test_as_the_java_client_does_it(ways: Ways, java: JavaClient, way: str, topic: str, admin: Admin) -> None:
    """U15: Java's consumer and ours write equal dead letters of the same messages, except for our two properties."""
    messages = [
        Out(b"plain"),
        Out(b"keyed", {"colour": "red", "grüße": "☀"}, "k", "o", 1_700_000_000_123),
        Out(b"bytes", key_bytes=b"\x00\xff\x10"),
    ]
    name = f"g{next(_names)}"
    await asyncio.to_thread(java.call, "giving_up", name, topic, "java", "1")
    async with giving_up(ways, way, topic, 1) as consumer:
        reader = await Java(java).subscribe(f"{topic}-java-DLQ", "repair")
        await Java(java).produce(topic, messages)
        await asyncio.to_thread(java.call, "nack", name, "6", "20000")
        by_java = {got.payload: got for got in await reader.read(3)}
        for message in await take(consumer, 3, patience(5)):
            await message.nack(0.1)
        for message in await take(consumer, 3, patience(5)):
            await message.nack(0.1)
        assert await nothing_comes(consumer, 1)
    await reader.close()
    await asyncio.to_thread(java.call, "close", name)
    reader = await Java(java).subscribe(f"{topic}-sub-DLQ", "repair")
    ours = {got.payload: got for got in await reader.read(3)}
    await reader.close()
    assert ours.keys() == by_java.keys() == {message.payload for message in messages}
    for payload, theirs in by_java.items():
        found, properties = ours[payload], dict(theirs.properties)
        assert properties.pop("REAL_SUBSCRIPTION") == "java"
        assert found.properties.pop("REAL_SUBSCRIPTION") == "sub"
        assert {found.properties.pop(each) for each in OURS} == {"2", "2 attempts failed"}
        assert found.properties == properties
        assert (found.key, found.ordering_key, found.event_time_ms) == (
            theirs.key,
            theirs.ordering_key,
            theirs.event_time_ms,
        )
        assert found.is_key_encoded == (theirs.is_key_encoded and way == "native")


async def test_the_official_client_reads_them(ways: Ways, way: str, topic: str) -> None:
    """The official client reads dead letters with equal bytes, properties and keys."""
    async with giving_up(ways, way, topic, 1) as consumer:
        await Wire(ways.native).produce(topic, [Out(b"bad", {"colour": "red"}, "k", "o", 5)])
        await (await consumer.receive(timeout=patience(5))).dead_letter("no such customer")
    reader = await Official(ways.official).subscribe(f"{topic}-sub-DLQ", "repair")
    (letter,) = await reader.read(1)
    await reader.close()
    assert (letter.payload, letter.key, letter.ordering_key, letter.event_time_ms) == (b"bad", "k", "o", 5)
    assert letter.properties["PULSAR_NACK_REASON"] == "no such customer"


async def test_connections_that_are_cut(ways: Ways, service_url: str, topic: str) -> None:
    """While connections are cut ten times, each of 200 dead letters arrives, and no message is left behind."""
    await Wire(ways.native).produce(topic, [Out(b"%d" % each) for each in range(200)])
    setting = DeadLetterPolicy(1, initial_subscription="repair")
    proxying = TcpProxy(port_of(service_url))
    async with proxying as proxy, native(service_url, topic, proxy=proxy, dead_letter=setting) as consumer:
        calls: list[asyncio.Task[None]] = []
        for number in range(200):
            message = await consumer.receive(timeout=patience(5))
            calls.append(asyncio.create_task(message.dead_letter("bad")))
            if number % 20 == 19:
                await asyncio.sleep(0.001 * (number % 7))
                proxy.cut()
        await asyncio.wait_for(asyncio.gather(*calls), patience(15))
        assert await nothing_comes(consumer, 1)
        assert consumer.statistics().unacked == 0
    reader = await Wire(ways.native).subscribe(f"{topic}-sub-DLQ", "repair")
    missing = {b"%d" % each for each in range(200)}
    while missing:  # some may be stored twice
        (letter,) = await reader.read(1)
        missing.discard(letter.payload)
    await reader.close()


WORKER = """
import asyncio, os, signal, sys
import pulsar_nack
from pulsar_nack import DeadLetterPolicy
from tests.wire.frames import messages_of

async def main(url, topic):
    async with pulsar_nack.connect(url) as client:
        setting = DeadLetterPolicy(1, initial_subscription="repair")
        async with client.subscribe(topic, "sub", initial_position="earliest", dead_letter=setting) as consumer:
            publish = consumer._engine.letters.dead._publisher.publish
            async def published(*args, **about):
                await publish(*args, **about)
                os.kill(os.getpid(), signal.SIGKILL)
            consumer._engine.letters.dead._publisher.publish = published
            await (await consumer.receive()).dead_letter("killed")

asyncio.run(main(*sys.argv[1:]))
"""


async def test_killed_between_publishing_and_acknowledging(ways: Ways, topic: str) -> None:
    """U9: killed after publishing the dead letter and before acknowledging: two dead letters, never none."""
    await Wire(ways.native).produce(topic, [Out(b"bad")])
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", WORKER, ways.url, topic)
    assert await asyncio.wait_for(worker.wait(), patience(15)) == -signal.SIGKILL
    async with giving_up(ways, "native", topic, 1) as consumer:
        await (await consumer.receive(timeout=patience(5))).dead_letter("again")
    found = await letters(ways, f"{topic}-sub-DLQ", 2)
    assert [letter.properties["PULSAR_NACK_REASON"] for letter in found] == ["killed", "again"]
    assert len({letter.properties["ORIGIN_MESSAGE_ID"] for letter in found}) == 1
