"""One worker of the soak: handles messages at random, and reports what it does until it is drained or killed.

Each line that it prints is a word and numbers; times are those of the machine's monotonic clock, which all processes
share. ``begin``, ``try`` and ``acked`` are about one message; see ``_judge``.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import random
import resource
import sys
import time
from pathlib import Path
from typing import Any, Final

from pulsar_nack import Message
from pulsar_nack.errors import AlreadySettledError
from pulsar_nack.wire import Client, ClientOptions
from pulsar_nack.wire._connection._address import Address
from pulsar_nack.wire._connection._connection import Connection
from tests.soak._judge import name_of

LEASE_S: Final = 1.0
_SLOW_S: Final = 0.9 * LEASE_S
"""A lease that was not extended for this many seconds may have ended."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4_096


class HandlerError(Exception):
    """What a handler raises."""


class Handler:
    """Does one of a few things with each message."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    async def __call__(self, message: Message) -> None:
        """Handle a message, and settle it unless the runner does."""
        name, began = name_of(int(message.data), message.id), time.monotonic()
        report("begin", name, message.attempt, began)
        draw, rng, extended_at = self._random.random(), self._random, began
        await asyncio.sleep(rng.expovariate(200))
        try:
            if draw < 0.12:
                await message.nack(rng.uniform(0, 2))
                report("nacked", name)
                return
            if draw < 0.20:
                await message.defer(rng.uniform(0, 2))
                report("deferred", name)
                return
            if draw < 0.25:
                report("raised", name)
                raise HandlerError(name)
            if draw < 0.30:
                for _ in range(3):
                    await asyncio.sleep(0.6 * LEASE_S)
                    await message.in_progress()
                    extended_at = time.monotonic()
                report("extended", name)
            elif draw < 0.36:
                await asyncio.sleep(rng.uniform(1.0, 1.8) * LEASE_S)
                if draw < 0.33:
                    await message.nack()
                    report("nacked", name)
                    return
            report("try", name)
            await message.ack()
        except AlreadySettledError:
            report("late", name)
        else:
            now = time.monotonic()
            report("acked", name, began, now, int(now - extended_at < _SLOW_S))


async def sample() -> None:
    """Report the resident memory each second."""
    while True:
        report("memory", time.monotonic(), resident())
        await asyncio.sleep(1)


async def work(url: str, port: int, topic: str, seed: str, first_id: int, durable: str | None) -> None:
    """Handle messages until SIGTERM; then report the counts, and how many tasks are left.

    :param port: of the proxy for all connections
    :param first_id: of its consumers: the embedded broker confuses consumers of different connections with equal ids
    """
    ids = itertools.count(first_id, 10)

    async def dial(connection: Connection, _address: Address) -> None:
        connection.handler_ids = itertools.count(next(ids) + 1)
        await asyncio.get_running_loop().create_connection(lambda: connection, "127.0.0.1", port)

    settings: dict[str, Any] = {"lease": LEASE_S, "backoff": [0.1, 0.5, 1], "receiver_queue_size": 50}
    client = Client(url, ClientOptions(backoff_maximum=0.5), dial=dial)
    async with client, client.subscribe(topic, "soak", durable=durable, **settings) as consumer:
        sampling = asyncio.create_task(sample())
        await consumer.run(Handler(seed), concurrency=16, drain_timeout=10, stop_on_signals=True)
        sampling.cancel()
        figures = consumer.statistics()
    await asyncio.sleep(0.1)
    report("leases", figures.leases_expired)
    report("tasks", len(asyncio.all_tasks()) - 1)


def resident() -> int:
    """Return the resident memory of this process in bytes; the peak where that is unknown."""
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * _PAGE
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024


def report(*words: object) -> None:
    """Print a line at once."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    logging.basicConfig(filename=options.pop("log"), level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    asyncio.run(work(**options))
