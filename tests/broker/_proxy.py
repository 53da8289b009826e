"""A TCP proxy that fails on demand: it cuts connections, delays or stalls bytes, and refuses clients."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Final, Self

_CHUNK: Final = 65_536
_HOST: Final = "127.0.0.1"


class TcpProxy:
    """Forwards bytes between clients and one server; use it as ``async with``, in the test's event loop.

    :param port: where the server listens, on 127.0.0.1

    ``delay`` is in seconds and applies to each direction; it may change at any time, and the order of bytes stays.
    """

    def __init__(self, port: int) -> None:
        self.delay = 0.0
        self.is_refusing = False
        self.accepted = 0
        self._server_port = port
        self._flows = asyncio.Event()
        self._flows.set()
        self._links: set[_Link] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._cut_after: int | None = None
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """Where clients connect."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._links)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, _HOST, 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def cut(self) -> None:
        """Break all connections at once, and drop the bytes in transit."""
        self._cut_after = None
        for link in list(self._links):
            link.cut()

    def cut_after(self, size: int) -> None:
        """Break all connections after ``count`` more bytes went to clients, mostly in the middle of a frame."""
        self._cut_after = size

    @property
    def is_to_cut(self) -> bool:
        """Whether :meth:`cut_after` was called and the connections are not broken yet."""
        return self._cut_after is not None

    def stall(self) -> None:
        """Let no bytes through in either direction; connections stay open and new ones are accepted."""
        self._flows.clear()

    def resume(self) -> None:
        """Let bytes through again, beginning with those that were held back."""
        self._flows.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self.accepted += 1
        try:
            if not self.is_refusing:
                await self._serve(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # the server is away, or the proxy closes: the client's connection ends
        finally:
            writer.transport.abort()
            self._serving.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(_HOST, self._server_port)
        link = _Link(writer, server_writer)
        self._links.add(link)
        ways = [self._pass_on(reader, server_writer, is_down=False), self._pass_on(server_reader, writer, is_down=True)]
        tasks = [asyncio.create_task(way) for way in ways]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            link.cut()
            for way in tasks:
                way.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._links.discard(link)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_down: bool) -> None:
        loop = asyncio.get_running_loop()
        held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(64)
        reading = asyncio.create_task(_read(reader, held))
        try:
            while True:
                came_at, data = await held.get()
                while (wait := came_at + self.delay - loop.time()) > 0:
                    await asyncio.sleep(wait)
                await self._flows.wait()
                if not data:
                    return
                self._write(writer, data, is_down=is_down)
                await writer.drain()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    def _write(self, writer: asyncio.StreamWriter, data: bytes, *, is_down: bool) -> None:
        if not is_down or self._cut_after is None:
            writer.write(data)
        elif len(data) < self._cut_after:
            self._cut_after -= len(data)
            writer.write(data)
        else:
            writer.write(data[: self._cut_after])
            self._cut_after = 0
            asyncio.get_running_loop().call_soon(self.cut)


class _Link:
    """One client's connection and its connection to the server."""

    def __init__(self, *writers: asyncio.StreamWriter) -> None:
        self._writers = writers

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


async def _read(reader: asyncio.StreamReader, held: asyncio.Queue[tuple[float, bytes]]) -> None:
    """Read what arrives, with its time; return nothing more once the other side is gone or refuses it."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            await held.put((loop.time(), data))
    await held.put((loop.time(), b""))
