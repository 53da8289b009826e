"""A fake broker on real sockets, on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from tests.wire.fake_broker import FakeBroker


class Served(NamedTuple):
    """Where it listens, what it is, and the names in the certificates that clients have shown."""

    port: int
    broker: FakeBroker
    names: list[str]


@asynccontextmanager
async def served(*, tls: ssl.SSLContext | None = None) -> AsyncIterator[Served]:
    """Serve a fake broker, with TLS if there is a context."""
    broker, names, tasks = FakeBroker(latency=0), list[str](), set[asyncio.Task[object]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        shown = writer.get_extra_info("peercert") or {}
        names.extend(value for ((key, value),) in shown.get("subject", ()) if key == "commonName")
        answers = _Answers(writer)
        broker.node(broker.url).accept(answers)
        assert answers.transport is not None
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while data := await reader.read(1 << 20):
                answers.transport.write(data)
        answers.transport.abort()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        async with server:
            port = server.sockets[0].getsockname()[1]
            yield Served(port, broker, names)
    finally:
        await asyncio.gather(*tasks, return_exceptions=True)


class _Answers(asyncio.Protocol):
    """What the fake broker sends goes to a real socket."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.transport: asyncio.Transport | None = None
        self._writer = writer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._writer.write(data)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._writer.close()
