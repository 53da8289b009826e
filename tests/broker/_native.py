"""The native client as these tests use it, connected to the broker directly or through a faulty proxy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from pulsar_nack import Consumer
from pulsar_nack.wire import Client, ClientOptions
from pulsar_nack.wire._connection._address import Address
from pulsar_nack.wire._connection._connection import Connection, Dial
from tests.broker._proxy import TcpProxy
from tests.consumer.official import EXACT


@asynccontextmanager
async def native(
    url: str, topic: str | Sequence[str], *, proxy: TcpProxy | None = None, client: Any = None, **settings: Any
) -> AsyncIterator[Consumer]:
    """Open a native consumer on the subscription ``sub``, exact to the ms by default.

    :param proxy: all connections go through it, whatever address the broker announces
    :param client: the client's settings
    """
    settings = {"config": EXACT, "initial_position": "earliest", **settings}
    dial = None if proxy is None else through(proxy)
    made = Client(url, ClientOptions(**(client or {})), dial=dial)
    async with made, made.subscribe(topic, "sub", **settings) as consumer:
        yield consumer


def through(proxy: TcpProxy) -> Dial:
    """Return a function that connects to the proxy, whatever address is asked for."""

    async def dial(connection: Connection, _address: Address) -> None:
        await asyncio.get_running_loop().create_connection(lambda: connection, "127.0.0.1", proxy.port)

    return dial


def port_of(url: str) -> int:
    """Return the port of a service URL."""
    return int(url.rpartition(":")[2])


@contextmanager
def no_task_left() -> Iterator[None]:
    """Assert that the same tasks run at the end as at the beginning."""
    before = asyncio.all_tasks()
    yield
    assert not asyncio.all_tasks() - before
