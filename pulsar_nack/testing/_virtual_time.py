"""Virtual time: a clock that a test moves by hand, and an asyncio loop that jumps to the next timer.

The loop starts at 0. In each turn it distinguishes four cases, in this order:

1. Something is ready, or has arrived from a thread or a socket: it runs, time stands still.
2. Work runs outside of the loop (an executor, ``anyio.to_thread``, or a block of :func:`hold_time`): the loop waits in
   real time until it reports; virtual time stands still. An executor's job that ends within a real second counts as if
   it took a few turns of the loop: their number is drawn, and is the same in each run.
3. A timer is set: time jumps to it, exactly. A timer without an end, as of ``anyio.sleep_forever``, does not count.
4. Nothing at all: with open sockets the loop waits in real time, else it raises
   :class:`~pulsar_nack.errors.VirtualDeadlockError`.

A real wait is bounded by ``patience``. While a timer is set, sockets do not hold time back: put communication with a
real peer into a block of :func:`hold_time`. Time starts at 0 because at the size of a Unix time the float loses the
clock's resolution, so that a timer would never be seen as due.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import inspect
import math
import queue
import selectors
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from random import Random
from typing import Any, Final, ParamSpec, TypeVar, TypeVarTuple, Unpack

from ..errors import InvalidArgumentError, VirtualDeadlockError

_T = TypeVar("_T")
_P = ParamSpec("_P")
_Ts = TypeVarTuple("_Ts")

_MIN_ALARMS: Final = 64
"""Cancelled alarms are removed when there are more than this and twice those that are set."""
_RESOLUTION = 1e-9
_SLICE = 0.005
_AT_ONCE = 1.0
"""Real seconds that the loop waits for a job of an executor, so that runs do not depend on the speed of threads."""
_MAX_ROUNDS = 4
_Events = list[tuple[selectors.SelectorKey, int]]


class ManualClock:
    """A clock in ms that stands still until :meth:`set` or :meth:`advance`.

    Moving stops at each alarm on the way, so that its callback sees exactly the time it asked for, and includes alarms
    that callbacks add on the way. Alarms of one time go off in the order in which they were set. An alarm for a time
    that is already reached goes off at the next move, even ``advance(0)``. An error in a callback ends the move at that
    time; the other alarms stay set.
    """

    def __init__(self, now_ms: int = 0) -> None:
        self._now = _whole("now_ms", now_ms)
        self._alarms: list[tuple[int, int]] = []
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._count = 0

    def now_ms(self) -> int:
        """Return the time in ms."""
        return self._now

    def set(self, ms: int) -> None:
        """Move to ``ms``.

        :raises InvalidArgumentError: that is in the past, or not an int
        """
        if _whole("ms", ms) < self._now:
            raise InvalidArgumentError("ms", ms, f"at least the present time, {self._now}")
        while self._alarms and self._alarms[0][0] <= ms:
            at_ms, number = heapq.heappop(self._alarms)
            callback = self._callbacks.pop(number, None)
            if callback is not None:
                self._now = max(self._now, at_ms)
                callback()
        self._now = max(self._now, ms)

    def advance(self, ms: int) -> None:
        """Move forward by ``ms``.

        :raises InvalidArgumentError: negative, or not an int
        """
        if _whole("ms", ms) < 0:
            raise InvalidArgumentError("ms", ms, "at least 0")
        self.set(self._now + ms)

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` once when the time reaches ``at_ms``; return a function that cancels the alarm."""
        self._count += 1
        number = self._count
        heapq.heappush(self._alarms, (max(_whole("at_ms", at_ms), self._now), number))
        self._callbacks[number] = callback
        return functools.partial(self._cancel, number)

    @property
    def alarms(self) -> int:
        """Return how many alarms are set."""
        return len(self._callbacks)

    def _cancel(self, number: int) -> None:
        self._callbacks.pop(number, None)
        if len(self._alarms) > _MIN_ALARMS + 2 * len(self._callbacks):
            self._alarms = [alarm for alarm in self._alarms if alarm[1] in self._callbacks]
            heapq.heapify(self._alarms)


def _whole(field: str, value: object) -> int:
    if type(value) is not int:
        raise InvalidArgumentError(field, value, "milliseconds as an int")
    return value


# --- the loop -------------------------------------------------------------------------------------------------------


class VirtualClockEventLoop(asyncio.SelectorEventLoop):
    """A real asyncio loop whose :meth:`time` is virtual; use it as a ``loop_factory``.

    :func:`run` and :func:`virtual_time` use it for you. For pytest-asyncio (1.4 and later), so that async fixtures run
    on it too, put this into ``conftest.py``::

        def pytest_asyncio_loop_factories(config, item):
            return {"virtual": VirtualClockEventLoop}

    :param patience: real seconds to wait for threads or sockets before the loop gives up
    """

    _scheduled: list[asyncio.TimerHandle]
    _clock_resolution: float
    _default_executor: Executor | None

    def __init__(self, patience: float = 10.0) -> None:
        self._now = 0.0
        self._holds = 0
        self._rounds = Random(0)  # noqa: S311
        self.patience = patience
        super().__init__(_JumpingSelector(self))
        self._clock_resolution = _RESOLUTION

    def time(self) -> float:
        """Return virtual seconds since the loop was made."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass without running anything, as a call that blocks the loop does.

        :raises InvalidArgumentError: negative or not finite
        """
        if not 0 <= seconds < math.inf:
            raise InvalidArgumentError("seconds", seconds, "a finite number of at least 0")
        self._set_now(self._now + seconds)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Let virtual time stand still inside the block, while the loop waits in real time for others."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[_Ts]], _T], *args: *_Ts
    ) -> asyncio.Future[_T]:
        """Run ``func`` in a thread, as any loop does; time stands still until it is done.

        A job that waits for the loop blocks it for a real second first.
        """
        self._check_closed()  # type: ignore[attr-defined]
        if executor is None:
            self._check_default_executor()  # type: ignore[attr-defined]
            if self._default_executor is None:
                self.set_default_executor(ThreadPoolExecutor(thread_name_prefix="asyncio"))
            executor = self._default_executor
        assert executor is not None
        job = executor.submit(func, *args)
        with suppress(TimeoutError):
            job.exception(_AT_ONCE)
        if job.done():
            future: asyncio.Future[_T] = self.create_future()
            self._answer(future, job, self._rounds.randrange(_MAX_ROUNDS))
        else:
            future = asyncio.wrap_future(job, loop=self)
        self._holds += 1
        future.add_done_callback(self._release)
        return future

    def _answer(self, future: asyncio.Future[_T], job: Future[_T], rounds: int) -> None:
        if future.cancelled():
            return
        if rounds:
            self.call_soon(self._answer, future, job, rounds - 1)
        elif (error := job.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(job.result())

    async def shutdown_default_executor(self, *args: Any, **kwargs: Any) -> None:
        """Join the executor's threads, as any loop does; time stands still meanwhile."""
        with self.hold():
            await super().shutdown_default_executor(*args, **kwargs)

    def _release(self, _future: asyncio.Future[Any]) -> None:
        self._holds -= 1

    def _set_now(self, now: float) -> None:
        self._now = max(self._now, now)
        self._clock_resolution = max(_RESOLUTION, math.ulp(self._now))

    def _is_held(self) -> bool:
        return self._holds > 0 or any(_works_for(thread, self) for thread in threading.enumerate())

    def _jump(self) -> bool:
        if not self._scheduled or self._scheduled[0].when() == math.inf:
            return False
        self._set_now(self._scheduled[0].when())
        return True

    def _stuck(self, reason: str) -> VirtualDeadlockError:
        return VirtualDeadlockError(reason, self._now, [_describe(task) for task in asyncio.all_tasks(self)])


class _JumpingSelector(selectors.DefaultSelector):
    """The place where a loop would sleep: decides between jumping, waiting in real time, and giving up."""

    def __init__(self, loop: VirtualClockEventLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> _Events:
        is_held = timeout != 0 and self._loop._is_held()  # first: what a thread posts right after this is seen below
        events = super().select(0)
        if events or timeout == 0:
            return events
        if is_held:
            return self._wait_really(self._loop._is_held, "work outside of the loop did not end")
        if self._loop._jump():
            return events
        if len(self.get_map()) > 1:  # the loop's own wake-up pipe is always there
            return self._wait_really(lambda: True, "nothing came in from the open sockets")
        raise self._loop._stuck("nothing is scheduled and nothing is under way")

    def _wait_really(self, is_needed: Callable[[], bool], reason: str) -> _Events:
        give_up_at = time.monotonic() + self._loop.patience
        while is_needed():
            events = super().select(_SLICE)
            if events:
                return events
            if time.monotonic() > give_up_at:
                raise self._loop._stuck(f"{reason} within {self._loop.patience} real seconds")
        return []


def _works_for(thread: threading.Thread, loop: VirtualClockEventLoop) -> bool:
    """Return whether this is a worker of ``anyio.to_thread`` with a job of ``loop``."""
    jobs = getattr(thread, "queue", None)
    return isinstance(jobs, queue.Queue) and jobs.unfinished_tasks > 0 and getattr(thread, "loop", None) is loop


def _describe(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack(limit=1)
    where = f" at {frames[0].f_code.co_filename}:{frames[0].f_lineno}" if frames else ""
    return f"{task.get_name()} in {getattr(task.get_coro(), '__qualname__', '?')}{where}"


@contextmanager
def hold_time() -> Iterator[None]:
    """Let virtual time stand still inside the block, for real I/O or your own threads; call it in the loop.

    On a loop that is not virtual it does nothing.
    """
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualClockEventLoop):
        yield
        return
    with loop.hold():
        yield


def run(main: Coroutine[Any, Any, _T], *, debug: bool | None = None, patience: float = 10.0) -> _T:
    """Run a coroutine on a new virtual loop that starts at 0, as ``asyncio.run`` does on a real one.

    :raises VirtualDeadlockError: it would have waited for ever
    """
    with asyncio.Runner(debug=debug, loop_factory=lambda: VirtualClockEventLoop(patience)) as runner:
        return runner.run(main)


def virtual_time(test: Callable[_P, Coroutine[Any, Any, _T]]) -> Callable[_P, _T]:
    """Turn a coroutine function into a plain function; each call runs on a new virtual loop.

    For tests, under any runner and with any plugin::

        @virtual_time
        async def test_an_hour_passes() -> None:
            await asyncio.sleep(3600)
            assert asyncio.get_running_loop().time() == 3600
    """

    if not inspect.iscoroutinefunction(test):
        raise InvalidArgumentError("test", test, "a coroutine function (async def)")

    @functools.wraps(test)
    def run_on_virtual_time(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        return run(test(*args, **kwargs))

    return run_on_virtual_time
