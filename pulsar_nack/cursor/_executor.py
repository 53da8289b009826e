"""Operations that have to wait for storage, run one after the other in the order of their calls.

Cancelling a call withdraws an operation that has not begun. One that has begun asks whether it is still wanted when it
is about to change anything.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from .._tasks import retrieve_error, set_error

_T = TypeVar("_T")

IsWanted = Callable[[], bool]
Operation = Callable[[IsWanted], Awaitable[_T]]


class _Queued(NamedTuple):
    operation: Operation[Any]
    done: asyncio.Future[Any]


class SerialExecutor:
    """Runs operations one at a time, in a task that exists while there are any."""

    def __init__(self) -> None:
        self._queue: deque[_Queued] = deque()
        self._task: asyncio.Task[None] | None = None
        self.is_busy = False
        """Whether an operation waits or runs."""

    async def run(self, operation: Operation[_T]) -> _T:
        """Run an operation after those before it; return its result."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[_T] = loop.create_future()
        self._queue.append(_Queued(operation, done))
        if self._task is None:
            self.is_busy = True
            self._task = loop.create_task(self._work(), name="pulsar_nack.Cursor operations")
            self._task.add_done_callback(retrieve_error)
        return await done

    async def wait_for_queued(self) -> None:
        """Wait for the operations that wait or run now."""
        if self.is_busy:
            await self.run(_nothing)

    async def wait_until_idle(self) -> None:
        """Wait until no operation waits or runs."""
        while self._task is not None:
            await asyncio.wait([self._task])

    def cancel(self) -> None:
        """Withdraw all operations; their callers are cancelled."""
        if self._task is not None:
            self._task.cancel()

    async def _work(self) -> None:
        try:
            while self._queue:
                operation, done = self._queue.popleft()
                if not done.done():
                    await _run(operation, done)
        finally:
            self._task, self.is_busy = None, False
            for _, done in self._queue:
                done.cancel()
            self._queue.clear()


async def _nothing(is_wanted: IsWanted) -> None:
    """Do nothing: it marks a place in the queue."""


async def _run(operation: Operation[Any], done: asyncio.Future[Any]) -> None:
    try:
        result = await operation(lambda: not done.done())
    except BaseException as error:
        set_error(done, error)
        if not isinstance(error, Exception):
            raise
    else:
        if not done.done():
            done.set_result(result)
