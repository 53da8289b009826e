"""The native client as these tests use it, straight to the broker or through a proxy that misbehaves."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

from pulsar_nack import Consumer
from pulsar_nack.wire import Client, ClientOptions
from pulsar_nack.wire._address import Address
from pulsar_nack.wire._connection import Connection, Dial
from tests.broker._proxy import TcpProxy
from tests.consumer.official import EXACT

BOUND_MS = 15.0
"""How exact nacks are on the wire, beside what a bare socket waits for the broker: half of all errors are below."""
BUSY: Final = 10
"""On a busy machine the bound is so many times as wide."""


@asynccontextmanager
async def native(
    url: str, topic: str | Sequence[str], *, proxy: TcpProxy | None = None, client: Any = None, **settings: Any
) -> AsyncIterator[Consumer]:
    """A native consumer on the subscription ``sub``, exact to the ms unless told otherwise.

    :param proxy: all connections go through it, whatever address the broker tells
    :param client: the settings of the client
    """
    settings = {"config": EXACT, "initial_position": "earliest", **settings}
    dial = None if proxy is None else through(proxy)
    made = Client(url, ClientOptions(**(client or {})), dial=dial)
    async with made, made.subscribe(topic, "sub", **settings) as consumer:
        yield consumer


def through(proxy: TcpProxy) -> Dial:
    """Return what connects to the proxy, whatever address is asked for."""

    async def dial(connection: Connection, _address: Address) -> None:
        await asyncio.get_running_loop().create_connection(lambda: connection, "127.0.0.1", proxy.port)

    return dial


def port_of(url: str) -> int:
    """Return the port of a service URL."""
    return int(url.rpartition(":")[2])


class Errors:
    """How far from their deadlines messages came back, in ms.

    :param answer_ms: what the broker and the machine take at least, see :func:`~tests.broker._answer_time.answer_ms`
    """

    def __init__(self, answer_ms: float) -> None:
        self._answer_ms = answer_ms
        self._due_at: dict[bytes, float] = {}
        self.ms: list[float] = []

    def due(self, data: bytes, delay: float) -> None:
        """Note that a message is nacked now."""
        self._due_at[data] = time.monotonic() + delay

    def came(self, data: bytes) -> None:
        """Note that it is back."""
        self.ms.append(1e3 * (time.monotonic() - self._due_at.pop(data)))

    def check(self, count: int, redelivery: str = "auto") -> None:
        """Print the figures, and assert that so many came, none early, and half of them in time.

        :param redelivery: ``"local"`` waits for no broker, and is held to the bound alone
        """
        ordered = sorted(self.ms)
        median = ordered[count // 2]
        print(f"\n{count} came back {ordered[0]:.1f} to {ordered[-1]:.1f} ms late, median {median:.1f} ms")
        waits_ms = 0.0 if redelivery == "local" else self._answer_ms
        print(f"{waits_ms:.1f} ms of each are what a bare socket waits")
        assert len(ordered) == count
        assert ordered[0] > -2.0
        assert median - waits_ms < BOUND_MS * (BUSY if is_busy() else 1)


def is_busy() -> bool:
    """Return whether so much runs on this machine that nothing on it is in time."""
    return os.getloadavg()[0] > (os.cpu_count() or 1)


@contextmanager
def no_task_left() -> Iterator[None]:
    """Assert that the tasks which run at the end are those that ran at the beginning."""
    before = asyncio.all_tasks()
    yield
    assert not asyncio.all_tasks() - before
