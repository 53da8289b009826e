"""How a consumer is opened, drained and closed; the user's :class:`Consumer` delegates to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from .._delays import Delay, delay_ms
from .._lifetime import check_loop
from ..errors import ClosedError, InvalidArgumentError
from ._engine import ConsumerEngine
from ._runner import Runner

_log = logging.getLogger("pulsar_nack.consumer")


@dataclass(frozen=True, slots=True)
class DrainReport:
    """How a consumer ended.

    :param settled: messages that were in work when the drain began, and were settled since
    :param given_back: fetched messages that nobody had begun with, and that went back to the broker at once; those that
        the port cannot give back by themselves follow when it closes, and do not count
    :param cancelled: handlers that outlived the timeout: they were cancelled, and their messages nacked by the backoff
    :param left: messages in work that nobody had settled by the end, and that went back to the broker with the close
    """

    settled: int = 0
    given_back: int = 0
    cancelled: int = 0
    left: int = 0


class Drain:
    """An orderly end of a consumer, in a task of its own.

    :param server: ends when the consumer is closed, by whatever
    :param close: closes the consumer
    :param timeout_s: how long messages in work may take; None: as long as they need
    """

    def __init__(
        self,
        engine: ConsumerEngine,
        runner: Runner | None,
        server: asyncio.Task[None],
        close: Callable[[], Awaitable[None]],
        timeout_s: float | None,
    ) -> None:
        self._engine = engine
        self._receiver = engine.receiver
        self._runner = runner
        self._server = server
        self._close = close
        self._hurried = asyncio.Event()
        if runner is not None:
            runner.is_stopping.set()
        self._given_back = engine.receiver.pausing.drain(ClosedError("the consumer"))  # none if it is closed
        self._in_work = engine.receiver.in_work()
        _log.info("draining: %d messages are in work, %d went back", self._in_work, self._given_back)
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
            if self._runner is not None:
                cancelled = await self._runner.end()
        finally:
            left = self._receiver.in_work()
            await self._close()
            self._engine.trace.drained(self._given_back, left)
        settled = max(self._in_work - cancelled - left, 0)
        return DrainReport(settled=settled, given_back=self._given_back, cancelled=cancelled, left=left)

    async def _until_settled(self) -> None:
        drained = self._receiver.pausing.drained
        assert drained is not None
        await drained.wait()
        if self._runner is not None:
            await self._runner.until_ended()


class Lifecycle:
    """Opens and ends one consumer, whatever task calls; a task of its own serves it meanwhile."""

    def __init__(self, engine: ConsumerEngine) -> None:
        self._engine = engine
        self._settler = engine.settler
        self._server: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[None] | None = None
        self._drain: Drain | None = None
        self._runner: Runner | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """Return the event loop of an open consumer; None before it is opened and after it is closed."""
        is_open = not self._settler.is_closed and self._server is not None and not self._server.done()
        return self._settler.loop if is_open else None

    async def open(self, serve: Callable[[asyncio.Future[None]], Coroutine[Any, Any, None]]) -> None:
        """Start ``serve`` unless it runs, and return once it has set its future; raises as :meth:`Consumer.open`."""
        settler = self._settler
        if settler.is_closed:
            raise ClosedError("the consumer")
        is_first = self._server is None or self._opened is None
        if self._server is None or self._opened is None:
            settler.loop = asyncio.get_running_loop()
            self._opened = settler.loop.create_future()
            self._server = asyncio.create_task(serve(self._opened), name="pulsar_nack.Consumer")
            self._server.add_done_callback(self._engine.on_end)
        check_loop(settler.loop, "the consumer")
        if not self._opened.done():
            try:
                await asyncio.wait({self._opened, self._server}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                if is_first:
                    await self.close()
                raise
        if self._server.done():
            if not self._server.cancelled():
                await self._server
            raise ClosedError("the consumer")

    # --- draining ----------------------------------------------------------------------------------------------------

    async def run(self, runner: Runner) -> DrainReport:
        """Run a handler until the consumer ends."""
        if self._drain is not None:
            raise ClosedError("the consumer")
        if self._runner is not None:
            raise InvalidArgumentError("handler", runner.handler, "the only one: this consumer runs another")
        self._runner = runner
        try:
            return await runner.run(self.begin_drain)
        finally:
            self._runner = None

    async def drain(self, timeout: Delay | None) -> DrainReport:
        """Drain, or wait for the drain that is under way."""
        seconds = None if timeout is None else delay_ms(timeout, "timeout") / 1000
        if self._drain is None and self._settler.is_closed:
            return DrainReport()
        if self._runner is not None and asyncio.current_task() in self._runner.workers:
            raise InvalidArgumentError("timeout", timeout, "a call from outside: a handler would wait for itself")
        drain = self.begin_drain(seconds)
        await asyncio.wait([drain.task])
        return drain.task.result()

    def begin_drain(self, timeout_s: float | None) -> Drain:
        """Return the drain of this consumer, begun if it is the first call."""
        if self._drain is None:
            if not self._settler.is_closed:
                self._settler.check_open()
            assert self._server is not None
            self._drain = Drain(self._engine, self._runner, self._server, self.close, timeout_s)
        return self._drain

    # --- closing -----------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Close the consumer: after a drain if a handler runs, unless that handler calls."""
        runner, drain = self._runner, self._drain
        if runner is not None and self.loop is not None and asyncio.current_task() not in runner.workers:
            check_loop(self._settler.loop, "the consumer")
            drain = self.begin_drain(runner.drain_timeout_s)
        else:
            await self.close()
        if drain is not None and drain.task is not asyncio.current_task():
            await asyncio.wait([drain.task])
            drain.task.result()

    async def close(self) -> None:
        """Close the consumer now."""
        if not self._settler.is_closed or self._server is None or not self._server.done():
            check_loop(self._settler.loop, "the consumer")
            self.begin_close()
        if self._server is None:
            if self._engine.letters is not None:
                await self._engine.letters.aclose()
            await self._engine.port.close()
            return
        if not self._server.done():
            await asyncio.wait([self._server])
        if not self._server.cancelled():
            self._server.result()

    def begin_close(self) -> None:
        """Begin to close, without waiting for the end."""
        self._engine.receiver.pausing.unreadable = None
        self._engine.end_calls(ClosedError("the consumer"))
        self._engine.stop()
        if self._server is not None and self._opened is not None and not self._opened.done():
            self._server.cancel()
