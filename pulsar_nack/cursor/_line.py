"""Operations that have to wait for storage, done one after the other in the order of their calls (K31).

An operation is begun when those before it are over. Cancelling a call gives up an operation that was not begun; one
that was begun tests whether it is still wanted at the moment at which it changes anything.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from copy import copy
from typing import Any, NamedTuple, TypeVar

from ..errors import PulsarNackError

_T = TypeVar("_T")

IsWanted = Callable[[], bool]
Operation = Callable[[IsWanted], Awaitable[_T]]


class _Waiting(NamedTuple):
    operation: Operation[Any]
    done: asyncio.Future[Any]


class Line:
    """The operations that wait, and the task that does them while there are any."""

    def __init__(self) -> None:
        self._waiting: deque[_Waiting] = deque()
        self._task: asyncio.Task[None] | None = None
        self.is_busy = False
        """Whether something waits or is under way."""

    async def put(self, operation: Operation[_T]) -> _T:
        """Do this when everything before it is done; return its result."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[_T] = loop.create_future()
        self._waiting.append(_Waiting(operation, done))
        if self._task is None:
            self.is_busy = True
            self._task = loop.create_task(self._work(), name="pulsar_nack.Cursor line")
            self._task.add_done_callback(retrieve)
        return await done

    async def empty(self) -> None:
        """Wait until nothing waits and nothing is under way."""
        while self._task is not None:
            await asyncio.wait([self._task])

    def cancel(self) -> None:
        """Give up everything; those who wait are cancelled."""
        if self._task is not None:
            self._task.cancel()

    async def _work(self) -> None:
        try:
            while self._waiting:
                operation, done = self._waiting.popleft()
                if not done.done():
                    await _carry_out(operation, done)
        finally:
            self._task, self.is_busy = None, False
            for _, done in self._waiting:
                done.cancel()
            self._waiting.clear()


async def _carry_out(operation: Operation[Any], done: asyncio.Future[Any]) -> None:
    try:
        result = await operation(lambda: not done.done())
    except BaseException as error:
        refuse(done, error)
        if not isinstance(error, Exception):
            raise
    else:
        if not done.done():
            done.set_result(result)


def refuse(done: asyncio.Future[Any], error: BaseException) -> None:
    """Hand an error to one of several callers, who must not share a traceback."""
    if done.done():
        return
    if isinstance(error, asyncio.CancelledError):
        done.cancel()
    else:
        done.set_exception(copy(error) if isinstance(error, PulsarNackError) else error)


def retrieve(task: asyncio.Task[Any]) -> None:
    """Take note of a task's error, which those who wait have got already."""
    if not task.cancelled():
        task.exception()
