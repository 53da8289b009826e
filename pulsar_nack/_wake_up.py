"""Fast reading of clocks, and a timer that works with any clock.

A *ticker* returns nanoseconds, so that for a real loop it can be the C function itself; its caller divides. How a
:class:`WakeUp` waits depends on the clock:

- a clock that is moved by hand (:class:`~pulsar_nack.Clock` with ``call_at``) calls back itself;
- on the loop's own clock, the loop gets the absolute time; on the monotonic clock, the remaining time;
- any other clock may be set, as a wall clock is, without the loop's timer noticing: while a wake-up is pending, the
  clock is read once a second.

A loop may fire early (uvloop by 1.3 ms), and a wall clock may be set back. So a wake-up first reads the clock. If it is
too early, it waits for the remaining time, so that it cannot spin.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from ._delays import MAX_DELAY_MS
from .clock import Clock, LoopClock, MonotonicClock
from .errors import InvalidArgumentError

NS_PER_MS: Final = 1_000_000
CLOCK_READ_INTERVAL_MS: Final = 1_000
"""How often a clock that may be set is read while a wake-up is pending."""

_MAX_LEAD_TIME: Final = 0.001
_EXPECTED: Final = "a clock with call_at, or a running event loop, so that on_due can be called"
Ticker = Callable[[], int]


def ticker_of(clock: Clock, loop: asyncio.AbstractEventLoop | None) -> Ticker:
    """Return a function that returns the time of ``clock`` in ns; ``loop`` runs here."""
    if isinstance(clock, MonotonicClock) or (isinstance(clock, LoopClock) and _is_monotonic(loop)):
        return time.monotonic_ns
    now_ms = clock.now_ms
    return lambda: now_ms() * NS_PER_MS


def is_steady(clock: Clock) -> bool:
    """Return whether the clock cannot be set unnoticed: it runs steadily, or calls back when it is moved."""
    return isinstance(clock, LoopClock | MonotonicClock) or hasattr(clock, "call_at")


def interval_clock(clock: Clock) -> Clock:
    """Return the clock for intervals such as retries: ``clock``, or the running loop's if ``clock`` may be set."""
    return clock if is_steady(clock) else LoopClock()


def check_lead_time(lead_time: object) -> None:
    """Raise unless ``lead_time`` is under 1 ms; longer lead times belong in the delay."""
    expected = "seconds from 0 to less than 0.001"
    if isinstance(lead_time, bool) or not isinstance(lead_time, float | int) or not 0 <= lead_time < _MAX_LEAD_TIME:
        raise InvalidArgumentError("lead_time", lead_time, expected)


def _is_monotonic(loop: asyncio.AbstractEventLoop | None) -> bool:
    """Return whether there is a loop whose time is ``time.monotonic``, which is not so on a virtual loop."""
    kind = type(loop)
    return getattr(kind, "time", None) is asyncio.BaseEventLoop.time or kind.__module__.partition(".")[0] == "uvloop"


class WakeUp:
    """A timer: calls ``call(at_ms)`` once when ``at_ms`` is reached; ``at_ms`` is None while it is not set.

    :param lead_time: seconds by which to call before the time; works on the loop's own clock only, because other clocks
        count whole ms. :attr:`lead_time_ns` is the value in effect
    :raises InvalidArgumentError: no loop runs and the clock has no ``call_at``, so nothing could call back
    """

    __slots__ = (
        "_call",
        "_call_at",
        "_cancel",
        "_context",
        "_is_loop_clock",
        "_lead_time",
        "_longest_ms",
        "_set_count",
        "_ticks",
        "at_ms",
        "early",
        "lead_time_ns",
        "loop",
    )

    def __init__(self, clock: Clock, call: Callable[[int], None], lead_time: float = 0.0) -> None:
        self._call = call
        self._call_at: Callable[[int, Callable[[], None]], Callable[[], None]] | None = getattr(clock, "call_at", None)
        self._is_loop_clock = isinstance(clock, LoopClock)
        self._longest_ms = MAX_DELAY_MS if is_steady(clock) else CLOCK_READ_INTERVAL_MS
        self.loop = None if self._call_at else _running_loop(clock)
        self._ticks = ticker_of(clock, self.loop)
        self.lead_time_ns = round(lead_time * 1e9) if self._is_loop_clock and _is_monotonic(self.loop) else 0
        self._lead_time = self.lead_time_ns / 1e9
        self._context = contextvars.copy_context()
        self._cancel: Callable[[], object] | None = None
        self._set_count = 0
        self.at_ms: int | None = None
        self.early = 0
        """How often the loop called too early, apart from the regular reads of a clock that may be set."""

    def set(self, at_ms: int, now_ms: int) -> None:
        """Set the timer to ``at_ms`` instead of its present time; for a past time it fires at once."""
        if at_ms == self.at_ms:
            return
        if self.at_ms is not None:
            self.cancel()
        self.at_ms = at_ms
        self._schedule(at_ms, now_ms)

    def cancel(self) -> None:
        """Cancel the timer; a callback that the loop has already scheduled does nothing."""
        self.at_ms = None
        self._set_count += 1
        if self._cancel is not None:
            self._cancel()
            self._cancel = None

    def _schedule(self, at_ms: int, now_ms: int, *, is_retry: bool = False) -> None:
        if self._call_at is not None:
            self._cancel = self._call_at(at_ms, partial(self._run, self._set_count))
            return
        assert self.loop is not None
        delay = min(max(at_ms - now_ms, 0), self._longest_ms)
        run = partial(self._run, self._set_count, is_clock_read=at_ms - now_ms > delay)
        if self._is_loop_clock and not is_retry and delay < MAX_DELAY_MS:
            self._cancel = self.loop.call_at(at_ms / 1000 - self._lead_time, run, context=self._context).cancel
        else:
            self._cancel = self.loop.call_later(delay / 1000, run, context=self._context).cancel

    def _run(self, set_count: int, *, is_clock_read: bool = False) -> None:
        at_ms = self.at_ms
        if set_count != self._set_count or at_ms is None:
            return
        now_ms = (self._ticks() + self.lead_time_ns) // NS_PER_MS
        if now_ms < at_ms:
            self.early += not is_clock_read
            self._schedule(at_ms, now_ms, is_retry=True)
            return
        self.at_ms = self._cancel = None
        self._set_count += 1
        self._call(at_ms)


def _running_loop(clock: Clock) -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise InvalidArgumentError("clock", clock, _EXPECTED) from None
