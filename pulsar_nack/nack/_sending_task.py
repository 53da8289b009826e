"""The task of a tracker: how it is started, waited for and cancelled."""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Final

import anyio

_GRACE: Final = 1.0


class SendingTask:
    """Runs ``serve`` in a task, and calls ``on_end`` at its end if the object of that method still lives."""

    __slots__ = ("_task",)

    def __init__(self, serve: Coroutine[Any, Any, None], on_end: weakref.WeakMethod[Callable[[], None]]) -> None:
        self._task = asyncio.create_task(serve, name="pulsar_nack.NegativeAcksTracker")
        self._task.add_done_callback(functools.partial(_call, on_end))

    def cancel_soon(self) -> None:
        """Cancel the task from any thread, because its tracker was dropped."""
        if not self._task.done() and not self._task.get_loop().is_closed():
            self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    async def wait(self, timeout: float) -> None:
        """Wait until the task ends, a second longer than ``timeout`` at most, and raise the error that ended it.

        Shielded: if cancelled, it cancels the task, waits a second for it at most, and then raises.
        """
        cancelled: asyncio.CancelledError | None = None
        timeout += _GRACE
        with anyio.CancelScope(shield=True):
            while not self._task.done():
                try:
                    done, _ = await asyncio.wait({self._task}, timeout=timeout)
                except asyncio.CancelledError as error:
                    cancelled = error
                    self._task.cancel()
                    timeout = _GRACE
                else:
                    if not done:
                        break
        if cancelled is not None:
            raise cancelled
        if self._task.done() and not self._task.cancelled() and (failure := self._task.exception()) is not None:
            raise failure


def _call(method: weakref.WeakMethod[Callable[[], None]], _task: asyncio.Task[None]) -> None:
    alive = method()
    if alive is not None:
        alive()
