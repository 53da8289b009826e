"""Room for messages that are not confirmed, by number and by bytes. Who waits for room gets it in order."""

from __future__ import annotations

import asyncio
from collections import deque


class PendingRoom:
    """A message that is larger than all the room is let in when there is no other."""

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.messages = 0
        self.bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._error: Exception | None = None

    def take_nowait(self, size: int) -> bool:
        """Take room for one message if there is any and nobody waits; return whether it did."""
        if self._waiting or not self._fits(size):
            return False
        self._add(size)
        return True

    async def take(self, size: int) -> None:
        """Wait for room for one message and take it. A cancelled call takes none.

        :raises Exception: that of :meth:`close`
        """
        if self._error is not None:
            raise self._error
        if self.take_nowait(size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.give_back(size)
            else:
                self._let_in()  # those behind may be smaller
            raise

    def waiting(self) -> list[asyncio.Future[None]]:
        """Return what is done when those that wait now have their room, or do not want it any more."""
        return [turn for _, turn in self._waiting]

    def give_back(self, size: int) -> None:
        """Give back the room of one message."""
        self.messages -= 1
        self.bytes -= size
        if self._waiting:
            self._let_in()

    def close(self, error: Exception) -> None:
        """Let nobody in any more who has to wait."""
        self._error = error
        while self._waiting:
            _, turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(error)

    def _fits(self, size: int) -> bool:
        return not self.messages or (self.messages < self.max_messages and self.bytes + size <= self.max_bytes)

    def _add(self, size: int) -> None:
        self.messages += 1
        self.bytes += size

    def _let_in(self) -> None:
        while self._waiting:
            size, turn = self._waiting[0]
            if not turn.done():
                if not self._fits(size):
                    return
                self._add(size)
                turn.set_result(None)
            self._waiting.popleft()
