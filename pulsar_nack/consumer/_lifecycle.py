"""How a consumer is opened, paused, drained and closed; the user's :class:`Consumer` delegates to it.

A drain is the orderly end of a consumer: what it fetched ahead goes back, what was delivered can be settled, then it
closes.

A consumer that pauses, drains, or cannot read a message gives back what no call received, if the port can do that and
other consumers would get it. Messages that the application has are not touched: it settles them as always.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from .._check import check_flag
from .._delays import Delay, delay_ms
from .._lifetime import check_loop
from ..errors import ClosedError, InvalidArgumentError, NotDurableError
from ._engine import ConsumerEngine
from ._message import Message
from ._port import SupportsPause, SupportsSubscription
from ._runner import DrainReport, Runner

_log = logging.getLogger("pulsar_nack.consumer")
_UNWANTED_AFTER_S: Final = 0.1
"""How long a message waits for a call of ``receive`` without a queue; then it goes back to the broker."""


class Lifecycle:
    """Opens, pauses and ends one consumer, whatever task calls; another task serves it meanwhile."""

    def __init__(self, engine: ConsumerEngine) -> None:
        self._engine = engine
        self._state = engine.state
        self._receiver = receiver = engine.receiver
        self._pausable = engine.port if isinstance(engine.port, SupportsPause) else None
        self._has_warned = False
        self._server: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[None]
        """Done once the consumer is open; made with the task that serves it."""
        self._drain: asyncio.Task[DrainReport] | None = None
        self._hurried = asyncio.Event()
        """Set when the timeout of the drain is to be over."""
        self._drained = asyncio.Event()
        """Set once a draining consumer has settled all delivered messages."""
        self._runner: Runner | None = None
        self._unsubscribing: asyncio.Task[None] | None = None
        receiver.on_unreadable = self._end_unreadable
        self._unwanted_after_s: float | None = None
        if self._pausable is not None and not engine.port.traits.receiver_queue_size:
            self._unwanted_after_s, receiver.inbox.kept = _UNWANTED_AFTER_S, self._on_kept

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
        is_first = self._server is None
        if self._server is None:
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

    # --- pausing -----------------------------------------------------------------------------------------------------

    def pause(self, name: object) -> None:
        """Deliver nothing until :meth:`resume`; give messages back to the broker if the port can.

        :param name: the consumer's, for the log
        """
        receiver = self._receiver
        if receiver.inbox.is_paused or receiver.is_draining:
            return
        receiver.inbox.pause()
        receiver.use_nowait()
        if self._pausable is not None:
            self._give_back(list(receiver.inbox.ready))
            is_idle = not self._state.count_unacked()
            self._state.on_idle = None if is_idle else self._on_idle
            self._pausable.pause(is_idle=is_idle)
        elif not self._has_warned:
            self._has_warned = True
            port = type(self._engine.port).__name__
            _log.warning("%r is paused, but %s cannot give prefetched messages back: they stay here", name, port)

    def resume(self) -> None:
        """Deliver messages again."""
        receiver = self._receiver
        if receiver.inbox.is_paused and not receiver.is_draining:
            self._state.on_idle = None if receiver.unreadable is None else self._on_idle
            if self._pausable is not None:
                self._pausable.resume()
            receiver.inbox.resume()
            receiver.use_nowait()

    def _end_unreadable(self) -> None:
        """Close the consumer once every delivered message is settled, because this process cannot read one."""
        self._receiver.inbox.kept = self._on_kept
        self._state.on_idle = self._on_idle
        self._on_idle()

    def _on_idle(self) -> None:
        """Go on once a paused, draining or ending consumer has settled all delivered messages."""
        receiver = self._receiver
        if receiver.is_draining:
            if not receiver.in_work():
                self._drained.set()
        elif receiver.unreadable is not None and not receiver.in_work():
            self._engine.stop()
        elif receiver.inbox.is_paused and self._pausable is not None and not self._state.count_unacked():
            self._state.on_idle = None
            self._pausable.pause(is_idle=True)

    def _give_back(self, messages: Sequence[Message]) -> int:
        """Give ready messages back to the broker, and return how many; members of batches stay with the others."""
        if self._pausable is None or not self._engine.port.traits.honours_ids:
            return 0
        receiver = self._receiver
        given = [each for each in messages if each.id.batch_index < 0 and receiver.is_current(each)]
        if receiver.is_draining:  # the broker counts each return; the others follow with the close
            given = [each for each in given if not each.redelivery_count]
        elif receiver.key_order is not None:
            given = [each for each in given if not receiver.key_order.waits_for(each)]
        for each in given:
            receiver.inbox.ready.remove(each)
            self._engine.table.give_back(each.id)
            if receiver.gate_queue is not None:
                receiver.gate_queue.gone(each)
            self._engine.trace.cancel(each.id, each.redelivery_count, "given back")
        self._pausable.give_back([each.id for each in given])
        return len(given)

    def _on_kept(self, message: Message) -> None:
        """Give back a message that no call takes in time, if the consumer has no queue or drains."""
        if self._unwanted_after_s is not None:
            asyncio.get_running_loop().call_later(self._unwanted_after_s, self._give_back_if_ready, message)
        self._state.check_idle()  # a call may have taken it back

    def _give_back_if_ready(self, message: Message) -> None:
        if message in self._receiver.inbox.ready and not self._state.is_closed:
            self._give_back([message])

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
            given_back = self._end_deliveries()
            in_work = self._receiver.in_work()
            _log.info("draining: %d messages are being handled, %d went back", in_work, given_back)
            draining = self._end_drained(self._runner, timeout_s, in_work, given_back)
            self._drain = asyncio.create_task(draining, name="pulsar_nack.Consumer draining")
        return self._drain

    def _end_deliveries(self) -> int:
        """Deliver nothing any more, and give back what was not delivered; return how many messages these were."""
        receiver, inbox, given = self._receiver, self._receiver.inbox, 0
        receiver.is_draining = True
        if self._state.is_closed:
            self._drained.set()
            return 0
        receiver.use_nowait()
        if receiver.key_order is not None:
            inbox.ready.extend(receiver.key_order.drop(lambda _: True))
        inbox.drop_outdated()
        inbox.refuse(ClosedError("the consumer"))
        with suppress(ClosedError):  # the port is closed already
            given = self._give_back(list(inbox.ready))
            given += 0 if self._pausable is None else self._pausable.drain()
        self._unwanted_after_s, inbox.kept = 0.0, self._on_kept
        self._state.on_idle = self._on_idle
        self._on_idle()
        return given

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
            left = self._receiver.in_work()
            await self.close()
            self._engine.trace.drained(given_back, left)
        settled = max(in_work - cancelled - left, 0)
        return DrainReport(settled=settled, given_back=given_back, cancelled=cancelled, left=left)

    async def _until_settled(self, runner: Runner | None) -> None:
        await self._drained.wait()
        if runner is not None:
            await runner.until_ended()

    # --- closing -----------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Close the consumer: after a drain if a handler runs, unless that handler calls."""
        await self._closer()()

    def _closer(self) -> Callable[[], Awaitable[None]]:
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
        self._receiver.unreadable = None
        self._engine.end_calls(ClosedError("the consumer"))
        self._engine.stop()
        if self._server is not None and not self._opened.done():
            self._server.cancel()

    # --- unsubscribing -----------------------------------------------------------------------------------------------

    async def unsubscribe(self, name: object, *, force: bool) -> None:
        """Delete the subscription, then close the consumer; goes on when the call is cancelled.

        :param name: the consumer's, for the log
        """
        check_flag("force", force)
        port = self._engine.supporting("unsubscribe")
        if self._unsubscribing is None:
            unsubscribing = self._unsubscribe(port, self._closer(), force=force)
            task = asyncio.create_task(unsubscribing, name="pulsar_nack.Consumer unsubscribing")
            self._unsubscribing = task
            task.add_done_callback(partial(self._on_unsubscribed, name))
        await asyncio.shield(self._unsubscribing)

    def _on_unsubscribed(self, name: object, task: asyncio.Task[None]) -> None:
        self._unsubscribing = None  # where it failed it can be tried again
        if not task.cancelled() and task.exception() is not None:
            _log.info("%r could not be unsubscribed: %r", name, task.exception())

    async def _unsubscribe(
        self, port: SupportsSubscription, close: Callable[[], Awaitable[None]], *, force: bool
    ) -> None:
        await port.unsubscribe(force=force)
        durable = self._state.durable
        cleared = None if durable is None else durable.cleared()
        self._engine.settler.clear("unsubscribe", "gone with its subscription")
        error = None if cleared is None else await cleared
        await close()
        if error is not None:
            raise NotDurableError("the subscription is gone, but its durable state is still there", error) from error
