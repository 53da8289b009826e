"""How many more ids a tracker may hold, and who waits for capacity."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Final

from ..errors import WouldBlockError

UNBOUNDED: Final = 1 << 62
EVERY_PLACE: Final = 1 << 63


class CapacityLimiter:
    """Counts free places. A released place goes to the first caller that waits, before any other can take it.

    A caller takes a place by lowering ``free`` (the hot path), and returns it by :meth:`release`.
    """

    __slots__ = ("_released", "_size", "_waiting", "free", "reserved")

    def __init__(self, size: int | None) -> None:
        self._size = UNBOUNDED if size is None else size
        self.free = self._size
        self.reserved = EVERY_PLACE
        """Places that the fast path may not take: none, or all of them while every nack has to take the slow path."""
        self._released = 0
        self._waiting: deque[asyncio.Future[bool]] = deque()

    @property
    def waiting(self) -> int:
        """Return how many callers wait."""
        return len(self._waiting)

    @property
    def taken(self) -> int:
        """Return how many places are taken, including those of callers that were woken and have not run yet."""
        return self._size - self.free

    @property
    def times_taken(self) -> int:
        """Return how often a place was taken, in total."""
        return self._size - self.free + self._released

    def release(self, places: int) -> None:
        """Return places."""
        self.free += places
        self._released += places
        while self._waiting and self.free > 0:
            future = self._waiting.popleft()
            if not future.done():
                self.free -= 1
                self._released -= 1
                future.set_result(True)

    async def wait(self) -> None:
        """Wait in line for one place; it is free (not taken) when this returns, until the next await.

        A cancelled caller leaves the line, and passes on a place that it was already given.
        """
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            has_place = await future
        except asyncio.CancelledError:
            if not future.cancelled() and future.result():
                self.release(1)
            with suppress(ValueError):
                self._waiting.remove(future)
            raise
        if has_place:
            self.free += 1
            self._released += 1

    def wake_all(self) -> None:
        """Wake all callers that wait, without a place."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(False)

    def would_block(self, wanted: int) -> WouldBlockError:
        """Return the error for ``wanted`` places that are not free."""
        return WouldBlockError("NegativeAcksTracker (max_held)", wanted=wanted, room=max(self.free, 0))
