"""The native client as these tests use it, straight to the broker or through a proxy that misbehaves."""

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


@contextmanager
def no_task_left() -> Iterator[None]:
    """Assert that the tasks which run at the end are those that ran at the beginning."""
    before = asyncio.all_tasks()
    yield
    assert not asyncio.all_tasks() - before
