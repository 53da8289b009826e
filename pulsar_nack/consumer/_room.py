"""Back-pressure: how much may be unacknowledged, and who waits for room.

A broker stops delivering when a consumer holds too many unacknowledged messages (50 000 by default). Holding one more
nack then helps nobody, so it waits. It never waits while a message is ready for the user: the caller may be the only
one who takes messages, and taking one is what makes room. Nor is it to wait where nothing but other nacks that wait is
unacknowledged, as nobody would make room. So the bounds are exceeded by the number of callers at most.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from typing import Final

_log = logging.getLogger("pulsar_nack.consumer")
NEAR: Final = 0.8


class Room:
    """Lets nacks in, first come, first served.

    :param count: how many messages are unacknowledged here
    :param limit: how many may be, None: any number
    :param must_let_pass: whether the next call is not to wait, whatever the bounds say
    """

    def __init__(self, count: Callable[[], int], limit: int | None, must_let_pass: Callable[[], bool]) -> None:
        self.limit = limit
        self.near = math.inf if limit is None else NEAR * limit
        """From how many unacknowledged messages on :meth:`note` warns."""
        self._count = count
        self._must_let_pass = must_let_pass
        self._waiters: deque[asyncio.Future[bool]] = deque()
        self._has_warned = False
        self._closed_by: Exception | None = None

    @property
    def waiting(self) -> int:
        """Return how many calls wait."""
        return len(self._waiters)

    @property
    def is_near_limit(self) -> bool:
        """Return whether 80 % of the limit are reached."""
        return self._count() >= self.near

    @property
    def is_free(self) -> bool:
        """Return whether fewer messages are unacknowledged than the limit allows."""
        return self.limit is None or self._count() < self.limit

    async def wait_for(self, fits: Callable[[], bool]) -> None:
        """Wait until the count is below the limit and ``fits`` says yes, or it is not to wait.

        The caller fills the room before it awaits anything else, so that the next one sees it.
        """
        while not self._may_pass(fits):
            if self._closed_by is not None:
                raise self._closed_by
            waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                must_pass = await waiter
            except asyncio.CancelledError:
                self._hand_on(waiter)
                raise
            if must_pass:
                return

    def _may_pass(self, fits: Callable[[], bool]) -> bool:
        return (self.is_free and fits()) or self._must_let_pass()

    def _hand_on(self, waiter: asyncio.Future[bool]) -> None:
        """A call that was cancelled leaves the line, and gives on what it was just told."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        elif waiter.done() and not waiter.cancelled() and waiter.exception() is None and waiter.result():
            self.let_pass()

    def changed(self) -> None:
        """Let all calls that wait look again, in their order; O(waiting)."""
        if not self._waiters:
            return
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(False)

    def let_pass(self) -> None:
        """Let one call pass whatever the bounds say: a message is ready."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(True)
                return

    def note(self) -> None:
        """Warn, once, when the count comes near the limit."""
        if not self._has_warned and self._count() >= self.near:
            self._has_warned = True
            _log.warning(
                "%d messages are unacknowledged, of %s before the broker stops delivering; shorter delays or faster"
                " handlers would help",
                self._count(),
                self.limit,
            )

    def close(self, error: Exception) -> None:
        """Raise ``error`` in every call that waits."""
        self._closed_by = error
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)
