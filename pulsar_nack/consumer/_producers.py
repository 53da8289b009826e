"""Producers of dead letters: one for each topic and schema, opened for the first message."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from .._foreign import shown
from ..errors import ClosedError
from ._port import Schema

Key = TypeVar("Key", bound=Hashable)
Made = TypeVar("Made")
Result = TypeVar("Result")


def warn_without_schema(log: logging.Logger, schema: Schema, error: Exception) -> None:
    """Log that dead letters are published without their schema, because the broker does not return it."""
    topic, version = schema
    log.warning(
        "dead letters of %s are sent without their schema, version %s: %s",
        topic,
        shown(version.hex()),
        shown(str(error)),
    )


class DeadLetterProducers(Generic[Key, Made]):
    """Opens, keeps and closes the producers of one publisher.

    :param make: opens the producer of a key: a topic, and the schema of its messages; it has an asynchronous ``close``
    """

    def __init__(self, make: Callable[[Key], Coroutine[Any, Any, Made]]) -> None:
        self._make = make
        self._tasks: dict[Key, asyncio.Task[Made]] = {}
        self._closing: set[asyncio.Task[object]] = set()
        self._is_closed = False

    async def use(
        self, key: Key, send: Callable[[Made], Awaitable[Result]], *, is_spent: Callable[[Exception], bool]
    ) -> Result:
        """Send with the producer of a key.

        :param is_spent: whether a producer that raised this error is unusable, so that the next call opens another
        """
        task = self._opening(key)
        producer = await asyncio.shield(task)
        try:
            return await send(producer)
        except Exception as error:
            if is_spent(error) and self._tasks.get(key) is task:
                del self._tasks[key]
                self._close_soon(producer)
            raise

    def _opening(self, key: Key) -> asyncio.Task[Made]:
        if self._is_closed:
            raise ClosedError("the publisher")
        task = self._tasks.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            name = f"pulsar_nack dead letters to {key}"
            task = self._tasks[key] = asyncio.get_running_loop().create_task(self._make(key), name=name)
        return task

    def _close_soon(self, producer: Made) -> None:
        closing: asyncio.Task[object] = asyncio.get_running_loop().create_task(_closed(producer))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        """Close all producers, and cancel those that are being opened. Idempotent."""
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


async def _closed(producer: Any) -> object:
    try:
        return await producer.close()
    except Exception as error:  # noqa: BLE001 - it is of no use any more
        return error
