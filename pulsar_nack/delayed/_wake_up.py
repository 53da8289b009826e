"""One timer on whatever clock there is.

A clock that is moved by hand (:class:`~pulsar_nack.AlarmClock`) wakes us itself; on any other clock the loop is asked,
for the absolute time where the clock is the loop's own, else for the difference. A loop may fire early, and a wall
clock may be set back: who is woken looks at the clock and asks again when it is too early.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from functools import partial
from typing import Final

from .._delays import MAX_DELAY_MS
from ..clock import AlarmClock, Clock, LoopClock
from ..errors import InvalidArgumentError

_EXPECTED: Final = "an AlarmClock, or a running event loop, so that on_due can be called"


class WakeUp:
    """Calls ``call(at_ms)`` once at a time; ``at_ms`` is that time, None while there is none.

    :raises InvalidArgumentError: nothing could call back: there is no running loop and the clock is no alarm clock
    """

    __slots__ = ("_call", "_cancel", "_clock", "_context", "_loop", "_number", "at_ms")

    def __init__(self, clock: Clock, call: Callable[[int], None]) -> None:
        self._clock = clock
        self._call = call
        self._loop = None if isinstance(clock, AlarmClock) else _running_loop(clock)
        self._context = contextvars.copy_context()
        self._cancel: Callable[[], object] | None = None
        self._number = 0
        self.at_ms: int | None = None

    def set(self, at_ms: int, now_ms: int) -> None:
        """Wake up at ``at_ms``, at once if that is past, and not at the time that was set before."""
        if at_ms == self.at_ms:
            return
        self.cancel()
        self.at_ms = at_ms
        self._ask(at_ms, now_ms)

    def cancel(self) -> None:
        """Do not wake up; a call that is under way already does nothing."""
        self.at_ms = None
        self._number += 1
        if self._cancel is not None:
            self._cancel()
            self._cancel = None

    def _ask(self, at_ms: int, now_ms: int, *, is_retry: bool = False) -> None:
        run = partial(self._run, self._number)
        if isinstance(self._clock, AlarmClock):
            self._cancel = self._clock.call_at(at_ms, run)
            return
        assert self._loop is not None
        delay = min(max(at_ms - now_ms, 0), MAX_DELAY_MS)
        if isinstance(self._clock, LoopClock) and not is_retry and delay < MAX_DELAY_MS:
            self._cancel = self._loop.call_at(at_ms / 1000, run, context=self._context).cancel
        else:
            self._cancel = self._loop.call_later(delay / 1000, run, context=self._context).cancel

    def _run(self, number: int) -> None:
        at_ms = self.at_ms
        if number != self._number or at_ms is None:
            return
        now_ms = self._clock.now_ms()
        if now_ms < at_ms:
            self._ask(at_ms, now_ms, is_retry=True)
            return
        self.cancel()
        self._call(at_ms)


def _running_loop(clock: Clock) -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise InvalidArgumentError("clock", clock, _EXPECTED) from None
