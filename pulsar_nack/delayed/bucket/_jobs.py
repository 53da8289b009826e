"""The work that goes on beside the calls: tasks that are owned, retried with backoff, and ended together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Generator
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import anyio

from ..._wake_up import WakeUp, interval_clock
from ...backoff import Exponential
from ...clock import Clock

_T = TypeVar("_T")
_BACKOFF: Final = Exponential(0.1, 30)

MOST_READING: Final = 8
"""Most reads at the same time, late ones not counted."""
_LATE_MS: Final = 100


class Jobs:
    """Owns tasks. One is busy until it ends, but for the time in which it waits for its next attempt.

    How long something takes is measured by ``clock``, which nobody can set.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock: Final = interval_clock(clock)
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = anyio.CapacityLimiter(MOST_READING)
        self._busy = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Let a coroutine run on its own. What it raises goes to the loop's exception handler."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        self._begin()
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._end()

    @asynccontextmanager
    async def read_slot(self) -> AsyncIterator[None]:
        """Wait for one of the slots for reads, and hold it.

        A late read makes room for two more. So if any number of reads hang, the number of reads at the same time
        doubles again and again, and the reads after the hanging ones begin within a second.
        """

        def become_late(_: int) -> None:
            self._slots.total_tokens += 2

        async with self._slots:
            late = WakeUp(self.clock, become_late)
            now_ms = self.clock.now_ms()
            late.set(now_ms + _LATE_MS, now_ms)
            try:
                yield
            finally:
                if late.at_ms is None:
                    self._slots.total_tokens -= 2
                late.cancel()

    async def back_off(self, failures: int) -> None:
        """Wait before the next attempt: about 0.1 s after the first failure, twice as long each time, at most 30 s."""
        woken = asyncio.get_running_loop().create_future()

        def wake(_: int) -> None:
            if not woken.done():
                self._begin()
                woken.set_result(None)

        wake_up = WakeUp(self.clock, wake)
        now_ms = self.clock.now_ms()
        wake_up.set(now_ms + round(float(_BACKOFF(failures - 1)) * 1000), now_ms)
        self._end()
        try:
            await woken
        finally:
            wake_up.cancel()
            if woken.cancelled():
                self._begin()

    async def idle(self) -> None:
        """Wait until all tasks have ended or wait for their next attempt."""
        while not self._is_idle.is_set():
            await self._is_idle.wait()
            await asyncio.sleep(0)

    async def aclose(self) -> None:
        """Cancel all tasks and wait for their ends."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self) -> None:
        self._busy += 1
        self._is_idle.clear()

    def _end(self) -> None:
        self._busy -= 1
        if not self._busy:
            self._is_idle.set()


async def in_steps(work: Generator[None, None, _T]) -> _T:
    """Run a generator to its end and let others run after each step; return what it returns."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: _T = done.value
            return result
        await asyncio.sleep(0)
