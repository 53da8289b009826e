"""When a cursor's state is written: at once for who waits for it, and some time after a change for nobody.

One write is under way at a time. Whoever asks meanwhile shares the next one, or, if nothing has changed since this one
began, this one. A failed write is told to those who wait for it, and tried again after a pause, which doubles, without
anybody having to ask (K32). After the log was taken over by somebody else nothing is tried any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from ..errors import LogFencedError
from ._line import refuse, retrieve

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 10.0
_log = logging.getLogger("pulsar_nack.cursor")


class Flusher:
    """Calls ``write`` when it is time.

    :param write: writes what has changed
    :param is_dirty: whether anything has changed that no write has begun with
    :param interval_s: how long after a change it is written
    """

    def __init__(self, write: Callable[[], Awaitable[None]], is_dirty: Callable[[], bool], interval_s: float) -> None:
        self.is_armed = False
        """Whether the last change will be written without anybody asking."""
        self.failures = 0
        self.broken: LogFencedError | None = None
        self._write = write
        self._is_dirty = is_dirty
        self._interval_s = interval_s
        self._pause_s = 0.0
        self._is_ended = False
        self._is_wanted_again = False
        self._waiting: list[asyncio.Future[None]] = []
        self._current: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_writing(self) -> bool:
        """Return whether a write is under way."""
        return self._task is not None

    def arm(self) -> None:
        """Have a change written, later."""
        self.is_armed = True
        if self._task is None and self._timer is None and not self._is_ended:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._pause_s or self._interval_s, self.begin)

    def begin(self) -> None:
        """Begin a write; where one is under way, another one follows."""
        if self._task is not None:
            self._is_wanted_again = True
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._task = asyncio.get_running_loop().create_task(self._work(), name="pulsar_nack.Cursor flush")
        self._task.add_done_callback(retrieve)

    async def flush(self) -> None:
        """Return when everything that changed before is written.

        :raises LedgerError: it could not be written; it is tried again
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

    async def idle(self) -> None:
        """Wait until no write is under way."""
        while self._task is not None:
            await asyncio.wait([self._task])

    def end(self) -> None:
        """Begin nothing by itself any more."""
        self._is_ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _work(self) -> None:
        try:
            await asyncio.sleep(0)  # who asks in this round of the loop shares the write
            await self._write_once()
            while self._waiting or self._is_wanted_again:
                await self._write_once()
        except BaseException as error:
            self._current, self._waiting = [*self._current, *self._waiting], []
            self._answer(error)
            raise
        finally:
            self._task = None
        if self._is_dirty() and self.broken is None:
            self.arm()

    async def _write_once(self) -> None:
        self._current, self._waiting = [*self._current, *self._waiting], []
        self.is_armed = self._is_wanted_again = False
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
                refuse(done, error)
            elif not done.done():
                done.set_result(None)

    def _note_failure(self, error: Exception) -> None:
        self.failures += 1
        if isinstance(error, LogFencedError):
            self.broken = error
            _log.warning("a cursor was taken over by somebody else, and writes nothing any more: %s", error)
            return
        if not self._pause_s:
            _log.warning("a cursor's state could not be written, and is tried again: %s", error)
        self._pause_s = min(2 * self._pause_s or _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
