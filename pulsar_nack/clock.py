"""Clocks: sources of time in whole milliseconds, which all parts take as an argument."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable

__all__ = ["Clock", "LoopClock", "MonotonicClock", "WallClock"]


@runtime_checkable
class Clock(Protocol):
    """A source of time in whole milliseconds that never goes back.

    With most clocks the event loop waits. A clock that is moved by hand, as :class:`pulsar_nack.testing.ManualClock`,
    also has a method ``call_at(at_ms, callback)``: it calls ``callback`` once when the time reaches ``at_ms``, and
    returns a function that cancels the call.
    """

    def now_ms(self) -> int:
        """Return the present time in ms since an origin that depends on the clock."""
        ...


class MonotonicClock:
    """The machine's monotonic clock, which does not change when the wall clock is set."""

    def now_ms(self) -> int:
        """Return ms since an arbitrary origin."""
        return time.monotonic_ns() // 1_000_000


class LoopClock:
    """The clock of the running event loop, which may be virtual; otherwise it agrees with the monotonic clock."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        is_plain = getattr(loop.time, "__func__", None) is asyncio.BaseEventLoop.time
        self._time: Callable[[], float] = time.monotonic if is_plain else loop.time  # saves a call

    def now_ms(self) -> int:
        """Return the loop's time in ms, rounded down."""
        return int(self._time() * 1000 + 1e-6)


class WallClock:
    """Milliseconds since the epoch, only for times that are defined as epoch times (``deliver_at``)."""

    def now_ms(self) -> int:
        """Return the wall clock's time in epoch ms."""
        return time.time_ns() // 1_000_000
