"""The faulty proxy of these tests, in front of a plain echo server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.broker._proxy import TcpProxy


@asynccontextmanager
async def echoing() -> AsyncIterator[TcpProxy]:
    """A proxy in front of a server that echoes."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1_000):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server, TcpProxy(server.sockets[0].getsockname()[1]) as proxy:
        yield proxy


@asynccontextmanager
async def connected(proxy: TcpProxy) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A client of the proxy."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def is_silent(reader: asyncio.StreamReader, seconds: float) -> bool:
    """Return whether nothing arrives for a while."""
    try:
        await asyncio.wait_for(reader.read(1), seconds)
    except TimeoutError:
        return True
    return False


async def test_it_passes_bytes_on() -> None:
    """Bytes come back, and a client that leaves is forgotten."""
    async with echoing() as proxy, connected(proxy) as (reader, writer):
        writer.write(b"x" * 300_000)
        assert await reader.readexactly(300_000) == b"x" * 300_000
        assert proxy.connections == 1
        writer.close()
        async with asyncio.timeout(10):
            while proxy.connections:
                await asyncio.sleep(0.01)


async def test_it_cuts() -> None:
    """Connections end at once when cut, and after a given number of bytes."""
    async with echoing() as proxy:
        async with connected(proxy) as (reader, _):
            while not proxy.connections:
                await asyncio.sleep(0.01)
            proxy.cut()
            assert await ended(reader) == b""
        async with connected(proxy) as (reader, writer):
            proxy.cut_after(5)
            writer.write(b"123")
            assert await reader.readexactly(3) == b"123"
            writer.write(b"4567890")
            assert await ended(reader) in {b"", b"45"}


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Read until the connection ends, in order or broken."""
    try:
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionError:
        return b""


async def test_it_delays_and_stalls() -> None:
    """Bytes arrive late by the delays of both directions, and not at all while stalled; then all of them arrive."""
    async with echoing() as proxy, connected(proxy) as (reader, writer):
        proxy.delay = 0.1
        began = asyncio.get_running_loop().time()
        writer.write(b"1")
        assert await reader.readexactly(1) == b"1"
        assert asyncio.get_running_loop().time() - began > 0.19
        proxy.delay = 0.0
        proxy.stall()
        writer.write(b"2")
        assert await is_silent(reader, 0.2)
        proxy.resume()
        assert await asyncio.wait_for(reader.readexactly(1), 10) == b"2"


@pytest.mark.parametrize("why", ["refusing", "no server"])
async def test_it_turns_away(why: str) -> None:
    """Clients are refused on demand, and if there is no server behind the proxy."""
    async with echoing() as proxy:
        if why == "refusing":
            proxy.is_refusing = True
        else:
            proxy._server_port = 1
        async with connected(proxy) as (reader, _):
            assert await ended(reader) == b""
        assert proxy.accepted == 1
