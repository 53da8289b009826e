"""How many more ids a tracker may hold, and who waits for that."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Final

from ..errors import WouldBlockError

UNBOUNDED: Final = 1 << 62
EVERY_PLACE: Final = 1 << 63


class Room:
    """Counts free places. A freed place is handed to the first who waits, before anybody else can take it.

    ``free`` is changed by its users directly when they take (the hot path), and by :meth:`give` when they give back.
    """

    __slots__ = ("_given", "_size", "_waiting", "free", "reserved")

    def __init__(self, size: int | None) -> None:
        self._size = UNBOUNDED if size is None else size
        self.free = self._size
        self.reserved = EVERY_PLACE
        """Places that the fast path may not take: none, or all while every nack has to take the slow path."""
        self._given = 0
        self._waiting: deque[asyncio.Future[bool]] = deque()

    @property
    def waiting(self) -> int:
        """Return how many callers wait."""
        return len(self._waiting)

    @property
    def taken(self) -> int:
        """Return how many places are taken, those handed to a caller who has not run yet included."""
        return self._size - self.free

    @property
    def times_taken(self) -> int:
        """Return how often a place was taken, in total."""
        return self._size - self.free + self._given

    def give(self, places: int) -> None:
        """Give places back."""
        self.free += places
        self._given += places
        while self._waiting and self.free > 0:
            future = self._waiting.popleft()
            if not future.done():
                self.free -= 1
                self._given -= 1
                future.set_result(True)

    async def wait(self) -> None:
        """Wait in line for one place; it is free (not taken) when this returns, until the next await.

        Cancelled, it leaves the line, and hands on a place that it had got already.
        """
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            has_place = await future
        except asyncio.CancelledError:
            if not future.cancelled() and future.result():
                self.give(1)
            with suppress(ValueError):
                self._waiting.remove(future)
            raise
        if has_place:
            self.free += 1
            self._given += 1

    def dismiss(self) -> None:
        """Wake all who wait, without a place."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(False)

    def refuse(self, wanted: int) -> WouldBlockError:
        """Return the error for ``wanted`` places that are not there."""
        return WouldBlockError("NegativeAcksTracker (max_held)", wanted=wanted, room=max(self.free, 0))
