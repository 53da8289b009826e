"""How many more ids a tracker may hold, and who waits for capacity."""

from __future__ import annotations

from typing import Final

from .._waiting import WaitingCalls
from ..errors import WouldBlockError

UNBOUNDED: Final = 1 << 62
EVERY_PLACE: Final = 1 << 63


class CapacityLimiter:
    """Counts free places. A released place goes to the first caller that waits, before any other can take it.

    A caller takes a place by lowering ``free`` (the hot path), and returns it by :meth:`release`.
    """

    __slots__ = ("_released", "_size", "free", "reserved", "waiting")

    def __init__(self, size: int | None) -> None:
        self._size = UNBOUNDED if size is None else size
        self.free = self._size
        self.reserved = EVERY_PLACE
        """Places that the fast path may not take: none, or all of them while every nack has to take the slow path."""
        self._released = 0
        self.waiting = WaitingCalls[bool]()
        """The calls that wait; each is woken with whether it has a place."""

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
        while self.waiting and self.free > 0 and self.waiting.wake_first(value=True):
            self.free -= 1
            self._released -= 1

    async def wait(self) -> None:
        """Wait in line for one place; it is free (not taken) when this returns, until the next await.

        A cancelled caller leaves the line, and passes on a place that it was already given.
        """
        if await self.waiting.wait(self.release):
            self.free += 1
            self._released += 1

    def would_block(self, wanted: int) -> WouldBlockError:
        """Return the error for ``wanted`` places that are not free."""
        return WouldBlockError("NegativeAcksTracker (max_held)", wanted=wanted, room=max(self.free, 0))
