"""Background tasks that have an owner: it waits for them, or cancels them together.

Also calls that run concurrently, and how their errors are passed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from copy import copy
from typing import Any, Final, TypeVar

from ._wake_up import WakeUp, interval_clock
from .backoff import Exponential
from .clock import Clock, WallClock
from .errors import PulsarNackError

_T = TypeVar("_T")
_E = TypeVar("_E", bound=BaseException)
_BACKOFF: Final = Exponential(0.1, 30)
MAX_AT_ONCE: Final = 32


class TaskOwner:
    """Owns tasks. A task is busy until it ends, except while it backs off before its next attempt.

    :param clock: measures backoff; a clock that may be set, such as the default, is replaced by the loop's
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = WallClock() if clock is None else clock
        self._tasks: set[asyncio.Task[Any]] = set()
        self._busy = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    def start(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Run a coroutine in the background. Its error goes to the loop's exception handler."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        self._enter()
        task.add_done_callback(self._ended)
        return task

    def begin(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Run a coroutine for a caller, who awaits the task shielded. If the caller is gone, the error is dropped."""
        task = self.start(work)
        task.add_done_callback(retrieve_error)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._leave()

    async def retry(self, attempt: Callable[[], Awaitable[bool]]) -> None:
        """Repeat an attempt, with backoff, until it returns True."""
        failures = 0
        while not await attempt():
            failures += 1
            await self.back_off(failures)

    async def back_off(self, failures: int) -> None:
        """Wait before the next attempt: about 0.1 s after the first failure, twice as long each time, at most 30 s."""
        woken = asyncio.get_running_loop().create_future()

        def wake(_: int) -> None:
            if not woken.done():
                self._enter()
                woken.set_result(None)

        clock = interval_clock(self._clock)
        wake_up = WakeUp(clock, wake)
        now_ms = clock.now_ms()
        wake_up.set(now_ms + round(float(_BACKOFF(failures - 1)) * 1000), now_ms)
        self._leave()
        try:
            await woken
        finally:
            wake_up.cancel()
            if woken.cancelled():
                self._enter()

    async def wait_until_idle(self) -> None:
        """Wait until every task has ended or backs off."""
        while not self._is_idle.is_set():
            await self._is_idle.wait()
            await asyncio.sleep(0)

    async def aclose(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _enter(self) -> None:
        self._busy += 1
        self._is_idle.clear()

    def _leave(self) -> None:
        self._busy -= 1
        if not self._busy:
            self._is_idle.set()


async def gather_or_cancel(calls: Iterable[Awaitable[_T]], most: int = MAX_AT_ONCE) -> list[_T]:
    """Await all calls, at most ``most`` at a time, and return their results in order.

    The first failure cancels the other calls and is raised.
    """
    waiting = list(calls)
    if len(waiting) == 1:
        return [await waiting[0]]
    slots = asyncio.Semaphore(most)

    async def one(call: Awaitable[_T]) -> _T:
        async with slots:
            return await call

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(call)) for call in waiting]
    except BaseExceptionGroup as errors:
        raise _first(errors) from None
    finally:
        for call in waiting:
            if asyncio.iscoroutine(call):
                call.close()  # no effect on those that ran
    return [task.result() for task in tasks]


async def gather_settled(calls: Iterable[Awaitable[object]]) -> BaseException | None:
    """Complete all calls, even if some fail or this one is cancelled; return the first error."""
    results = await asyncio.shield(asyncio.gather(*calls, return_exceptions=True))
    return next((result for result in results if isinstance(result, BaseException)), None)


def _first(errors: BaseException) -> BaseException:
    while isinstance(errors, BaseExceptionGroup):
        errors = errors.exceptions[0]
    return errors


def set_error(done: asyncio.Future[Any], error: BaseException) -> None:
    """Raise an error in one of several callers, each with its own copy, because they must not share a traceback."""
    if done.done():
        return
    if isinstance(error, asyncio.CancelledError):
        done.cancel()
    else:
        done.set_exception(own_copy(error))


def own_copy(error: _E) -> _E:
    """Return an error for one of several callers, with its cause."""
    if not isinstance(error, PulsarNackError):
        return error
    copied = copy(error)
    copied.__cause__ = error.__cause__
    copied.__suppress_context__ = error.__suppress_context__  # which is set with the cause
    return copied


def retrieve_error(done: asyncio.Future[Any]) -> None:
    """Mark the error of a task or future as retrieved: its callers have it already, or nobody wants the result."""
    if not done.cancelled():
        done.exception()
