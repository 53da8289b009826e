"""Tasks that run to their end even if the call that began them is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class TaskOwner:
    """Owns tasks, and waits for them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run_to_end(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine and return its result; if this call is cancelled, the coroutine still runs to its end."""
        return await asyncio.shield(self.begin(work))

    def begin(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Begin a task; wait for it only shielded."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def wait_until_idle(self) -> None:
        """Wait until no task runs."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the caller has it already, or was cancelled
