"""Several calls at a time, of which the first error counts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

MOST_AT_ONCE: Final = 32


async def together(calls: Iterable[Awaitable[T]], most: int = MOST_AT_ONCE) -> list[T]:
    """Await all, at most so many at a time; return their results in order.

    The first that fails cancels the others, and its error is raised.
    """
    waiting = list(calls)
    if len(waiting) == 1:
        return [await waiting[0]]
    room = asyncio.Semaphore(most)

    async def one(call: Awaitable[T]) -> T:
        async with room:
            return await call

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(call)) for call in waiting]
    except BaseExceptionGroup as errors:
        raise _first(errors) from None
    finally:
        for call in waiting:
            if asyncio.iscoroutine(call):
                call.close()  # does nothing to those that ran
    return [task.result() for task in tasks]


async def each_tried(calls: Iterable[Awaitable[object]]) -> BaseException | None:
    """Await all to their ends, whatever becomes of the others or of this call; return the first error."""
    results = await asyncio.shield(asyncio.gather(*calls, return_exceptions=True))
    return next((result for result in results if isinstance(result, BaseException)), None)


def _first(errors: BaseException) -> BaseException:
    while isinstance(errors, BaseExceptionGroup):
        errors = errors.exceptions[0]
    return errors
