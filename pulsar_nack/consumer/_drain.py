"""The orderly end of a consumer: what it fetched ahead goes back, what was delivered can be settled, then it closes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from ..errors import ClosedError
from ._engine import ConsumerEngine

_log = logging.getLogger("pulsar_nack.consumer")
_END_TIMEOUT_S: Final = 6.0
"""After this a warning names cancelled handlers that have not ended."""


@dataclass(frozen=True, slots=True)
class DrainReport:
    """How a consumer ended.

    :param settled: delivered messages that were not settled when the drain began, and were settled since
    :param given_back: prefetched messages that went back to the broker at once; others follow with the close, and do
        not count
    :param cancelled: handlers that outlived the timeout: they were cancelled, and their messages nacked by the backoff
    :param left: delivered messages that were not settled in the end, and that went back to the broker with the close
    """

    settled: int = 0
    given_back: int = 0
    cancelled: int = 0
    left: int = 0


class HandlerTasks:
    """The tasks in which the handlers of one consumer run, for those that end them."""

    def __init__(self) -> None:
        self.workers: list[asyncio.Task[None]] = []
        self.is_stopping = asyncio.Event()
        """Set when no other handler is to begin."""
        self.is_ending = False
        """Whether handlers that still run are cancelled."""
        self.cancelled = 0

    async def until_ended(self) -> None:
        """Wait until all workers have ended."""
        if self.workers:
            await asyncio.wait(self.workers)

    async def end(self) -> int:
        """Cancel the handlers that still run, and wait until they have ended; return how many."""
        self.is_ending = True
        late = [worker for worker in self.workers if not worker.done()]
        for worker in late:
            worker.cancel()
        if late:
            _, late_still = await asyncio.wait(late, timeout=_END_TIMEOUT_S)
            if late_still:
                _log.error("%d handlers were cancelled and do not end; waiting for them", len(late_still))
                await asyncio.wait(late_still)
        return self.cancelled


class Drain:
    """An orderly end of a consumer, in a task.

    :param handlers: None: the consumer runs no handler
    :param server: ends when the consumer is closed, by whatever
    :param close: closes the consumer
    :param timeout_s: how long delivered messages may take; None: as long as they need
    """

    def __init__(
        self,
        engine: ConsumerEngine,
        handlers: HandlerTasks | None,
        server: asyncio.Task[None],
        close: Callable[[], Awaitable[None]],
        timeout_s: float | None,
    ) -> None:
        self._engine = engine
        self._receiver = engine.receiver
        self._handlers = handlers
        self._server = server
        self._close = close
        self._hurried = asyncio.Event()
        if handlers is not None:
            handlers.is_stopping.set()
        self._given_back = engine.pausing.drain(ClosedError("the consumer"))  # none if it is closed
        self._in_work = engine.receiver.in_work()
        _log.info("draining: %d messages are being handled, %d went back", self._in_work, self._given_back)
        self.task = asyncio.create_task(self._run(timeout_s), name="pulsar_nack.Consumer draining")

    def hurry(self) -> None:
        """Let the timeout be over."""
        self._hurried.set()

    async def _run(self, timeout_s: float | None) -> DrainReport:
        cancelled = 0
        try:
            waits = [asyncio.create_task(wait) for wait in (self._until_settled(), self._hurried.wait())]
            try:
                await asyncio.wait([*waits, self._server], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
                await asyncio.gather(*waits, return_exceptions=True)
            if self._handlers is not None:
                cancelled = await self._handlers.end()
        finally:
            left = self._receiver.in_work()
            await self._close()
            self._engine.trace.drained(self._given_back, left)
        settled = max(self._in_work - cancelled - left, 0)
        return DrainReport(settled=settled, given_back=self._given_back, cancelled=cancelled, left=left)

    async def _until_settled(self) -> None:
        drained = self._engine.pausing.drained
        assert drained is not None
        await drained.wait()
        if self._handlers is not None:
            await self._handlers.until_ended()
