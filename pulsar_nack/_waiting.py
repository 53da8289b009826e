"""Calls that wait in line: for capacity, for room, or for a queue to have items; and waiting for a limited time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, TypeVar

import anyio

_T = TypeVar("_T")
_GRACE: Final = 1.0


class WaitingCalls(OrderedDict["asyncio.Future[_T]", int], Generic[_T]):
    """Calls that wait, first come, first served, each with its size. A call that is woken gets a value."""

    async def wait(self, pass_on: Callable[[_T], object], size: int = 1) -> _T:
        """Wait until woken, and return the value; a call that is cancelled after that passes the value on."""
        call: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self[call] = size
        try:
            return await call
        except asyncio.CancelledError:
            if not call.cancelled() and call.exception() is None:
                pass_on(call.result())
            raise
        finally:
            self.pop(call, None)

    def first_size(self) -> int | None:
        """Return the size of the call that waits longest, None if no call waits."""
        while self:
            call, size = next(iter(self.items()))
            if not call.done():
                return size
            del self[call]
        return None

    def wake_first(self, value: _T) -> bool:
        """Wake the call that waits longest; return whether there was one."""
        while self:
            call, _ = self.popitem(last=False)
            if not call.done():
                call.set_result(value)
                return True
        return False

    def wake_all(self, value: _T) -> None:
        """Wake all calls, in their order."""
        while self.wake_first(value):
            pass

    def fail_all(self, error: Exception) -> None:
        """Raise an error in all calls."""
        while self:
            call, _ = self.popitem(last=False)
            if not call.done():
                call.set_exception(error)


async def wait_at_most(event: asyncio.Event, seconds: float | None) -> None:
    """Wait until an event is set, but no longer than this; None: as long as it takes."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def wait_or_cancel(task: asyncio.Task[None], timeout: float) -> None:
    """Wait until a task ends, a second longer than ``timeout`` at most, and raise the error that ended it.

    Shielded: if cancelled, it cancels the task, waits a second for it at most, and then raises.
    """
    cancelled: asyncio.CancelledError | None = None
    timeout += _GRACE
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                done, _ = await asyncio.wait({task}, timeout=timeout)
            except asyncio.CancelledError as error:
                cancelled = error
                task.cancel()
                timeout = _GRACE
            else:
                if not done:
                    break
    if cancelled is not None:
        raise cancelled
    if task.done() and not task.cancelled() and (failure := task.exception()) is not None:
        raise failure
