"""Runs a coroutine until its n-th await, or for n ticks, and cancels it there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, Final, Literal

When = Literal["waiting", "answered", "insisting"]
"""Where a call is cancelled: when it begins to wait, just when the awaited result is there, or some ticks later.

If ticks later, then again at each await of its clean-up, before anything runs that the call started there.
"""

TICK_S: Final = 0.0005
_MAX_TIMES: Final = 10


class Stepped:
    """Runs a coroutine in a separate task, which is cancelled once at the await or tick number ``at``, from 1.

    ``was_reached`` says whether the coroutine had that many.
    """

    def __init__(self, inner: Coroutine[Any, Any, object], at: int, when: When = "waiting") -> None:
        self.was_reached = False
        self._inner = inner
        self._at = at
        self._when = when
        self._awaits = self._insisted = 0

    def __await__(self) -> Generator[Any, None, object]:
        task = asyncio.current_task()
        assert task is not None
        if self._when == "insisting":
            asyncio.get_running_loop().call_later(self._at * TICK_S, self._cancel, task)
        resume: Callable[[], Any] = partial(self._inner.send, None)
        while True:
            try:
                waited_for = resume()
            except StopIteration as end:
                return end.value
            self._awaits += 1
            if self._awaits == self._at and self._when != "insisting":
                self._cancel_at(waited_for, task)
            try:
                yield waited_for
            except BaseException as error:  # noqa: BLE001 - handed on
                resume = partial(self._inner.throw, error)
            else:
                resume = partial(self._inner.send, None)
            if self._when == "insisting" and self.was_reached and self._insisted < _MAX_TIMES:
                self._insisted += 1
                asyncio.get_running_loop().call_soon(task.cancel)

    def _cancel_at(self, waited_for: asyncio.Future[Any] | None, task: asyncio.Task[Any]) -> None:
        if waited_for is None or self._when == "waiting":
            asyncio.get_running_loop().call_soon(self._cancel, task)
        else:  # before the task itself notices
            waited_for.add_done_callback(lambda _: self._cancel(task))

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        self.was_reached = task.cancel()


async def cancelled_at(inner: Coroutine[Any, Any, object], at: int, when: When = "waiting") -> bool:
    """Run ``inner`` and cancel it at its await or tick number ``at``; return whether it had that many.

    Other exceptions than the cancellation are raised here.
    """
    stepped = Stepped(inner, at, when)

    async def run() -> object:
        return await stepped

    task = asyncio.create_task(run(), name="stepped")
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    return stepped.was_reached
