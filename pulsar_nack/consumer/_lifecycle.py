"""How a consumer is opened, drained and closed; the user's :class:`Consumer` delegates to it.

A drain is the orderly end of a consumer: what it fetched ahead goes back, what was delivered can be settled, then it
closes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from .._delays import Delay, delay_ms
from .._lifetime import check_loop
from ..errors import ClosedError, InvalidArgumentError
from ._engine import ConsumerEngine
from ._runner import DrainReport, Runner

_log = logging.getLogger("pulsar_nack.consumer")


class Lifecycle:
    """Opens and ends one consumer, whatever task calls; another task serves it meanwhile."""

    def __init__(self, engine: ConsumerEngine) -> None:
        self._engine = engine
        self._state = engine.state
        self._server: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[None] | None = None
        self._drain: asyncio.Task[DrainReport] | None = None
        self._hurried = asyncio.Event()
        """Set when the timeout of the drain is to be over."""
        self._runner: Runner | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """Return the event loop of an open consumer; None before it is opened and after it is closed."""
        is_open = not self._state.is_closed and self._server is not None and not self._server.done()
        return self._state.loop if is_open else None

    async def open(self, consumer: object) -> None:
        """Serve a consumer, unless that has begun, and return once it is open; raises as :meth:`Consumer.open`."""
        state = self._state
        if state.is_closed:
            raise ClosedError("the consumer")
        is_first = self._server is None or self._opened is None
        if self._server is None or self._opened is None:
            state.loop = asyncio.get_running_loop()
            self._opened = state.loop.create_future()
            self._server = asyncio.create_task(self._serve(consumer, self._opened), name="pulsar_nack.Consumer")
            self._server.add_done_callback(self._engine.on_end)
        check_loop(state.loop, "the consumer")
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

    async def _serve(self, _consumer: object, opened: asyncio.Future[None]) -> None:
        await self._engine.serve(opened)  # this frame keeps the consumer, and so the client that it keeps

    # --- draining ----------------------------------------------------------------------------------------------------

    async def run(self, runner: Runner) -> DrainReport:
        """Run a handler until the consumer ends."""
        if self._drain is not None:
            raise ClosedError("the consumer")
        if self._runner is not None:
            raise InvalidArgumentError("handler", runner.handler, "the only one: this consumer runs another")
        self._runner = runner
        try:
            return await runner.run(self.begin_drain, self._hurried.set)
        finally:
            self._runner = None

    async def drain(self, timeout: Delay | None) -> DrainReport:
        """Drain, or wait for the drain that is under way."""
        seconds = None if timeout is None else delay_ms(timeout, "timeout") / 1000
        if self._drain is None and self._state.is_closed:
            return DrainReport()
        if self._is_handler():
            raise InvalidArgumentError("timeout", timeout, "a call from outside: a handler would wait for itself")
        drain = self.begin_drain(seconds)
        await asyncio.wait([drain])
        return drain.result()

    def begin_drain(self, timeout_s: float | None) -> asyncio.Task[DrainReport]:
        """Return the drain of this consumer, begun if it is the first call.

        :param timeout_s: how long delivered messages may take; None: as long as they need
        """
        if self._drain is None:
            if not self._state.is_closed:
                self._state.check_open()
            if self._runner is not None:
                self._runner.is_stopping.set()
            given_back = self._engine.pausing.drain(ClosedError("the consumer"))  # none if it is closed
            in_work = self._engine.receiver.in_work()
            _log.info("draining: %d messages are being handled, %d went back", in_work, given_back)
            draining = self._end_drained(self._runner, timeout_s, in_work, given_back)
            self._drain = asyncio.create_task(draining, name="pulsar_nack.Consumer draining")
        return self._drain

    async def _end_drained(
        self, runner: Runner | None, timeout_s: float | None, in_work: int, given_back: int
    ) -> DrainReport:
        """Wait for delivered messages, then close the consumer.

        :param runner: None: the consumer runs no handler
        :param in_work: how many messages were delivered and not settled when the drain began
        """
        assert self._server is not None
        cancelled = 0
        try:
            waits = [asyncio.create_task(wait) for wait in (self._until_settled(runner), self._hurried.wait())]
            try:
                await asyncio.wait([*waits, self._server], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
                await asyncio.gather(*waits, return_exceptions=True)
            if runner is not None:
                cancelled = await runner.end()
        finally:
            left = self._engine.receiver.in_work()
            await self.close()
            self._engine.trace.drained(given_back, left)
        settled = max(in_work - cancelled - left, 0)
        return DrainReport(settled=settled, given_back=given_back, cancelled=cancelled, left=left)

    async def _until_settled(self, runner: Runner | None) -> None:
        drained = self._engine.pausing.drained
        assert drained is not None
        await drained.wait()
        if runner is not None:
            await runner.until_ended()

    # --- closing -----------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Close the consumer: after a drain if a handler runs, unless that handler calls."""
        await self.closer()()

    def closer(self) -> Callable[[], Awaitable[None]]:
        """Return what closes the consumer for the caller, in any task: a handler cannot wait for its own end."""
        return self.close if self._is_handler() else self._drain_and_close

    def _is_handler(self) -> bool:
        return self._runner is not None and asyncio.current_task() in self._runner.workers

    async def _drain_and_close(self) -> None:
        runner, drain = self._runner, self._drain
        if runner is not None and self.loop is not None:
            check_loop(self._state.loop, "the consumer")
            drain = self.begin_drain(runner.drain_timeout_s)
        else:
            await self.close()
        if drain is not None and drain is not asyncio.current_task():
            await asyncio.wait([drain])
            drain.result()

    async def close(self) -> None:
        """Close the consumer now."""
        if not self._state.is_closed or self._server is None or not self._server.done():
            check_loop(self._state.loop, "the consumer")
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
        self._engine.receiver.unreadable = None
        self._engine.end_calls(ClosedError("the consumer"))
        self._engine.stop()
        if self._server is not None and self._opened is not None and not self._opened.done():
            self._server.cancel()
