"""A fake broker on real sockets, on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from tests.wire.fake_broker import FakeBroker

_HOST: Final = "127.0.0.1"
_READ_BYTES: Final = 1 << 20


class Flow:
    """How the broker reads: ``size`` bytes at once, with ``pause`` s in between, or not at all."""

    def __init__(self) -> None:
        self.size = _READ_BYTES
        self.pause = 0.0
        self._gates: list[asyncio.Event] = []
        self._is_over = False

    def stop(self) -> None:
        """Read nothing more from existing connections; new ones are read."""
        for gate in self._gates:
            gate.clear()

    def go_on(self) -> None:
        """Read again."""
        for gate in self._gates:
            gate.set()

    def end(self) -> None:
        """End the connections that are not read."""
        self._is_over = True
        self.go_on()

    def gate(self) -> asyncio.Event:
        """Return a function that says whether to read from a new connection."""
        gate = asyncio.Event()
        gate.set()
        self._gates.append(gate)
        return gate

    async def read(self, reader: asyncio.StreamReader, gate: asyncio.Event) -> bytes:
        """Read from a connection when allowed; return nothing at the end."""
        if self.pause:
            await asyncio.sleep(self.pause)
        is_stopped = not gate.is_set()
        await gate.wait()
        return b"" if is_stopped and self._is_over else await reader.read(self.size)


class Served(NamedTuple):
    """Its address, the broker, the names in the certificates that clients have sent, and how it reads."""

    port: int
    broker: FakeBroker
    names: list[str]
    flow: Flow


@asynccontextmanager
async def served(*, tls: ssl.SSLContext | None = None, buffer_bytes: int | None = None) -> AsyncIterator[Served]:
    """Serve a fake broker, with TLS if there is a context; its topics have its address.

    :param buffer_bytes: of the system's buffers of each connection
    """
    names, tasks, flow = list[str](), set[asyncio.Task[object]](), Flow()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        shown = writer.get_extra_info("peercert") or {}
        names.extend(value for ((key, value),) in shown.get("subject", ()) if key == "commonName")
        answers = _Answers(writer)
        broker.node(broker.url).accept(answers)
        assert answers.transport is not None
        gate = flow.gate()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while data := await flow.read(reader, gate):
                answers.transport.write(data)
        answers.transport.abort()
        writer.close()

    limit = buffer_bytes or 1 << 16
    server = await asyncio.start_server(serve, sock=_listening(buffer_bytes), ssl=tls, limit=limit)
    port = server.sockets[0].getsockname()[1]
    broker = FakeBroker(f"pulsar://{_HOST}:{port}" if tls is None else f"pulsar+ssl://localhost:{port}", latency=0)
    try:
        async with server:
            yield Served(port, broker, names, flow)
    finally:
        flow.end()
        await asyncio.gather(*tasks, return_exceptions=True)


def _listening(buffer_bytes: int | None) -> socket.socket:
    listening = socket.socket()
    set_buffers(listening, buffer_bytes)
    listening.bind((_HOST, 0))
    listening.settimeout(0)
    return listening


def set_buffers(one: socket.socket, buffer_bytes: int | None) -> None:
    """Set the system's buffers of a socket; sockets that a listening one accepts inherit them.

    Segments are as small as on a network: loopback's own would not fit in.
    """
    if buffer_bytes is not None:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1_400)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            one.setsockopt(socket.SOL_SOCKET, option, buffer_bytes)


class _Answers(asyncio.Protocol):
    """Sends the fake broker's bytes to a real socket."""

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
