"""The retry topic on a real broker: in time, and compatible with the Java client's, in both directions."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest

import pulsar_nack
from pulsar_nack import Consumer, DeadLetterPolicy, InvalidArgumentError
from pulsar_nack.consumer import RetryTopicPolicy
from tests.broker._admin import Admin
from tests.broker._java_client import JavaClient
from tests.broker._peers import Got, Java, Out, Wire
from tests.consumer.official import EXACT, nothing_comes, official_client, take
from tests.patience import patience

OURS = ("PULSAR_NACK_ATTEMPTS", "PULSAR_NACK_REASON", "PULSAR_NACK_DELIVER_AT")
MESSAGES = [
    Out(b"plain"),
    Out(b"keyed", {"colour": "red", "grüße": "☀"}, "k", "o", 1_700_000_000_123),
]
_names = count()


@pytest.fixture
async def clients(service_url: str) -> AsyncIterator[tuple[Any, Any]]:
    """The official client and the native one."""
    async with official_client(service_url) as official, pulsar_nack.connect(service_url) as client:
        yield official, client


@pytest.fixture(params=["native", "official"])
def way(request: pytest.FixtureRequest) -> str:
    """The client of the consumer under test."""
    return str(request.param)


@pytest.fixture(params=[0, 2], ids=["single", "two partitions"])
def any_topic(request: pytest.FixtureRequest, topic: str, partitioned_topic: Callable[[int], str]) -> str:
    """A topic without partitions, and one with two."""
    return partitioned_topic(request.param) if request.param else topic


@asynccontextmanager
async def retrying(
    clients: tuple[Any, Any], way: str, topic: str, most: int = 5, **settings: Any
) -> AsyncIterator[Consumer]:
    """Open a consumer on the subscription ``sub`` with a retry topic."""
    about: dict[str, Any] = {
        "config": EXACT,
        "retry_topic": RetryTopicPolicy(),
        "dead_letter": DeadLetterPolicy(most, java_names=True),
        "initial_position": "earliest",
        **settings,
    }
    official, native = clients
    if way == "native":
        async with native.subscribe(topic, "sub", **about) as consumer:
            yield consumer
    else:
        async with pulsar_nack.subscribe(official, topic, "sub", **about) as consumer:
            yield consumer


async def call(java: JavaClient, *words: str) -> list[list[str]]:
    """Have the Java client do something."""
    return await asyncio.to_thread(java.call, *words)


@pytest.mark.both_lines
async def test_exactly_in_time(clients: tuple[Any, Any], way: str, topic: str, admin: Admin) -> None:
    """U15: 3 s, twice, then the dead-letter topic; the original is acknowledged, and no message comes early."""
    async with retrying(clients, way, topic, 2) as consumer:
        repair = await Wire(clients[1]).subscribe(f"{topic}-sub-DLQ", "repair")
        await Wire(clients[1]).produce(topic, MESSAGES[:1])
        due_at = 0.0
        for attempt in (1, 2, 3):
            message = await consumer.receive(timeout=patience(10))
            late = time.monotonic() - due_at if due_at else 0.0
            assert (message.attempt, message.data) == (attempt, b"plain")
            assert message.topic == (topic if attempt == 1 else f"{topic}-sub-RETRY")
            assert -0.01 <= late < patience(0.3), late
            due_at = time.monotonic() + 3
            await message.reconsume_later(3)
        (letter,) = await repair.read(1, patience(10))
        await repair.close()
        assert letter.properties["RECONSUMETIMES"] == "3"
        statistics = consumer.statistics()
        assert (statistics.retried, statistics.dead_lettered, statistics.unacked) == (2, 1, 0)
        assert await nothing_comes(consumer, 0.5)
    assert await asyncio.to_thread(admin.backlog, f"{topic}-sub-RETRY", "sub") == 0


async def test_a_long_nack_waits_there(clients: tuple[Any, Any], way: str, topic: str, admin: Admin) -> None:
    """U45: a nack for 4 s, ``spill_after`` 1 s: the broker has nothing unacknowledged, and attempt 2 comes in time."""
    async with retrying(clients, way, topic, retry_topic=RetryTopicPolicy(spill_after=1)) as consumer:
        await Wire(clients[1]).produce(topic, MESSAGES[:1])
        message = await consumer.receive(timeout=patience(10))
        due_at = time.monotonic() + 4
        await message.nack(4)
        await asyncio.sleep(1)
        for name in (topic, f"{topic}-sub-RETRY"):
            found = await asyncio.to_thread(admin.subscription, name, "sub")
            assert found["unackedMessages"] == 0, name
        assert consumer.statistics().unacked == 0
        message = await consumer.receive(timeout=patience(10))
        assert -0.01 <= time.monotonic() - due_at < patience(0.3)
        assert (message.attempt, message.topic) == (2, f"{topic}-sub-RETRY")
        await message.ack()


async def test_at_the_limit_nacks_wait_there(clients: tuple[Any, Any], way: str, topic: str) -> None:
    """U17, U33: with 10 messages unacknowledged, the limit, further nacks wait in the retry topic."""
    settings: dict[str, Any] = {"receiver_queue_size": 100, "unacked_limit": 110}
    settings["retry_topic"] = RetryTopicPolicy(spill_after=60)
    async with retrying(clients, way, topic, redelivery="broker", **settings) as consumer:
        await Wire(clients[1]).produce(topic, [Out(b"%d" % number) for number in range(30)])
        for message in await take(consumer, 30, patience(5)):
            async with asyncio.timeout(patience(1)):
                await message.nack(3)
        while consumer.statistics().retries_waiting:
            await asyncio.sleep(0.05)
        statistics = consumer.statistics()
        assert statistics.retried >= 20
        assert (statistics.held + statistics.retried, statistics.waiting_nacks) == (30, 0)
        found = await take(consumer, 30, patience(10))
        assert {message.data for message in found} == {b"%d" % number for number in range(30)}
        for message in found:
            assert message.attempt == 2
            await message.ack()


@pytest.mark.parametrize("consumer_type", ["exclusive", "failover"])
async def test_where_nothing_can_be_delayed(clients: tuple[Any, Any], way: str, topic: str, consumer_type: str) -> None:
    """U14: on Exclusive and Failover subscribing is refused, and no topic is created."""
    with pytest.raises(InvalidArgumentError, match="retry_topic"):
        async with retrying(clients, way, topic, consumer_type=consumer_type):
            pass
    topics = await clients[1].topics()
    assert not [name for name in topics if name.startswith(topic)]


@pytest.mark.both_lines
async def test_java_goes_on_with_ours(clients: tuple[Any, Any], java: JavaClient, way: str, any_topic: str) -> None:
    """U15, U46: Java reads our retry messages, sends them there again, and dead-letters them, just as we would."""
    name, repair = f"r{next(_names)}", Java(java)
    async with retrying(clients, way, any_topic) as consumer:
        await Wire(clients[1]).produce(any_topic, MESSAGES)
        for message in await take(consumer, 2, patience(5)):
            await message.reconsume_later(1)
    dead = await repair.subscribe(f"{any_topic}-sub-DLQ", "repair")
    await call(java, "retrying", name, any_topic, "sub", "2")
    for _ in range(2):  # RECONSUMETIMES 1 -> 2, then 3, which is above its limit of 2
        done = await call(java, "reconsume", name, "2", "500", "20000")
        assert [words[0] for words in done] == ["reconsumed"] * 2
        assert {words[2].partition("-RETRY")[0] for words in done} == {f"{any_topic}-sub"}
    await call(java, "close", name)
    found = {got.payload: got for got in await dead.read(2)}
    await dead.close()
    assert found.keys() == {b"plain", b"keyed"}
    for got in found.values():
        assert got.properties["RECONSUMETIMES"] == "3"
        assert got.properties["REAL_TOPIC"] == any_topic
        assert got.properties["DELAY_TIME"] == "500"
    assert found[b"keyed"].properties["colour"] == "red"
    assert found[b"keyed"].key == "k"


@pytest.mark.both_lines
async def test_we_go_on_with_javas(clients: tuple[Any, Any], java: JavaClient, way: str, any_topic: str) -> None:
    """U15, U46: we read Java's retry messages as attempt 2, send them there again, and dead-letter at the limit."""
    name = f"r{next(_names)}"
    await call(java, "retrying", name, any_topic, "sub", "5")
    await Java(java).produce(any_topic, MESSAGES)
    assert len(await call(java, "reconsume", name, "2", "500", "20000")) == 2
    await call(java, "close", name)
    async with retrying(clients, way, any_topic, 2) as consumer:
        dead = await Java(java).subscribe(f"{any_topic}-sub-DLQ", "repair")
        for attempt in (2, 3):
            for message in await take(consumer, 2, patience(10)):
                assert message.attempt == attempt
                assert message.properties["RECONSUMETIMES"] == str(attempt - 1)
                assert message.properties["REAL_TOPIC"] == any_topic
                await message.reconsume_later(0.5)
        found = {got.payload: got for got in await dead.read(2)}
        await dead.close()
    assert {got.properties["RECONSUMETIMES"] for got in found.values()} == {"3"}
    assert (found[b"keyed"].key, found[b"keyed"].ordering_key) == ("k", "o")
    assert found.keys() == {b"plain", b"keyed"}


async def everything(java: JavaClient, topics: list[str]) -> dict[tuple[str, bytes], Got]:
    """Return all that is in some topics, by topic and payload; each has two messages."""
    found: dict[tuple[str, bytes], Got] = {}
    for topic in topics:
        reader = await Java(java).subscribe(topic, "peek")
        found |= {(topic.replace("-java-", "-sub-"), got.payload): got for got in await reader.read(2)}
        await reader.close()
    return found


@pytest.mark.both_lines
async def test_what_is_written_is_equal(clients: tuple[Any, Any], java: JavaClient, way: str, any_topic: str) -> None:
    """U46: of the same messages Java and we write equal ones to topics of equal names, except for our properties."""
    name = f"r{next(_names)}"
    await call(java, "retrying", name, any_topic, "java", "1")
    for kind in ("java-RETRY", "java-DLQ", "sub-RETRY", "sub-DLQ"):
        reader = await Java(java).subscribe(f"{any_topic}-{kind}", "peek")
        await reader.close()
    async with retrying(clients, way, any_topic, 1) as consumer:
        await Java(java).produce(any_topic, MESSAGES)
        for _ in range(2):
            assert len(await call(java, "reconsume", name, "2", "700", "20000")) == 2
            for message in await take(consumer, 2, patience(10)):
                await message.reconsume_later(0.7)
        await call(java, "close", name)
    by_java = await everything(java, [f"{any_topic}-java-RETRY", f"{any_topic}-java-DLQ"])
    ours = await everything(java, [f"{any_topic}-sub-RETRY", f"{any_topic}-sub-DLQ"])
    assert ours.keys() == by_java.keys()
    assert len(ours) == 4
    for where, theirs in by_java.items():
        found, properties = ours[where], dict(theirs.properties)
        assert properties.pop("REAL_SUBSCRIPTION") == "java"
        assert found.properties.pop("REAL_SUBSCRIPTION") == "sub"
        for own in OURS:
            found.properties.pop(own, None)
        assert found.properties == properties, where
        assert (found.key, found.ordering_key, found.event_time_ms) == (
            theirs.key,
            theirs.ordering_key,
            theirs.event_time_ms,
        )


@pytest.mark.both_lines
@pytest.mark.parametrize("has_retry", [False, True], ids=["no retry topic", "retry topic"])
async def test_dead_letters_of_partitions(
    clients: tuple[Any, Any], java: JavaClient, way: str, has_retry: bool, partitioned_topic: Callable[[int], str]
) -> None:
    """U46: nacked to the limit on two partitions, our topics and properties are Java's with ``java_names``."""
    topic, name = partitioned_topic(2), f"r{next(_names)}"
    bases = [topic] if has_retry else [f"{topic}-partition-{number}" for number in range(2)]
    await call(java, "retrying" if has_retry else "giving_up", name, topic, "java", "1")
    readers: dict[str, Any] = {}
    for base in bases:
        for subscription in ("java", "sub"):
            where = f"{base}-{subscription}-DLQ"
            readers[where] = await Java(java).subscribe(where, "peek")
    retry_topic = RetryTopicPolicy() if has_retry else None
    async with retrying(clients, way, topic, 1, retry_topic=retry_topic) as consumer:
        messages = [Out(b"%d" % number) for number in range(4)]
        await Wire(clients[1]).produce(topic, messages)
        await call(java, "nack", name, "8", "5000")
        for _ in range(2):
            for message in await take(consumer, 4, patience(10)):
                await message.nack(0.1)
        assert await nothing_comes(consumer, 1)
    await call(java, "close", name)
    found: dict[str, dict[bytes, Got]] = {}
    for where, reader in readers.items():
        found[where] = {got.payload: got for got in await reader.read(4 // len(bases))}
        await reader.close()
    for base in bases:
        theirs, ours = found[f"{base}-java-DLQ"], found[f"{base}-sub-DLQ"]
        assert ours.keys() == theirs.keys()
        assert len(ours) == 4 // len(bases)
        for payload, got in theirs.items():
            properties = {**got.properties, "REAL_SUBSCRIPTION": "sub"}
            mine = {key: value for key, value in ours[payload].properties.items() if key not in OURS}
            assert mine == properties


WORKER = """
import asyncio, os, signal, sys
import pulsar_nack
from pulsar_nack.consumer import RetryTopicPolicy

async def main(url, topic):
    async with pulsar_nack.connect(url) as client:
        settings = {"initial_position": "earliest", "retry_topic": RetryTopicPolicy()}
        async with client.subscribe(topic, "sub", **settings) as consumer:
            publish = consumer._engine.letters.retry._publisher.publish
            async def published(*args, **about):
                await publish(*args, **about)
                os.kill(os.getpid(), signal.SIGKILL)
            consumer._engine.letters.retry._publisher.publish = published
            await (await consumer.receive()).reconsume_later(0.5)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_killed_between_publishing_and_acknowledging(
    clients: tuple[Any, Any], service_url: str, topic: str
) -> None:
    """U15: killed after publishing to the retry topic and before acknowledging: two messages of one origin."""
    await Wire(clients[1]).produce(topic, MESSAGES[:1])
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", WORKER, service_url, topic)
    assert await asyncio.wait_for(worker.wait(), patience(15)) == -signal.SIGKILL
    async with retrying(clients, "native", topic) as consumer:
        found = await take(consumer, 2, patience(10))
        assert {message.topic for message in found} == {topic, f"{topic}-sub-RETRY"}
        first = next(message for message in found if message.topic == topic)
        second = next(message for message in found if message.topic != topic)
        assert ":".join(map(str, first.id[:3])) == second.properties["ORIGIN_MESSAGE_ID"]
        for message in found:
            await message.ack()
        assert await nothing_comes(consumer, 1)
