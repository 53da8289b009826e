"""One case of ``wire.py`` in a separate process: ``python _wire_side.py '{"case": ..., "side": ...}'`` prints JSON.

The sides are the official asyncio client alone (``official``), pulsar-nack over it (``over``), and pulsar-nack's native
transport (``native``); a ``bare`` socket shows what the broker allows. Each case runs the same loop on each side; CPU
time is that of all threads of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import _bare_socket
from _loop import Blocked
from _memory import resident

import pulsar_nack
from pulsar_nack import Consumer, Message, NackConfig

Receive = Callable[[], Awaitable[Any]]
Settle = Callable[[Any], Awaitable[None]]
PAUSE_S = 0.005
"""The pause between two timed requests: requests that follow more closely are grouped."""
EXACT = NackConfig(negative_ack_precision_bit_cnt=0)


@contextlib.asynccontextmanager
async def official_client(url: str) -> AsyncIterator[Any]:
    """The official client, closed at the end."""
    import pulsar
    import pulsar.asyncio

    client = pulsar.asyncio.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        yield client
    finally:
        await client.close()
        await asyncio.sleep(0.05)  # its thread releases Python objects


@contextlib.asynccontextmanager
async def official(url: str, topic: str, subscription: str, kind: str, queue: int) -> AsyncIterator[Any]:
    """A consumer of the official client alone."""
    import pulsar

    async with official_client(url) as client:
        yield await client.subscribe(
            topic,
            subscription,
            consumer_type=getattr(pulsar.ConsumerType, kind.capitalize()),
            receiver_queue_size=queue,
        )


@contextlib.asynccontextmanager
async def ours(
    side: str, url: str, topic: str, subscription: str, kind: str, queue: int, **settings: Any
) -> AsyncIterator[Consumer]:
    """A consumer of pulsar-nack, over the official client or native."""
    settings |= {"consumer_type": kind, "receiver_queue_size": queue}
    async with contextlib.AsyncExitStack() as stack:
        if side == "over":
            client = await stack.enter_async_context(official_client(url))
            yield await stack.enter_async_context(pulsar_nack.subscribe(client, topic, subscription, **settings))
        else:
            client = await stack.enter_async_context(pulsar_nack.connect(url))
            yield await stack.enter_async_context(client.subscribe(topic, subscription, **settings))


@contextlib.asynccontextmanager
async def consuming(
    side: str, url: str, topic: str, subscription: str, kind: str = "shared", queue: int = 1_000
) -> AsyncIterator[tuple[Receive, Settle]]:
    """A consumer's ``receive`` and ``acknowledge``, by side."""
    if side == "official":
        async with official(url, topic, subscription, kind, queue) as consumer:
            yield consumer.receive, consumer.acknowledge
    elif side == "port":
        async with ours("native", url, topic, subscription, kind, queue) as consumer:
            port = consumer.port
            yield port.receive, lambda delivery: port.acknowledge([delivery.id])
    elif side == "soon":
        async with ours("native", url, topic, subscription, kind, queue) as consumer:

            async def settle(message: Message) -> None:
                message.ack_soon()

            yield consumer.receive, settle
    else:
        async with ours(side, url, topic, subscription, kind, queue) as consumer:
            yield consumer.receive, lambda message: message.ack()


class Spent:
    """Time and CPU time of a ``with`` block."""

    def __enter__(self) -> Spent:
        gc.collect()
        gc.freeze()
        self._cpu, self._began = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds, self.cpu = time.perf_counter() - self._began, time.process_time() - self._cpu

    def per(self, count: int) -> dict[str, float]:
        """Return messages a second, and us of CPU time per message."""
        return {"rate": count / self.seconds, "cpu_us": 1e6 * self.cpu / count}


# -- what is measured ------------------------------------------------------------------------------------------------


async def rate(
    side: str, url: str, topic: str, subscription: str, count: int, tasks: int, pause: float
) -> dict[str, float]:
    """Receive and acknowledge, one message after the other in each task; all acknowledgements are awaited.

    Every side first prefetches messages for ``pause`` seconds.
    """
    if side == "bare":
        bare = _bare_socket.BareSocket(url, topic, subscription)
        await asyncio.sleep(pause)
        with Spent() as spent:
            _bare_socket.rate(bare, count)
        bare.close()
        return spent.per(count)
    async with consuming(side, url, topic, subscription) as (receive, settle):
        left = count

        async def work() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await settle(await receive())

        await asyncio.sleep(pause)
        with Spent() as spent:
            await asyncio.gather(*(work() for _ in range(tasks)))
    return spent.per(count)


async def decode(side: str, url: str, topic: str, subscription: str, count: int) -> dict[str, float]:
    """Receive from an Exclusive subscription, for which the broker does not limit unacknowledged messages."""
    async with consuming(side, url, topic, subscription, "exclusive") as (receive, settle):
        with Spent() as spent:
            for _ in range(count):
                message = await receive()
        await settle(message)
    return spent.per(count)


async def arrival(side: str, url: str, topic: str, subscription: str, count: int) -> dict[str, Any]:
    """Ms from a redelivery request to the arrival of the topic's only message, one at a time."""
    if side == "bare":
        return {"ms": _bare_socket.arrival(url, topic, subscription, count, PAUSE_S)}
    took = []
    async with ours(side, url, topic, subscription, "shared", 1_000) as consumer:
        port = consumer.port
        delivery = await port.receive()
        for _ in range(count):
            began = time.perf_counter()
            await port.redeliver([delivery.id])
            delivery = await port.receive()
            took.append(1e3 * (time.perf_counter() - began))
            await asyncio.sleep(PAUSE_S)
        await port.acknowledge([delivery.id])
    return {"ms": took}


async def deadlines(
    side: str, url: str, topic: str, subscription: str, count: int, way: str, longest: float
) -> dict[str, Any]:
    """The error of each message's deadline in ms, for delays from 50 ms to ``longest`` seconds."""
    delays, due_at, errors = random.Random(5), dict[bytes, float](), list[float]()
    async with ours(side, url, topic, subscription, "shared", 1_000, config=EXACT, redelivery=way) as consumer:
        while len(errors) < count:
            message = await consumer.receive(timeout=30)
            now = time.monotonic()
            if message.attempt == 1:
                delay = delays.uniform(0.05, longest)
                due_at[message.data] = now + delay
                await message.nack(delay=delay)
            else:
                errors.append(1e3 * (now - due_at[message.data]))
                await message.ack()
    return {"ms": errors}


async def sustained(side: str, url: str, topic: str, subscription: str, seconds: float, way: str) -> dict[str, Any]:
    """Nack all messages repeatedly, with delays of 0.5 to 1.5 s: there are as many as are nacked in a second."""
    delays, due_at, errors = random.Random(6), dict[bytes, float](), list[float]()
    async with ours(side, url, topic, subscription, "shared", 1_000, config=EXACT, redelivery=way) as consumer:
        gc.collect()
        gc.freeze()
        cpu, ends_at = time.process_time(), time.monotonic() + seconds
        while True:
            message = await consumer.receive(timeout=30)
            now = time.monotonic()
            if now > ends_at and errors:  # on a busy machine the first come back later
                break
            if message.attempt > 1:
                errors.append(1e3 * (now - due_at[message.data]))
            delay = delays.uniform(0.5, 1.5)
            due_at[message.data] = now + delay
            await message.nack(delay=delay)
        cpu = time.process_time() - cpu
    return {"ms": errors, "cpu": cpu / seconds, "per_second": len(errors) / (seconds - 1)}


async def connections(side: str, url: str, topic: str, subscription: str, count: int) -> dict[str, float]:
    """Bytes of a client with one consumer of an empty topic; resident, because the official client is C++."""
    async with contextlib.AsyncExitStack() as stack:

        async def some(many: int) -> int:
            for _ in range(many):
                await stack.enter_async_context(consuming(side, url, topic, subscription))
            gc.collect()
            return resident()

        before = await some(max(count // 5, 1))
        return {"bytes": (await some(count) - before) / count}


async def prefetched(side: str, url: str, topic: str, subscription: str, count: int, pause: float) -> dict[str, float]:
    """Bytes per message that waits in the client, for the messages that it prefetches within ``pause`` seconds."""
    async with consuming(side, url, f"{topic}-warm", subscription) as (receive, settle):
        await settle(await receive())
    gc.collect()
    before = resident()
    async with consuming(side, url, topic, subscription, queue=count):
        await asyncio.sleep(pause)
        gc.collect()
        return {"bytes": (resident() - before) / count}


async def storm(url: str, topic: str, subscription: str, count: int, ahead: float, is_frozen: bool) -> dict[str, float]:
    """Ms of CPU of the longest callback while many nacks become due at once, until all messages are delivered again.

    :param ahead: seconds in which all messages are received and nacked
    :param is_frozen: whether the garbage collector ignores what the program has imported
    """
    full = 0

    def count_full(phase: str, info: dict[str, int]) -> None:
        nonlocal full
        full += phase == "stop" and info["generation"] == 2

    settings: Any = {"receiver_queue_size": 5_000, "unacked_limit": None, "config": EXACT}
    async with (
        pulsar_nack.connect(url, freeze_gc=is_frozen) as client,
        client.subscribe(topic, subscription, **settings) as consumer,
    ):
        due_at = time.monotonic() + ahead
        for _ in range(count):
            message = await consumer.receive(timeout=30)
            await message.nack(max(due_at - time.monotonic(), 0.0))
        del message
        await asyncio.sleep(due_at - time.monotonic() - 0.5)  # not below 0, or there is no storm
        gc.callbacks.append(count_full)
        with Blocked() as blocked:
            for _ in range(count):
                (await consumer.receive(timeout=30)).ack_soon()
        gc.callbacks.remove(count_full)
        took = time.monotonic() - due_at
    return {"longest_ms": blocked.callback_ms, "full": full, "seconds": took}


async def tracked(url: str, topic: str, subscription: str, count: int, pause: float) -> dict[str, float]:
    """Objects that the garbage collector tracks per message: prefetched, nacked, and due and prefetched again."""

    def objects() -> int:
        for _ in range(3):
            gc.collect()
        return len(gc.get_objects())

    settings: Any = {"receiver_queue_size": count, "unacked_limit": None}
    async with pulsar_nack.connect(url) as client:
        async with client.subscribe(f"{topic}-warm", subscription) as consumer:
            with contextlib.suppress(TimeoutError):
                await consumer.receive(timeout=0.2)
        before = objects()
        async with client.subscribe(topic, subscription, **settings) as consumer:
            await asyncio.sleep(pause)
            ahead = objects()
            due_at = time.monotonic() + pause + 5
            for _ in range(count):
                message = await consumer.receive(timeout=30)
                await message.nack(max(due_at - time.monotonic(), 0.0))
            del message
            await asyncio.sleep(1.5)
            held = objects()
            await asyncio.sleep(due_at - time.monotonic() + pause)
            due = objects()
    return {name: (found - before) / count for name, found in {"ahead": ahead, "held": held, "due": due}.items()}


def fill(url: str, topic: str, subscriptions: list[str], count: int, size: int, batch: int) -> dict[str, float]:
    """Create the subscriptions, and send messages with the official client, in batches of ``batch``; 0: no batches."""
    import pulsar

    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    for name in subscriptions:
        client.subscribe(topic, name, consumer_type=pulsar.ConsumerType.Shared).close()
    producer = client.create_producer(
        topic,
        batching_enabled=batch > 0,
        batching_max_messages=batch or 1_000,
        batching_max_publish_delay_ms=50,
        block_if_queue_full=True,
        max_pending_messages=5_000,
    )
    for number in range(count):
        producer.send_async(b"%0*d" % (size, number), lambda *_: None)
    producer.flush()
    client.close()
    return {}


CASES = {
    case.__name__: case
    for case in (rate, decode, arrival, deadlines, sustained, connections, prefetched, storm, tracked)
}


def work(case: str, options: dict[str, Any]) -> dict[str, Any]:
    """Run a case, return its figures."""
    return fill(**options) if case == "fill" else asyncio.run(CASES[case](**options))


def main() -> None:
    """Run a case, print its figures."""
    options = json.loads(sys.argv[1])
    print(json.dumps(work(options.pop("case"), options)))


if __name__ == "__main__":
    main()
