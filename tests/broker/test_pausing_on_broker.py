"""Consumers on a real broker that prefetch nothing while paused or without a queue, and those that lack a codec."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

import pulsar_nack
from pulsar_nack import BrokerError, Consumer, DeadLetterPolicy, InvalidArgumentError
from pulsar_nack.errors import MissingExtraError
from pulsar_nack.wire import Client
from tests.broker._admin import Admin
from tests.consumer.official import is_over_wire, nothing_comes, numbered, official_client, payloads, take
from tests.patience import patience

KINDS: Final = ("shared", "key_shared", "failover", "exclusive")


@pytest.fixture
async def client(service_url: str) -> AsyncIterator[Client]:
    """A native client."""
    async with pulsar_nack.connect(service_url) as native:
        yield native


async def produce(client: Client, topic: str, messages: list[bytes], **options: Any) -> None:
    """Send messages."""
    async with client.producer(topic, **options) as producer:
        await asyncio.gather(*(producer.send(message) for message in messages))


async def acked(consumer: Consumer, count: int) -> list[bytes]:
    """Acknowledge ``count`` messages, after which nothing comes; return the payloads, sorted."""
    messages = await take(consumer, count)
    for message in messages:
        message.ack_soon()
    assert await nothing_comes(consumer)
    return payloads(messages)


async def test_what_was_fetched_ahead_goes_to_another_one(client: Client, topic: str) -> None:
    """O17, U41: 1 000 prefetched messages go to a second consumer, none comes here; those in flight stay here."""
    sent = numbered(1_000)
    async with client.subscribe(topic, "sub", receiver_queue_size=1_000, redelivery="local") as first:
        await produce(client, topic, sent)
        in_flight, held = await take(first, 2)
        await held.nack(delay=0.3)
        async with client.subscribe(topic, "sub", receiver_queue_size=1_000, dead_letter=DeadLetterPolicy(3)) as second:
            first.pause()
            assert await acked(second, 998) == sorted(set(sent) - {in_flight.data, held.data})
            assert second.statistics().dead_lettered == 0
            assert await nothing_comes(first)
            await in_flight.ack()
        first.resume()
        (again,) = await take(first, 1)
        assert (again.data, again.attempt) == (held.data, 2)
        await again.ack()
        assert await nothing_comes(first)


@pytest.mark.parametrize("is_batch", [False, True])
async def test_partitions_that_are_paused_together(
    client: Client, partitioned_topic: Callable[[int], str], is_batch: bool
) -> None:
    """U41: messages prefetched from each partition, batches too, go to a second consumer of the subscription."""
    name, sent = partitioned_topic(3), numbered(60)
    async with client.subscribe(name, "sub") as first:
        await produce(client, name, sent, batching=is_batch)
        await asyncio.sleep(0.3)
        async with client.subscribe(name, "sub") as second:
            first.pause()
            assert await acked(second, 60) == sorted(sent)
            first.resume()
            assert await nothing_comes(first)


async def test_keys_of_a_paused_consumer_wait_for_it(client: Client, topic: str) -> None:
    """U41: on Key_Shared the keys of a paused consumer with a message in flight wait for the resume; all come once."""
    async with (
        client.subscribe(topic, "sub", consumer_type="key_shared") as first,
        client.subscribe(topic, "sub", consumer_type="key_shared") as second,
        client.producer(topic, batching=False) as producer,
    ):
        for number in range(40):
            await producer.send(b"%d" % number, key=f"k{number % 8}")
        (in_flight,) = await take(first, 1)
        first.pause()
        elsewhere: list[bytes] = []
        while not await nothing_comes_of(second, elsewhere):
            pass
        first.resume()
        here = [in_flight.data]
        await in_flight.ack()
        while not await nothing_comes_of(first, here):
            pass
        assert sorted([*here, *elsewhere]) == sorted(numbered(40))
        assert len(here) > 1
        assert elsewhere


async def nothing_comes_of(consumer: Consumer, found: list[bytes]) -> bool:
    """Acknowledge the next message and note its payload; return whether none comes."""
    try:
        message = await consumer.receive(timeout=1)
    except TimeoutError:
        return True
    found.append(message.data)
    await message.ack()
    return False


@asynccontextmanager
async def workers(url: str, topic: str, **settings: Any) -> AsyncIterator[tuple[Consumer, Consumer]]:
    """Open two consumers, each with its own client, over the transport under test."""
    if is_over_wire():
        async with (
            pulsar_nack.connect(url) as one,
            pulsar_nack.connect(url) as two,
            one.subscribe(topic, "sub", **settings) as first,
            two.subscribe(topic, "sub", **settings) as second,
        ):
            yield first, second
    else:
        async with (
            official_client(url) as one,
            official_client(url) as two,
            pulsar_nack.subscribe(one, topic, "sub", **settings) as first,
            pulsar_nack.subscribe(two, topic, "sub", **settings) as second,
        ):
            yield first, second


@pytest.mark.usefixtures("transport")
async def test_a_long_job_keeps_no_others(service_url: str, client: Client, topic: str) -> None:
    """O16, U42: six jobs, the first one long, two workers without a queue: the other does the other five meanwhile."""
    async with workers(service_url, topic, receiver_queue_size=0) as (first, second):
        calls = [asyncio.create_task(each.receive()) for each in (first, second)]
        await asyncio.sleep(0.2)
        await produce(client, topic, numbered(1))
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        idle, waiting = (second, calls[1]) if calls[0].done() else (first, calls[0])
        await produce(client, topic, numbered(5, first=1))
        message = await asyncio.wait_for(waiting, patience(1.5))
        await message.ack()
        assert sorted([message.data, *[each.data for each in await take(idle, 4)]]) == numbered(5, first=1)


@pytest.mark.usefixtures("transport")
async def test_no_queue_is_for_one_topic(service_url: str, topic: str, partitioned_topic: Callable[[int], str]) -> None:
    """O16, O57: a list and a partitioned topic are refused by name; they would stay silent for ever."""
    for several in ([topic, f"{topic}-other"], partitioned_topic(2)):
        with pytest.raises(InvalidArgumentError, match="receiver_queue_size"):
            async with workers(service_url, several, receiver_queue_size=0):  # type: ignore[arg-type]
                pass


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_not_installed_is_no_fault_of_the_message(
    client: Client, topic: str, admin: Admin, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O12: without the codec each receive raises; nothing is settled, and another consumer gets all 200."""
    async with client.subscribe(topic, "sub", consumer_type=kind):
        await produce(client, topic, numbered(200), compression="lz4")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "cramjam", None)
        async with client.subscribe(topic, "sub", consumer_type=kind, dead_letter=DeadLetterPolicy(3)) as consumer:
            for _ in range(2):
                with pytest.raises(MissingExtraError, match=r"pulsar-nack\[compression\]"):
                    await consumer.receive(timeout=patience(5))
            await asyncio.sleep(0.5)
            assert consumer.statistics().dead_lettered == 0
            assert admin.backlog(topic, "sub") == 200
    async with client.subscribe(topic, "sub", consumer_type=kind) as other:
        assert await acked(other, 200) == sorted(numbered(200))


@pytest.mark.usefixtures("transport")
async def test_unsubscribing(service_url: str, topic: str, admin: Admin) -> None:
    """Refused while the subscription has other consumers, and this one continues; then the subscription is gone."""
    async with workers(service_url, topic) as (first, second):
        with pytest.raises(BrokerError):
            await first.unsubscribe()
        await second.aclose()
        await first.unsubscribe()
        assert "sub" not in admin.stats(topic)["subscriptions"]
