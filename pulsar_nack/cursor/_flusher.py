"""When a cursor's state is written: at once for callers of ``flush``, otherwise some time after a change.

There is one write at a time. Callers that arrive meanwhile share the next write, or this one if nothing has changed
since it began. A write that fails raises in its callers and is tried again after a pause, which doubles, also without
callers. What no write can hold is tried again after the next change only. After another owner took over the log,
nothing is written any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from .._tasks import retrieve_error, set_error
from ..errors import InvalidArgumentError, LogFencedError

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 10.0
_log = logging.getLogger("pulsar_nack.cursor")


class Flusher:
    """Calls ``write`` when it is time.

    :param write: writes what has changed
    :param is_dirty: returns whether anything has changed since the last write began
    :param interval_s: how long after a change it is written
    """

    def __init__(self, write: Callable[[], Awaitable[None]], is_dirty: Callable[[], bool], interval_s: float) -> None:
        self.is_armed = False
        """Whether a write is scheduled for the last change."""
        self.failures = 0
        self.broken: LogFencedError | None = None
        self._write = write
        self._is_dirty = is_dirty
        self._interval_s = interval_s
        self._pause_s = 0.0
        self._is_ended = False
        self._is_another_wanted = False
        self._is_unwritable = False
        self._waiting: list[asyncio.Future[None]] = []
        self._current: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def arm(self) -> None:
        """Schedule a write."""
        self.is_armed = True
        if self._task is None and self._timer is None and not self._is_ended:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._pause_s or self._interval_s, self.begin)

    def begin(self) -> None:
        """Begin a write, or another one after the present one."""
        if self._task is not None:
            self._is_another_wanted = True
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._task = asyncio.get_running_loop().create_task(self._work(), name="pulsar_nack.Cursor flush")
        self._task.add_done_callback(retrieve_error)

    async def flush(self) -> None:
        """Return when all changes before this call are written.

        :raises LedgerError: they could not be written; it is tried again
        """
        if self.broken is not None:
            raise LogFencedError(self.broken.log)
        is_dirty = self._is_dirty()
        if not is_dirty and self._task is None:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        (self._waiting if is_dirty else self._current).append(done)
        self.begin()
        await done

    async def wait_until_idle(self) -> None:
        """Wait until no write runs."""
        while self._task is not None:
            await asyncio.wait([self._task])

    def end(self) -> None:
        """Schedule no more writes."""
        self._is_ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _work(self) -> None:
        try:
            await asyncio.sleep(0)  # callers in this turn of the loop share the write
            await self._write_once()
            while self._waiting or self._is_another_wanted:
                await self._write_once()
        except BaseException as error:
            self._current, self._waiting = [*self._current, *self._waiting], []
            self._answer(error)
            raise
        finally:
            self._task, self.is_armed = None, False
        if self._is_dirty() and self.broken is None and not self._is_unwritable:
            self.arm()

    async def _write_once(self) -> None:
        self._current, self._waiting = [*self._current, *self._waiting], []
        self.is_armed = self._is_another_wanted = self._is_unwritable = False
        try:
            await self._write()
        except BaseException as error:
            self._answer(error)
            if not isinstance(error, Exception):
                raise
            self._note_failure(error)
        else:
            self._pause_s = 0.0
            self._answer(None)

    def _answer(self, error: BaseException | None) -> None:
        current, self._current = self._current, []
        for done in current:
            if error is not None:
                set_error(done, error)
            elif not done.done():
                done.set_result(None)

    def _note_failure(self, error: Exception) -> None:
        self.failures += 1
        if isinstance(error, LogFencedError):
            self.broken = error
            _log.warning("a cursor was taken over by another owner and writes nothing any more: %s", error)
            return
        self._is_unwritable = isinstance(error, InvalidArgumentError)
        if not self._pause_s:
            when = "after the next change" if self._is_unwritable else "soon"
            _log.warning("a cursor's state could not be written; it is tried again %s: %s", when, error)
        self._pause_s = min(2 * self._pause_s or _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
