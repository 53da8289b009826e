"""The native client during faults: clients and brokers that are killed, connections that are cut, late or silent.

Each time nothing is lost, nothing is acknowledged that was not, no message whose acknowledgement returned comes back,
and no task is left. Recovery times are printed (``pytest -s``).
"""

from __future__ import annotations

import asyncio
import collections
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pulsar_nack import BrokerError, Consumer, Message
from tests.broker._native import native, no_task_left, port_of
from tests.broker._proxy import TcpProxy
from tests.broker.standalone import Standalone
from tests.consumer import scenarios
from tests.consumer.official import nothing_comes, numbered, official_client, payloads, send, take
from tests.patience import patience

ROOT = Path(__file__).parent.parent.parent
QUICK = {"keep_alive": 1.0, "request_timeout": 5.0, "connect_timeout": 2.0, "backoff_maximum": 1.0}
LASTING_S = 2.5
"""A session that lasted at least so long is followed by another one at once."""


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[TcpProxy]:
    """A proxy in front of the broker; no task is left behind it."""
    with no_task_left():
        async with TcpProxy(port_of(url)) as proxy:
            yield proxy


async def sent(url: str, topic: str, messages: list[bytes], *, batched: bool = False) -> None:
    """Send with the official client, past the proxy."""
    async with official_client(url) as client:
        await send(client, topic, messages, batched=batched, max_pending_messages=10_000)


async def rest_of(url: str, topic: str, count: int) -> list[bytes]:
    """Return what another consumer gets: all unacknowledged messages."""
    async with native(url, topic) as consumer:
        messages = await take(consumer, count, timeout=patience(10))
        assert await nothing_comes(consumer, 1.0)
        return payloads(messages)


def tell(what: str, began: float) -> None:
    """Print how long something took."""
    print(f"\n{what}: {1e3 * (time.monotonic() - began):.0f} ms")


# --- killed ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["each", "all"])
async def test_acks_that_returned_outlive_the_process(service_url: str, topic: str, way: str) -> None:
    """U28: of 60 messages 50 are acknowledged and reported; the process is killed at once: none of the 50 returns."""
    await sent(service_url, topic, numbered(60))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.broker.acking_worker", service_url, topic, "50", way),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await asyncio.wait_for(process.communicate(), patience(5))
    assert (said, process.returncode) == (b"50\n", -signal.SIGKILL)
    assert await rest_of(service_url, topic, 10) == sorted(numbered(10, first=50))


@pytest.mark.both_lines
@pytest.mark.timeout(240)
async def test_a_broker_that_is_killed_under_load(own_broker: Standalone, own_topic: str) -> None:
    """Killed and restarted twice while 3 000 messages are nacked once and acknowledged: all are delivered and acked."""
    url, topic, count = own_broker.service_url, own_topic, 3_000
    await sent(url, topic, numbered(count))
    load = Load(keep=set(numbered(5)))
    with no_task_left():
        async with native(url, topic, client=QUICK) as consumer, asyncio.TaskGroup() as tasks:
            work = tasks.create_task(load.run(consumer, count))
            for share in (0.3, 0.6):
                await load.reached(share * count)
                await asyncio.to_thread(own_broker.kill)
                await asyncio.to_thread(own_broker.start)
                began, before = time.monotonic(), len(load.settled)
                await load.reached(before + 1)
                tell("from the broker's start to the next acknowledgement", began)
            await work
    load.check(count)
    assert await rest_of(url, topic, 5) == sorted(load.keep)


# --- a connection that breaks ----------------------------------------------------------------------------------------


class Load:
    """Nacks each message once with a short delay, then acknowledges it, except those to keep, with 20 handlers.

    :param keep: never acknowledged
    """

    def __init__(self, keep: set[bytes]) -> None:
        self.keep = keep
        self.seen: collections.Counter[bytes] = collections.Counter()
        self.settled: set[bytes] = set()
        self.came_back: list[bytes] = []
        self._progress = asyncio.Condition()
        self._chance = random.Random(11)

    async def run(self, consumer: Consumer, count: int) -> None:
        """Handle messages until all but those to keep are acknowledged."""
        async with asyncio.TaskGroup() as tasks:
            handlers = [tasks.create_task(self._handle(consumer)) for _ in range(20)]
            await self.reached(count - len(self.keep))
            await asyncio.sleep(1.0)
            for handler in handlers:
                handler.cancel()

    async def reached(self, count: float) -> None:
        """Wait until ``count`` acknowledgements have returned."""
        async with asyncio.timeout(patience(30)), self._progress:
            await self._progress.wait_for(lambda: len(self.settled) >= count)

    async def _handle(self, consumer: Consumer) -> None:
        async for message in consumer:
            self.seen[message.data] += 1
            if message.data in self.settled:
                self.came_back.append(message.data)
            if message.attempt == 1:
                await message.nack(delay=self._chance.uniform(0.01, 0.3))
            elif message.data not in self.keep:
                await self._ack(message)

    async def _ack(self, message: Message) -> None:
        while True:
            try:
                await message.ack()
            except BrokerError:
                await asyncio.sleep(0.05)
            else:
                break
        async with self._progress:
            self.settled.add(message.data)
            self._progress.notify_all()

    def check(self, count: int) -> None:
        """Assert that each message was delivered, and none after its acknowledgement had returned."""
        assert set(self.seen) == set(numbered(count))
        assert self.came_back == []


@pytest.mark.parametrize("batched", [False, True])
async def test_connections_that_are_cut(service_url: str, topic: str, batched: bool) -> None:
    """Cut thirty times, also within frames, while 3 000 messages are handled: nothing is lost, nothing comes again."""
    count, load = 3_000, Load(keep=set(numbered(5)))
    await sent(service_url, topic, numbered(count), batched=batched)
    client = {**QUICK, "backoff_maximum": 0.1}  # after short sessions the pauses between sessions grow
    async with proxied(service_url) as proxy, native(service_url, topic, proxy=proxy, client=client) as consumer:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(cut(proxy, 30))
            await load.run(consumer, count)
        assert proxy.accepted > 10
    load.check(count)
    assert await rest_of(service_url, topic, 5) == sorted(load.keep)


async def cut(proxy: TcpProxy, times: int) -> None:
    """Cut at random moments, and at random bytes."""
    chance = random.Random(12)
    for _ in range(times):
        await asyncio.sleep(chance.uniform(0.02, 0.3))
        if chance.random() < 0.5:
            proxy.cut()
        else:
            proxy.cut_after(chance.randrange(1, 5_000))


async def test_how_long_a_cut_takes(service_url: str, topic: str) -> None:
    """From a cut to the next message sent, three times; open acknowledgements return nevertheless."""
    took = []
    async with proxied(service_url) as proxy, official_client(service_url) as client:
        producer = await client.create_producer(topic)
        async with native(service_url, topic, proxy=proxy) as consumer:
            for number in range(3):
                await asyncio.sleep(LASTING_S)
                await producer.send(b"a%d" % number)
                message = await consumer.receive(timeout=patience(10))
                acknowledging = asyncio.create_task(message.ack())
                await asyncio.sleep(0)
                proxy.cut()
                began = time.monotonic()
                await producer.send(b"b%d" % number)
                message = await consumer.receive(timeout=patience(10))
                took.append(1e3 * (time.monotonic() - began))
                assert message.data == b"b%d" % number
                await message.ack()
                await asyncio.wait_for(acknowledging, patience(5))
            assert scenarios.all_given_back(consumer)
    print(f"\nfrom a cut to the next message: {min(took):.0f} to {max(took):.0f} ms")
    assert await rest_of(service_url, topic, 0) == []


async def test_a_connection_that_falls_silent(service_url: str, topic: str) -> None:
    """A connection that stalls for longer than the keep-alive is replaced by another one: nothing is lost."""
    await sent(service_url, topic, numbered(20))
    async with proxied(service_url) as proxy, native(service_url, topic, proxy=proxy, client=QUICK) as consumer:
        messages = await take(consumer, 20)
        for message in messages[:5]:
            await message.ack()
        proxy.stall()
        for message in messages[5:10]:
            await message.nack(delay=0.2)
        acknowledging = [asyncio.create_task(message.ack()) for message in messages[10:15]]
        await until(lambda: not consumer.port.is_connected, patience(5))
        assert not any(task.done() for task in acknowledging)
        proxy.resume()
        began = time.monotonic()
        await asyncio.wait_for(asyncio.gather(*acknowledging), patience(5))
        tell("from the end of a stall to the acknowledgements under way", began)
        again = await take(consumer, 5, timeout=patience(10))
        assert payloads(again) == payloads(messages[5:10])
        for message in again:
            await message.ack()
        assert await nothing_comes(consumer, 1.0)
    assert await rest_of(service_url, topic, 5) == payloads(messages[15:])


async def until(is_so: Callable[[], bool], seconds: float) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(seconds):
        while not is_so():
            await asyncio.sleep(0.01)


async def test_a_short_stall_is_sat_out(service_url: str, topic: str) -> None:
    """A stall that ends within the keep-alive keeps the connection, and all open calls continue."""
    await sent(service_url, topic, numbered(10))
    async with proxied(service_url) as proxy, native(service_url, topic, proxy=proxy) as consumer:
        messages, accepted = await take(consumer, 10), proxy.accepted
        proxy.stall()
        acknowledging = [asyncio.create_task(message.ack()) for message in messages]
        await asyncio.sleep(1.0)
        assert not any(task.done() for task in acknowledging)
        proxy.resume()
        await asyncio.wait_for(asyncio.gather(*acknowledging), patience(5))
        assert proxy.accepted == accepted
    assert await rest_of(service_url, topic, 0) == []


async def test_a_slow_network(service_url: str, topic: str) -> None:
    """With 100 ms in each direction everything is late by that, and right."""
    await sent(service_url, topic, numbered(50))
    async with proxied(service_url) as proxy:
        proxy.delay = 0.1
        async with native(service_url, topic, proxy=proxy) as consumer:
            messages = await take(consumer, 50)
            began = time.monotonic()
            await asyncio.gather(*(message.ack() for message in messages[:25]))
            assert time.monotonic() - began > 0.19
            for message in messages[25:]:
                await message.nack(delay=0.5)
            again = await take(consumer, 25)
            assert payloads(again) == payloads(messages[25:])
            await asyncio.gather(*(message.ack() for message in again))
            assert await nothing_comes(consumer, 1.0)
            assert scenarios.all_given_back(consumer)
    assert await rest_of(service_url, topic, 0) == []


async def test_a_broker_that_turns_away_for_a_while(service_url: str, topic: str) -> None:
    """Cut and refused for 3 s, with acknowledgements and nacks meanwhile: they are carried out in the end."""
    await sent(service_url, topic, numbered(12))
    async with proxied(service_url) as proxy, native(service_url, topic, proxy=proxy, client=QUICK) as consumer:
        messages = await take(consumer, 12)
        proxy.is_refusing = True
        proxy.cut()
        acknowledging = [asyncio.create_task(message.ack()) for message in messages[:4]]
        for message in messages[4:8]:
            await message.nack(delay=0.5)
        await asyncio.sleep(3.0)
        assert not any(task.done() for task in acknowledging)
        proxy.is_refusing = False
        began = time.monotonic()
        await asyncio.wait_for(asyncio.gather(*acknowledging), patience(5))
        tell("from being let in to the acknowledgements under way", began)
        again = await take(consumer, 4, timeout=patience(10))
        assert payloads(again) == payloads(messages[4:8])
        for message in again:
            await message.ack()
        assert await nothing_comes(consumer, 1.0)
    assert await rest_of(service_url, topic, 4) == payloads(messages[8:])


async def test_closing_while_cut_off(service_url: str, topic: str) -> None:
    """A client that is closed while it cannot reach the broker ends soon, and leaves nothing behind."""
    await sent(service_url, topic, numbered(3))
    async with proxied(service_url) as proxy:
        async with native(service_url, topic, proxy=proxy, client=QUICK) as consumer:
            messages = await take(consumer, 3)
            await messages[0].ack()
            proxy.is_refusing = True
            proxy.cut()
            await messages[1].nack(delay=60)
            began = time.monotonic()
        tell("to close", began)
        assert time.monotonic() - began < patience(2.5)
    assert await rest_of(service_url, topic, 2) == payloads(messages[1:])
