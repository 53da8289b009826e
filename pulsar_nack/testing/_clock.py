"""A clock that a test moves by hand."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from typing import Final

from ..errors import InvalidArgumentError

_MIN_ALARMS: Final = 64
"""Cancelled alarms are removed when there are more than this and twice those that are set."""


class ManualClock:
    """A clock in ms that stands still until :meth:`set` or :meth:`advance`.

    Moving stops at each alarm on the way, so that its callback sees exactly the time it asked for, and includes alarms
    that callbacks add on the way. Alarms of one time go off in the order in which they were set. An alarm for a time
    that is already reached goes off at the next move, even ``advance(0)``. An error in a callback ends the move at that
    time; the other alarms stay set.
    """

    def __init__(self, now_ms: int = 0) -> None:
        self._now = _whole("now_ms", now_ms)
        self._alarms: list[tuple[int, int]] = []
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._count = 0

    def now_ms(self) -> int:
        """Return the time in ms."""
        return self._now

    def set(self, ms: int) -> None:
        """Move to ``ms``.

        :raises InvalidArgumentError: that is in the past, or not an int
        """
        if _whole("ms", ms) < self._now:
            raise InvalidArgumentError("ms", ms, f"at least the present time, {self._now}")
        while self._alarms and self._alarms[0][0] <= ms:
            at_ms, number = heapq.heappop(self._alarms)
            callback = self._callbacks.pop(number, None)
            if callback is not None:
                self._now = max(self._now, at_ms)
                callback()
        self._now = max(self._now, ms)

    def advance(self, ms: int) -> None:
        """Move forward by ``ms``.

        :raises InvalidArgumentError: negative, or not an int
        """
        if _whole("ms", ms) < 0:
            raise InvalidArgumentError("ms", ms, "at least 0")
        self.set(self._now + ms)

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` once when the time reaches ``at_ms``; return a function that cancels the alarm."""
        self._count += 1
        number = self._count
        heapq.heappush(self._alarms, (max(_whole("at_ms", at_ms), self._now), number))
        self._callbacks[number] = callback
        return partial(self._cancel, number)

    @property
    def alarms(self) -> int:
        """Return how many alarms are set."""
        return len(self._callbacks)

    def _cancel(self, number: int) -> None:
        self._callbacks.pop(number, None)
        if len(self._alarms) > _MIN_ALARMS + 2 * len(self._callbacks):
            self._alarms = [alarm for alarm in self._alarms if alarm[1] in self._callbacks]
            heapq.heapify(self._alarms)


def _whole(field: str, value: object) -> int:
    if type(value) is not int:
        raise InvalidArgumentError(field, value, "milliseconds as an int")
    return value
