"""Work that has to be done whoever waits for it or does not: tasks that are owned, and waited for in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class Chores:
    """Owns tasks that nobody cancels."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Let a coroutine run on its own."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # nobody may be left to ask for it

    async def done(self) -> None:
        """Wait until there is none; their errors belong to whoever started them."""
        while self._tasks:
            await asyncio.wait(self._tasks)
