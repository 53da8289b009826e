"""One case of ``consumer.py`` in a separate process: ``python _consumer_side.py '{"case": ..., "side": ...}'``.

The sides are loops over ``receive`` of the official asyncio client (``official``) and of the native one (``loop``),
``Consumer.run`` (``run``), and a listener of the Java client (``java``).
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import _java
import _wire_side
from _wire_side import EXACT, Spent, ours, rate

from pulsar_nack import Consumer, Delivery, Message, MessageId, PortTraits


async def handled(
    side: str, url: str, topic: str, subscription: str, count: int, tasks: int, pause: float
) -> dict[str, float]:
    """Acknowledge all messages: by ``run`` with a handler that does nothing, loops in tasks, or Java's listener."""
    if side == "java":
        return await asyncio.to_thread(_java.listener, url, topic, subscription, count)
    if side != "run":
        return await rate(side, url, topic, subscription, count, tasks, pause)
    async with ours(side, url, topic, subscription, "shared", 1_000) as consumer:
        left, done = count, asyncio.Event()

        async def handle(_: Message) -> None:
            nonlocal left
            left -= 1
            if not left:
                done.set()

        await asyncio.sleep(pause)
        with Spent() as spent:
            running = asyncio.create_task(consumer.run(handle, concurrency=tasks))
            await done.wait()
        await consumer.drain(10)
        await running
    return spent.per(count)


async def handled_late(
    side: str, url: str, topic: str, subscription: str, count: int, way: str, longest: float
) -> dict[str, Any]:
    """How late in ms a handler of ``run`` begins: after a nack, or with the way "lease" after the lease of another."""
    delays, due_at, errors, done = random.Random(7), dict[bytes, float](), list[float](), asyncio.Event()
    settings: dict[str, Any] = {"config": EXACT, "redelivery": "auto" if way == "lease" else way}
    if way == "lease":
        settings |= {"lease": longest / 2, "backoff": 0}

    async def handle(message: Message) -> None:
        now = time.monotonic()
        if message.attempt > 1:
            errors.append(1e3 * (now - due_at[message.data]))
            if len(errors) == count:
                done.set()
        elif way == "lease":
            due_at[message.data] = now + longest / 2
            await asyncio.sleep(longest)
        else:
            delay = delays.uniform(0.05, longest)
            due_at[message.data] = now + delay
            await message.nack(delay=delay)

    async with ours(side, url, topic, subscription, "shared", 1_000, **settings) as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=2 * count))
        async with asyncio.timeout(60):
            await done.wait()
        await consumer.drain(10)
        await running
    return {"ms": errors}


async def run_over_loop(count: int, rounds: int, **_ignored: Any) -> dict[str, Any]:
    """Us of CPU a message of ``run`` with one handler at a time and of a loop, on a port in memory, in turns."""
    took: dict[str, list[float]] = {"loop": [], "run": []}
    for _ in range(rounds):
        for side, work in (("loop", _loop), ("run", _run)):
            async with Consumer(_MemoryPort(count)) as consumer:
                with Spent() as spent:
                    await work(consumer, count)
                took[side].append(1e6 * spent.cpu / count)
    return took


async def _loop(consumer: Consumer, count: int) -> None:
    for _ in range(count):
        message = await consumer.receive()
        await message.ack()


async def _run(consumer: Consumer, count: int) -> None:
    left, draining = count, list[asyncio.Task[Any]]()

    async def handle(_: Message) -> None:
        nonlocal left
        left -= 1
        if not left:
            draining.append(asyncio.create_task(consumer.drain(1)))

    await consumer.run(handle, concurrency=1)


class _MemoryPort:
    """A port with messages in memory, whose calls do not wait: what remains is the consumer's own work."""

    def __init__(self, count: int) -> None:
        self.traits = PortTraits(receiver_queue_size=1_000)
        self._left = count
        self._count = count

    def receive_nowait(self) -> Delivery | None:
        """Return the next message."""
        if not self._left:
            return None
        self._left -= 1
        return Delivery(MessageId(1, self._count - self._left), b"x")

    async def receive(self) -> Delivery:
        """Return the next message, or wait for ever."""
        if (delivery := self.receive_nowait()) is None:
            await asyncio.get_running_loop().create_future()
            raise AssertionError
        return delivery

    def acknowledge_soon(self, _: MessageId, token: Any, done: Callable[[list[Any], None], None]) -> None:
        """Acknowledge in the next turn of the loop, as a port does that had the answer by then."""
        asyncio.get_running_loop().call_soon(done, [token], None)

    def redeliver_nowait(self, ids: Any) -> None:
        """Do nothing."""

    async def acknowledge(self, ids: Any) -> None:
        """Do nothing."""

    async def redeliver(self, ids: Any) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""


CASES = {case.__name__: case for case in (handled, handled_late, run_over_loop)}


def work(case: str, options: dict[str, Any]) -> dict[str, Any]:
    """Run a case of this program, or of ``_wire_side``; return its figures."""
    return asyncio.run(CASES[case](**options)) if case in CASES else _wire_side.work(case, options)


def main() -> None:
    """Run a case, print its figures."""
    options = json.loads(sys.argv[1])
    print(json.dumps(work(options.pop("case"), options)))


if __name__ == "__main__":
    main()
