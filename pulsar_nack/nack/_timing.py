"""Reading a clock cheaply and being woken by it, for whatever clock the user brought.

A *ticker* gives nanoseconds, so that on a real loop it can be the C function itself; its user divides. An *alarm*
calls back at a time and is cancelled by what it returns:

- a clock that is moved by hand (:class:`~pulsar_nack.AlarmClock`) wakes us itself;
- on the loop's own clock the loop is asked for the absolute time;
- for any other clock the loop is asked for the difference.

An alarm may be asked to call by a part of a millisecond ahead: a clock of whole ms cannot tell, and is not ahead then.

Loops may fire early (uvloop by 1.3 ms), so who is woken looks at the clock again and, when too early, asks with
``is_retry``, which waits for the difference and so cannot spin.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable
from typing import Final

from ..clock import AlarmClock, Clock, LoopClock, MonotonicClock

NS_PER_MS: Final = 1_000_000
Ticker = Callable[[], int]
Cancel = Callable[[], object]


def ticker_of(clock: Clock, loop: asyncio.AbstractEventLoop) -> Ticker:
    """Return a function that tells ``clock``'s time in ns."""
    if isinstance(clock, MonotonicClock) or (isinstance(clock, LoopClock) and _is_monotonic(loop)):
        return time.monotonic_ns
    now_ms = clock.now_ms
    return lambda: now_ms() * NS_PER_MS


def _is_monotonic(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether the loop's time is ``time.monotonic``: not on a virtual loop."""
    kind = type(loop)
    return kind.time is asyncio.BaseEventLoop.time or kind.__module__.partition(".")[0] == "uvloop"


class Alarm:
    """Sets one call at a time of ``clock``; runs it in the context in which this object was made.

    :param ahead: seconds by which it calls before the time; :attr:`ahead_ns` is what comes of it
    """

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop, ahead: float = 0.0) -> None:
        self.ahead_ns = round(ahead * 1e9) if isinstance(clock, LoopClock) and _is_monotonic(loop) else 0
        self._clock = clock
        self._loop = loop
        self._ahead = self.ahead_ns / 1e9
        self._context = contextvars.copy_context()

    def set(self, at_ms: int, now_ms: int, callback: Callable[[], None], *, is_retry: bool = False) -> Cancel:
        """Call back at ``at_ms``, which lies ahead of ``now_ms``; return what cancels it."""
        if isinstance(self._clock, AlarmClock):
            return self._clock.call_at(at_ms, callback)
        if isinstance(self._clock, LoopClock) and not is_retry:
            return self._loop.call_at(at_ms / 1000 - self._ahead, callback, context=self._context).cancel
        return self._loop.call_later((at_ms - now_ms) / 1000, callback, context=self._context).cancel
