"""Handlers on a real broker: concurrency, exceptions, order of keys, deferrals, and draining."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import pytest

import pulsar_nack
from pulsar_nack import Consumer, DeadLetterPolicy, Message, NackConfig
from pulsar_nack.consumer import DeadLetter, Defer, DrainReport, Handler, Retry
from pulsar_nack.wire import Client
from tests.broker._admin import Admin
from tests.broker.draining_worker import stopped_by_a_signal
from tests.consumer.official import nothing_comes, numbered, official_client, send, subscribing, take
from tests.patience import patience

EXACT = NackConfig(negative_ack_precision_bit_cnt=0)
KINDS = ("shared", "key_shared", "failover", "exclusive")


@pytest.fixture
async def client(service_url: str) -> AsyncIterator[Client]:
    """A native client."""
    async with pulsar_nack.connect(service_url) as native:
        yield native


async def run_until(consumer: Consumer, handler: Handler, acked: int, **options: Any) -> DrainReport:
    """Run a handler until ``count`` messages are acknowledged, then drain."""
    task = asyncio.create_task(consumer.run(handler, **options))
    async with asyncio.timeout(patience(20)):
        while consumer.statistics().acked < acked and not task.done():
            await asyncio.sleep(0.01)
    await consumer.drain(patience(10))
    return await task


@pytest.mark.usefixtures("transport")
async def test_so_many_at_once(service_url: str, topic: str, admin: Admin) -> None:
    """U36, U13, U40: ten handlers at once; failures are redelivered by rule or backoff; each is acknowledged once."""
    busy, peak, attempts = 0, 0, defaultdict[bytes, int](int)

    async def handler(message: Message) -> None:
        nonlocal busy, peak
        busy += 1
        peak = max(peak, busy)
        await asyncio.sleep(0.01)
        busy -= 1
        attempts[message.data] += 1
        if message.data.endswith(b"7") and message.attempt == 1:
            raise ConnectionError("again")
        if message.data.endswith(b"3") and message.attempt == 1:
            raise KeyError("again")

    async with official_client(service_url) as official, subscribing(official, service_url) as subscribe:
        consumer = await subscribe(topic, backoff=[0.2])
        await send(official, topic, numbered(100))
        await run_until(consumer, handler, 100, concurrency=10, on_error={OSError: Retry(delay=0.3)})
    assert peak <= 10
    assert attempts == {payload: 2 if payload[-1:] in {b"3", b"7"} else 1 for payload in numbered(100)}
    assert admin.backlog(topic, "sub") == 0


@pytest.mark.usefixtures("transport")
async def test_postponing_is_no_failure(service_url: str, topic: str, admin: Admin) -> None:
    """U12: deferred ten times, locally and by the broker, with at most 3 attempts: never a dead letter."""
    for redelivery in ("auto", "broker"):
        seen = list[int]()

        async def handler(message: Message) -> None:
            seen.append(message.attempt)  # noqa: B023
            if len(seen) <= 10:  # noqa: B023
                raise Defer(0.15)

        async with official_client(service_url) as official, subscribing(official, service_url) as subscribe:
            consumer = await subscribe(topic, dead_letter=DeadLetterPolicy(2), redelivery=redelivery)
            await send(official, topic, [b"a"])
            await run_until(consumer, handler, 1)
            assert consumer.statistics().dead_lettered == 0
        assert seen == [1] * 11
        assert admin.backlog(topic, "sub") == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_keys_in_order(client: Client, topic: str, kind: Any, admin: Admin) -> None:
    """U16, U39: order within each key while one message waits for its retry; the other keys finish before that."""
    done: dict[str, list[int]] = defaultdict(list)
    before_retry = 0

    async def handler(message: Message) -> None:
        nonlocal before_retry
        key = message.key or ""
        if key == "k1" and message.data == b"2":
            if message.attempt == 1:
                raise Retry(delay=1)
            before_retry = sum(len(numbers) for numbers in done.values())
        done[key].append(int(message.data))

    async with client.subscribe(topic, "sub", consumer_type=kind, config=EXACT) as consumer:
        async with client.producer(topic) as producer:
            for number in range(25):
                for key in ("k0", "k1", "k2", "k3"):
                    await producer.send(b"%d" % number, key=key)
        await run_until(consumer, handler, 100, concurrency=8, key_ordered=True)
    assert done == {f"k{key}": list(range(25)) for key in range(4)}
    assert before_retry == 77
    assert admin.backlog(topic, "sub") == 0


async def test_batches_of_keys_in_order(client: Client, topic: str, admin: Admin) -> None:
    """U16: members of batches, with failures at random places, are handled in the order of their keys."""
    done: dict[str, list[int]] = defaultdict(list)

    async def handler(message: Message) -> None:
        if int(message.data) % 7 == 0 and message.attempt == 1:
            raise Retry(delay=0.2)
        done[message.key or ""].append(int(message.data))

    async with client.subscribe(topic, "sub", config=EXACT) as consumer:
        async with client.producer(topic, batching=True) as producer:
            await asyncio.gather(*(producer.send(b"%d" % number, key=f"k{number % 3}") for number in range(60)))
        await run_until(consumer, handler, 60, key_ordered=True)
    assert done == {f"k{key}": list(range(key, 60, 3)) for key in range(3)}
    assert admin.backlog(topic, "sub") == 0


@pytest.mark.usefixtures("transport")
async def test_a_handler_that_outlives_the_drain(service_url: str, topic: str) -> None:
    """U38, U18: it is cancelled and its message redelivered as an attempt; handlers that finished are not repeated."""

    async def handler(message: Message) -> None:
        await asyncio.sleep(60 if message.data == b"0" else 0.3)

    async with official_client(service_url) as official, subscribing(official, service_url) as subscribe:
        consumer = await subscribe(topic)
        await send(official, topic, numbered(5))
        task = asyncio.create_task(consumer.run(handler))
        while consumer.statistics().in_work < 5:
            await asyncio.sleep(0.01)
        report = await consumer.drain(1.5)
        assert report == DrainReport(settled=4, given_back=0, cancelled=1, left=0) == await task
        other = await subscribe(topic)
        (message,) = await take(other, 1)
        assert message.data == b"0"
        await message.ack()
        assert await nothing_comes(other)


@pytest.mark.both_lines
async def test_a_process_that_is_stopped(service_url: str, admin: Admin, topic: str) -> None:
    """U37: five handlers finish and are acknowledged, the other consumer has the 195 in 100 ms, the exit code is 0."""
    assert await stopped_by_a_signal(service_url, admin, topic) < patience(0.25)


@pytest.mark.usefixtures("transport")
async def test_several_at_once(service_url: str, topic: str) -> None:
    """U43: 25 messages of 1 KB as 10, 10 and 5, the last after the timeout; a cancelled call loses nothing."""
    async with official_client(service_url) as official, subscribing(official, service_url) as subscribe:
        consumer = await subscribe(topic)
        waiting = asyncio.create_task(consumer.batch_receive(1_000, timeout=None))
        await send(official, topic, [b"%1024d" % number for number in range(25)])
        await asyncio.sleep(0.5)
        waiting.cancel()
        await asyncio.wait([waiting])
        found = [await consumer.batch_receive(10, 65_536, timeout=0.2) for _ in range(3)]
        assert [len(messages) for messages in found] == [10, 10, 5]
        assert sorted(int(message.data) for messages in found for message in messages) == list(range(25))


async def test_a_dead_letter_by_a_verb(client: Client, topic: str) -> None:
    """U13, U40: the dead letter has the verb's reason."""

    async def handler(message: Message) -> None:
        raise DeadLetter("bad") if message.data == b"0" else ValueError("parse")

    async with (
        client.subscribe(f"{topic}-sub-DLQ", "repair") as dead,
        client.subscribe(topic, "sub", dead_letter=DeadLetterPolicy(3)) as consumer,
        client.producer(topic) as producer,
    ):
        for payload in numbered(2):
            await producer.send(payload)
        task = asyncio.create_task(consumer.run(handler, on_error={ValueError: DeadLetter}))
        letters = await take(dead, 2)
        await consumer.drain(patience(5))
        await task
        reasons = {letter.data: letter.properties["PULSAR_NACK_REASON"] for letter in letters}
        assert reasons == {b"0": "bad", b"1": "ValueError: parse"}
