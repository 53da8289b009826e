"""Finds out that a broker is gone without a word: it is asked now and then, and has to be heard until the next time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class KeepAlive:
    """One timer. A broker that falls silent counts as gone after one to two intervals.

    :param interval: seconds from one question to the next
    :param ask: sends the question
    :param gone: called once when there was no sign of life since the last question
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, interval: float, ask: Callable[[], None], gone: Callable[[], None]
    ) -> None:
        self.was_heard = True
        """To be set whenever anything comes from the broker."""
        self._loop = loop
        self._interval = interval
        self._ask = ask
        self._gone = gone
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Ask in an interval from now, and so on."""
        self._timer = self._loop.call_later(self._interval, self._look)

    def stop(self) -> None:
        """Ask no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        if not self.was_heard:
            self._timer = None
            self._gone()
            return
        self.was_heard = False
        self.start()
        self._ask()
