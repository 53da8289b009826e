"""Where time comes from: monotonic milliseconds as integers, injected everywhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable

__all__ = ["AlarmClock", "Clock", "LoopClock", "MonotonicClock", "WallClock"]


@runtime_checkable
class Clock(Protocol):
    """Tells the time in whole milliseconds; never goes back."""

    def now_ms(self) -> int:
        """Return the present time in ms; the origin is the clock's own."""
        ...


@runtime_checkable
class AlarmClock(Clock, Protocol):
    """A clock that is moved by hand and so has to wake those who wait for a time.

    :class:`pulsar_nack.testing.ManualClock` is one. For any other clock the waiting is done by the event loop.
    """

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` once when the time reaches ``at_ms``; return a function that cancels this."""
        ...


class MonotonicClock:
    """The machine's monotonic clock; a change of the wall clock does not touch it."""

    def now_ms(self) -> int:
        """Return ms since an arbitrary origin."""
        return time.monotonic_ns() // 1_000_000


class LoopClock:
    """The running event loop's own clock, so that a virtual loop moves its users too.

    Made inside a running loop. On a loop that is not virtual it agrees with the monotonic clock.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        is_plain = getattr(loop.time, "__func__", None) is asyncio.BaseEventLoop.time
        self._time: Callable[[], float] = time.monotonic if is_plain else loop.time  # without a call in between

    def now_ms(self) -> int:
        """Return the loop's time in ms, rounded down."""
        return int(self._time() * 1000 + 1e-6)


class WallClock:
    """Milliseconds since the epoch: only where an epoch time is the contract (``deliver_at``)."""

    def now_ms(self) -> int:
        """Return the wall clock's time in epoch ms."""
        return time.time_ns() // 1_000_000
