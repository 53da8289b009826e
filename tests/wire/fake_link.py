"""A connection in memory: the client's end is an asyncio transport, the other end belongs to a fake broker.

Bytes arrive in order, ``latency`` seconds after they were written. The broker's end can stop reading, so that the
client's writes pile up; deliver its bytes in pieces of any size; and end the connection at any byte.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pulsar_nack.wire._connection._connection import Connection

_T = TypeVar("_T")


class Pipe(Generic[_T]):
    """Delivers items in order, each ``latency`` seconds later; at most one callback is scheduled."""

    def __init__(self, loop: asyncio.AbstractEventLoop, latency: float, hand_on: Callable[[_T], None]) -> None:
        self.latency = latency
        self._loop = loop
        self._hand_on = hand_on
        self._waiting: deque[tuple[float, _T]] = deque()
        self._is_armed = False

    def put(self, item: _T) -> None:
        """Deliver one item later."""
        self._waiting.append((self._loop.time() + self.latency, item))
        self._arm()

    def clear(self) -> None:
        """Drop all items that are not delivered yet."""
        self._waiting.clear()

    def hurry(self) -> None:
        """Deliver all items now."""
        while self._waiting:
            self._hand_on(self._waiting.popleft()[1])

    def _arm(self) -> None:
        if self._waiting and not self._is_armed:
            self._is_armed = True
            self._loop.call_at(self._waiting[0][0], self._run)

    def _run(self) -> None:
        self._is_armed = False
        now = self._loop.time()
        while self._waiting and self._waiting[0][0] <= now:
            self._hand_on(self._waiting.popleft()[1])
        self._arm()


class FakeLink(asyncio.Transport):
    """The client's end, with methods for the broker's end.

    :param on_bytes: gets what the client has sent
    :param on_end: called once when the connection ends, whichever side ends it
    """

    def __init__(
        self,
        protocol: Connection | asyncio.Protocol,
        *,
        latency: float,
        on_bytes: Callable[[bytes], None],
        on_end: Callable[[], None],
    ) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._on_bytes = on_bytes
        self._on_end = on_end
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._high, self._low = 64 << 10, 16 << 10
        self._is_paused = self._is_closing = self._is_over_here = False
        self.is_over = False
        """Whether the broker's end is closed: it reads and sends nothing any more."""
        self.reads = True
        """Whether the broker reads; False: the client's writes pile up. See :meth:`stall` and :meth:`go_on`."""
        self.piece_bytes: int | None = None
        """Most bytes that the client gets at once from later deliveries; None: as they were sent."""
        self.sent_bytes = 0
        """How many bytes the client has written."""
        self._to_broker: Pipe[bytes] = Pipe(self._loop, latency, self._arrive_at_broker)
        self._to_client: Pipe[bytes | None] = Pipe(self._loop, latency, self._arrive_at_client)

    # --- the client's end ---

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes to the broker."""
        if self._is_over_here or self._is_closing or self.is_over:
            return
        self.sent_bytes += len(data)
        self._unsent.append(bytes(data))
        self._unsent_bytes += len(data)
        self._flush()
        if self._unsent_bytes > self._high and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the buffer sizes at which the protocol pauses and resumes."""
        self._high = 64 << 10 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Return how many bytes the broker has not read."""
        return self._unsent_bytes

    def is_closing(self) -> bool:
        """Return whether the client is closing the connection."""
        return self._is_closing or self._is_over_here

    def close(self) -> None:
        """Close the connection when all written bytes are read."""
        if not self._is_closing:
            self._is_closing = True
            self._flush()

    def abort(self) -> None:
        """Close the connection at once."""
        self._is_closing = True
        self._loop.call_soon(self.cut)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return nothing."""
        return default

    # --- the broker's end ---

    def deliver(self, data: bytes) -> None:
        """Send bytes to the client."""
        if self.is_over:
            return
        size = self.piece_bytes or len(data)
        for at in range(0, len(data), size):
            self._to_client.put(data[at : at + size])

    def hang_up(self) -> None:
        """Close the connection after the client has got all bytes; bytes that it sends from now on are not read."""
        self._to_client.put(None)
        self._end_there()

    def cut(self, error: Exception | None = None) -> None:
        """End the connection at once; undelivered bytes are lost.

        :param error: of the client's socket; None: end of file
        """
        self._to_client.clear()
        self._end_there()
        self._end_here(error)

    def stall(self) -> None:
        """Stop reading."""
        self.reads = False

    def go_on(self) -> None:
        """Read again, beginning with the bytes that have piled up."""
        self.reads = True
        self._flush()

    def _flush(self) -> None:
        while self.reads and self._unsent:
            data = self._unsent.popleft()
            self._unsent_bytes -= len(data)
            self._to_broker.put(data)
        if self._is_paused and self._unsent_bytes <= self._low:
            self._is_paused = False
            self._protocol.resume_writing()
        if self._is_closing and not self._unsent:
            self._loop.call_soon(self._close)

    def _close(self) -> None:
        self._to_broker.hurry()
        self.cut()

    def _arrive_at_broker(self, data: bytes) -> None:
        if not self.is_over:
            self._on_bytes(data)

    def _arrive_at_client(self, data: bytes | None) -> None:
        if self._is_over_here or self._is_closing:
            return
        if data is None:
            self._end_here(None)
        elif isinstance(self._protocol, asyncio.BufferedProtocol):
            left = memoryview(data)
            while left:
                buffer = self._protocol.get_buffer(-1)
                size = min(len(left), len(buffer))
                buffer[:size] = left[:size]
                self._protocol.buffer_updated(size)
                left = left[size:]
        else:
            self._protocol.data_received(data)

    def _end_there(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._to_broker.clear()
            self._on_end()

    def _end_here(self, error: Exception | None) -> None:
        if not self._is_over_here:
            self._is_over_here = True
            self._unsent.clear()
            self._unsent_bytes = 0
            self._protocol.connection_lost(error)
