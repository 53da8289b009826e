"""Redelivery storms with the native client: thousands of messages nacked to the same moment.

All are redelivered, none is lost, and none is in flight twice. The longest pause of the event loop, and how late the
last message came, are printed (``pytest -s``).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pulsar_nack import Consumer, Message
from pulsar_nack.wire import Client
from tests.broker._admin import Admin
from tests.broker._broker_state import has_forgotten
from tests.broker._native import native, no_task_left, port_of
from tests.broker._proxy import TcpProxy
from tests.consumer.official import nothing_comes
from tests.patience import patience

QUICK = {"keep_alive": 2.0, "request_timeout": 10.0, "backoff_maximum": 0.5}
HANDLERS = 50


async def publish(url: str, topic: str, count: int, **options: Any) -> None:
    """Create the subscription, and send ``count`` messages with a hundred keys."""
    async with Client(url) as client:
        await (await client.subscribe(topic, "sub", initial_position="earliest")).aclose()
        async with client.producer(topic, **options) as producer:
            for number in range(0, count, 1_000):
                some = range(number, min(number + 1_000, count))
                await asyncio.gather(*(producer.send(b"%d" % each, key=f"k{each % 100}") for each in some))


@asynccontextmanager
async def gaps(what: str) -> AsyncIterator[None]:
    """Print the longest time in which the loop ran nothing else."""
    loop, widest = asyncio.get_running_loop(), 0.0

    async def look() -> None:
        nonlocal widest
        while True:
            began = loop.time()
            await asyncio.sleep(0.001)
            widest = max(widest, loop.time() - began - 0.001)

    looking = asyncio.create_task(look())
    try:
        yield
    finally:
        looking.cancel()
        await asyncio.wait([looking])
        print(f"\n{what}: the loop stood still for {1e3 * widest:.0f} ms at most", end="")
    assert widest < patience(1.25)


class Storm:
    """Nacks each message at its first delivery, to one moment for all; acknowledges it at the second.

    :param count: of the messages
    :param due_in: seconds from now
    """

    def __init__(self, count: int, due_in: float) -> None:
        self.due_at = time.monotonic() + due_in
        self.acked: Counter[bytes] = Counter()
        self.nacked: Counter[bytes] = Counter()
        self.twice: list[bytes] = []
        self.early: list[float] = []
        self.last_at = 0.0
        self._count = count
        self._in_flight: dict[int, set[bytes]] = {}
        self._is_over = asyncio.Event()

    async def run(self, *consumers: Consumer) -> None:
        """Handle messages until all are acknowledged."""
        async with asyncio.TaskGroup() as tasks:
            handlers = [tasks.create_task(self._handle(each)) for each in consumers for _ in range(HANDLERS)]
            await self._is_over.wait()
            for handler in handlers:
                handler.cancel()

    async def nacked_by(self, share: float) -> None:
        """Wait until a share of the messages was nacked."""
        while len(self.nacked) < share * self._count:
            await asyncio.sleep(0.01)

    async def _handle(self, consumer: Consumer) -> None:
        in_flight = self._in_flight.setdefault(id(consumer), set())
        while True:
            message = await consumer.receive()
            if message.data in in_flight:
                self.twice.append(message.data)
            in_flight.add(message.data)
            if self.nacked[message.data] == 0:
                await self._nack(message)
                in_flight.discard(message.data)
                continue
            if time.monotonic() < self.due_at - 0.002 and message.attempt > 1:
                self.early.append(self.due_at - time.monotonic())
            await message.ack()
            in_flight.discard(message.data)
            self.acked[message.data] += 1
            self.last_at = time.monotonic()
            if len(self.acked) == self._count:
                self._is_over.set()

    async def _nack(self, message: Message) -> None:
        self.nacked[message.data] += 1
        await message.nack(delay=max(self.due_at - time.monotonic(), 0.0))

    def check(self) -> None:
        """Assert that each was nacked once and acknowledged once, and none was in flight twice at a time."""
        print(f"; all were back {self.last_at - self.due_at:.2f} s after their time", end="")
        assert len(self.acked) == len(self.nacked) == self._count
        assert self.twice == []
        assert self.early == []


@asynccontextmanager
async def two(url: str, topic: str, **settings: Any) -> AsyncIterator[list[Consumer]]:
    """Open two consumers of the subscription, each with its own client."""
    async with native(url, topic, **settings) as one, native(url, topic, **settings) as other:
        yield [one, other]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["shared", "key_shared"])
async def test_twenty_thousand_at_one_moment(service_url: str, admin: Admin, topic: str, kind: str) -> None:
    """20 000 messages, all nacked to the same moment by two consumers, are all redelivered, each once."""
    count = 20_000
    await publish(service_url, topic, count, batching=False)
    with no_task_left():
        async with two(service_url, topic, consumer_type=kind) as consumers, gaps(kind):
            storm = Storm(count, due_in=5.0)
            await storm.run(*consumers)
            assert await nothing_comes(consumers[0], 1.0)
            assert await nothing_comes(consumers[1], 0.1)
    storm.check()
    assert set(storm.acked.values()) == {1}
    assert await asyncio.to_thread(admin.backlog, topic, "sub") == 0


@pytest.mark.parametrize("redelivery", ["auto", "broker"])
async def test_members_of_a_large_batch(service_url: str, admin: Admin, topic: str, redelivery: str) -> None:
    """The members of a batch of 1 000 are nacked to 1 000 different moments: each is redelivered at its own, once."""
    count, due_at, seen, early = 1_000, dict[bytes, float](), Counter[bytes](), list[float]()
    await publish(
        service_url, topic, count, batching=True, batch_max_messages=count, batch_delay=1.0, batch_max_bytes=1 << 20
    )
    with no_task_left():
        async with native(service_url, topic, redelivery=redelivery) as consumer, gaps(redelivery):
            entries = set()
            while seen.total() < 2 * count:
                message = await consumer.receive(timeout=patience(5))
                seen[message.data] += 1
                entries.add((message.id.ledger, message.id.entry))
                if message.attempt == 1:
                    delay = 1.0 + (int(message.data) * 7 % count) / count
                    due_at[message.data] = time.monotonic() + delay
                    await message.nack(delay=delay)
                else:
                    early.append(due_at[message.data] - time.monotonic())
                    message.ack_soon()
            assert await nothing_comes(consumer, 0.5)
    assert len(entries) == 1
    assert set(seen.values()) == {2}
    assert max(early) < 0.002
    print(f"; late by {1e3 * -min(early):.0f} ms at most", end="")
    assert await asyncio.to_thread(admin.backlog, topic, "sub") == 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "batching"), [("shared", False), ("key_shared", True)])
async def test_while_connections_are_cut(service_url: str, admin: Admin, topic: str, kind: str, batching: bool) -> None:
    """5 000 messages to one moment, while the proxy cuts all connections before, at and after it: none is lost.

    A message in flight at a consumer whose connection is cut may also go to the other consumer; to the same one only
    after it has settled or given up the message.
    """
    count = 5_000
    await publish(service_url, topic, count, batching=batching)
    with no_task_left():
        async with (
            TcpProxy(port_of(service_url)) as proxy,
            two(service_url, topic, consumer_type=kind, proxy=proxy, client=QUICK) as consumers,
            gaps(f"{kind}, cut"),
        ):
            storm = Storm(count, due_in=4.0)
            beside = [asyncio.create_task(cut_around(proxy, storm)), asyncio.create_task(unload_if_stuck(admin, topic))]
            await storm.run(*consumers)
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)
            assert await nothing_comes(consumers[0], 1.5)
            assert await nothing_comes(consumers[1], 0.1)
    storm.early.clear()  # messages that a cut brings back are delivered when they come
    storm.check()
    assert await asyncio.to_thread(admin.backlog, topic, "sub") == 0


async def unload_if_stuck(admin: Admin, topic: str) -> None:
    """Unload the topic if its broker has forgotten messages for five seconds."""
    looks: list[int] = []
    while len(looks) < 5:
        await asyncio.sleep(1)
        found = await asyncio.to_thread(admin.subscription, topic, "sub")
        sent = found["msgOutCounter"]
        looks = [*looks, sent] if has_forgotten(found) and looks[-1:] in ([], [sent]) else []
    print("; the broker had forgotten messages: unloaded", end="")
    await asyncio.to_thread(admin.unload, topic)


async def cut_around(proxy: TcpProxy, storm: Storm) -> None:
    """Cut once while messages are nacked, at their moment, and some times after it, mostly within frames."""
    await storm.nacked_by(0.5)
    proxy.cut()
    await asyncio.sleep(max(storm.due_at - time.monotonic(), 0))
    for _ in range(5):
        proxy.cut_after(20_000)
        await asyncio.sleep(0.4)
