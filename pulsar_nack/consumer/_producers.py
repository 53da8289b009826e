"""Producers of dead letters: one for each topic, made when the first message goes there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

from ..errors import ClosedError


class SupportsClose(Protocol):
    """What can be closed."""

    async def close(self) -> object:
        """Close it."""
        ...


Made = TypeVar("Made", bound=SupportsClose)
Result = TypeVar("Result")


class Producers(Generic[Made]):
    """Makes, keeps and closes them.

    :param make: opens the producer of a topic
    """

    def __init__(self, make: Callable[[str], Coroutine[Any, Any, Made]]) -> None:
        self._make = make
        self._tasks: dict[str, asyncio.Task[Made]] = {}
        self._closing: set[asyncio.Task[object]] = set()
        self._is_closed = False

    async def use(
        self, topic: str, send: Callable[[Made], Awaitable[Result]], *, is_spent: Callable[[Exception], bool]
    ) -> Result:
        """Send with the producer of a topic; what it raises is raised.

        :param is_spent: whether a producer that raised this is of no use any more: the next call makes another one
        """
        task = self._opening(topic)
        producer = await asyncio.shield(task)
        try:
            return await send(producer)
        except Exception as error:
            if is_spent(error) and self._tasks.get(topic) is task:
                del self._tasks[topic]
                self._close_soon(producer)
            raise

    def _opening(self, topic: str) -> asyncio.Task[Made]:
        if self._is_closed:
            raise ClosedError("what publishes")
        task = self._tasks.get(topic)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            name = f"pulsar_nack dead letters to {topic}"
            task = self._tasks[topic] = asyncio.get_running_loop().create_task(self._make(topic), name=name)
        return task

    def _close_soon(self, producer: Made) -> None:
        closing: asyncio.Task[object] = asyncio.get_running_loop().create_task(_closed(producer))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        """Close all; those that are being made are given up. Idempotent."""
        self._is_closed = True
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled() and task.exception() is None:
                self._close_soon(task.result())
        if self._closing:
            await asyncio.wait(self._closing)


async def _closed(producer: SupportsClose) -> object:
    try:
        return await producer.close()
    except Exception as error:  # noqa: BLE001 - it is of no use any more
        return error
