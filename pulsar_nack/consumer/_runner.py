"""Runs a handler for each message: a bounded number at once, each exception settled and logged.

There is one worker for each handler that may run at once; it receives a message, handles and settles it. A worker
receives when it is free, so what was fetched ahead stays at the port, which can give it back. A task for each message
was rejected: making one costs more than all else that is done here.

A drain ends calls of ``receive``, and thereby each worker once its handler has ended. After the timeout it cancels the
workers that are left, which nack their messages.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from types import CoroutineType
from typing import Final

from .._check import check_callable, check_flag, check_integer
from .._delays import Delay, delay_ms
from .._waiting import wait_at_most
from ..backoff import Exponential
from ..errors import AlreadySettledError, BrokerError, ClosedError, InvalidArgumentError, MissingExtraError
from ._engine import ConsumerEngine
from ._key_order import KeyOrder
from ._message import Message
from ._outcomes import OnError, Verb, checked_rules, needs_ack, settle_failed

Handler = Callable[[Message], Awaitable[object]]
"""Handles a message; it is acknowledged when the handler returns, unless the handler has settled it."""

_log = logging.getLogger("pulsar_nack.consumer")
_PAUSES: Final = Exponential(0.1, 5.0)
_NACK_TIMEOUT_S: Final = 5.0
_END_TIMEOUT_S: Final = 6.0
"""After this a warning names cancelled handlers that have not ended."""
_CANCELLED: Final = "its handler did not end in time when the consumer drained"


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


class Runner:
    """Runs a handler on the messages of one consumer.

    :param receive: as :meth:`Consumer.receive`; the others are those of :meth:`Consumer.run`
    :raises InvalidArgumentError: names the argument
    """

    def __init__(
        self,
        engine: ConsumerEngine,
        receive: Callable[[], Awaitable[Message]],
        handler: Handler,
        *,
        concurrency: int,
        key_ordered: bool,
        max_held_per_key: int,
        on_error: OnError | None,
        drain_timeout: Delay | None,
        stop_on_signals: bool,
    ) -> None:
        check_callable("handler", handler, "a coroutine function that takes a message")
        check_integer("concurrency", concurrency, 1)
        check_flag("key_ordered", key_ordered)
        check_integer("max_held_per_key", max_held_per_key, 1)
        check_flag("stop_on_signals", stop_on_signals)
        self.drain_timeout_s = None if drain_timeout is None else delay_ms(drain_timeout, "drain_timeout") / 1000
        self._rules = checked_rules(on_error, has_dead_letters=engine.state.has_dead_letters)
        self._concurrency = concurrency
        self._stop_on_signals = stop_on_signals
        self.workers: list[asyncio.Task[None]] = []
        """The tasks in which the handlers run."""
        self.is_stopping = asyncio.Event()
        """Set when no other handler is to begin."""
        self._is_ending = False
        self._cancelled = 0
        self._receiver = engine.receiver
        self._settler = engine.settler
        self.handler = handler
        self._begin_drain: Callable[[float | None], asyncio.Task[DrainReport]]
        self._hurry_drain: Callable[[], None]
        self._failures = 0
        self._is_signalled = False
        self._receive = receive
        self._order: KeyOrder | None = None
        if key_ordered:
            self._order = KeyOrder(
                engine.settler,
                engine.receiver.inbox,
                receive,
                is_current=engine.receiver.is_current,
                take_back=engine.receiver.take_back,
                hold_port=engine.receiver.hold_port,
                max_held_per_key=max_held_per_key,
                max_bytes=engine.settings.max_local_bytes,
            )
            self._receive = self._order.next

    async def run(
        self, begin_drain: Callable[[float | None], asyncio.Task[DrainReport]], hurry_drain: Callable[[], None]
    ) -> DrainReport:
        """Run until the consumer ends; a cancelled call drains before it ends, and a second time hurries.

        :param begin_drain: drains within a time in seconds, or returns the drain that is under way
        :param hurry_drain: lets that time be over
        """
        self._begin_drain, self._hurry_drain = begin_drain, hurry_drain
        cancelled: asyncio.CancelledError | None = None
        with _signals(self._on_signal) if self._stop_on_signals else nullcontext():
            if self._order is not None:
                self._receiver.key_order = self._order
                self._order.open()
            self.workers = [self._worker(number) for number in range(self._concurrency)]
            try:
                while not self._faults() and (busy := [each for each in self.workers if not each.done()]):
                    await asyncio.wait(busy, return_when=asyncio.FIRST_COMPLETED)
                    self._replace_cancelled()
            except asyncio.CancelledError as error:
                cancelled = error
            drain = begin_drain(self.drain_timeout_s)
            while not drain.done():
                try:
                    await asyncio.wait([drain])
                except asyncio.CancelledError as error:
                    cancelled = error
                    hurry_drain()
        if self._order is not None:
            self._receiver.key_order = None
            self._order.close()
        faults = self._faults()
        if cancelled is not None:
            for fault in faults:
                _log.error("a worker failed: %r", fault)
            raise cancelled
        if faults:
            raise faults[0]
        return drain.result()

    def _worker(self, number: int) -> asyncio.Task[None]:
        return asyncio.create_task(self._work(), name=f"pulsar_nack.Consumer worker {number}")

    def _faults(self) -> list[BaseException]:
        ended = [worker for worker in self.workers if worker.done() and not worker.cancelled()]
        return [fault for worker in ended if (fault := worker.exception()) is not None]

    def _replace_cancelled(self) -> None:
        """Start other workers for those that something else has cancelled, such as a handler itself."""
        for number, worker in enumerate(self.workers):
            if worker.done() and worker.cancelled() and not self.is_stopping.is_set():
                _log.error("%s was cancelled, and not by a drain; another one goes on", worker.get_name())
                self.workers[number] = self._worker(number)

    def _on_signal(self, name: str) -> None:
        _log.info("%s: the consumer %s", name, "drains at once" if self._is_signalled else "drains")
        self._begin_drain(self.drain_timeout_s)
        if self._is_signalled:
            self._hurry_drain()
        self._is_signalled = True

    # --- ending ------------------------------------------------------------------------------------------------------

    async def until_ended(self) -> None:
        """Wait until all workers have ended."""
        if self.workers:
            await asyncio.wait(self.workers)

    async def end(self) -> int:
        """Cancel the handlers that still run, and wait until they have ended; return how many."""
        self._is_ending = True
        late = [worker for worker in self.workers if not worker.done()]
        for worker in late:
            worker.cancel()
        if late:
            _, late_still = await asyncio.wait(late, timeout=_END_TIMEOUT_S)
            if late_still:
                _log.error("%d handlers were cancelled and do not end; waiting for them", len(late_still))
                await asyncio.wait(late_still)
        return self._cancelled

    # --- the workers -------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        order = self._order
        message: Message | None = None
        while message is not None or (message := await self._next()) is not None:
            if self.is_stopping.is_set():
                self._receiver.take_back(message)
                return
            try:
                await self._handle(message)
            except asyncio.CancelledError:  # while it was being settled
                await self._nack_cancelled(message)
            message = None if order is None else order.done(message)

    async def _next(self) -> Message | None:
        """Receive a message; return None when the consumer is closed."""
        while True:
            try:
                message = await self._receive()
            except Exception as error:  # noqa: BLE001 - raised, or logged and tried again
                if not await self._may_receive_again(error):
                    return None
            else:
                self._failures = 0
                return message

    async def _handle(self, message: Message) -> None:
        """Let the handler work on a message, and settle it; raise CancelledError only while it is being settled."""
        is_awaitable = True
        try:
            if self._order is not None and not await self._order.begin(message):
                return
            handling = self.handler(message)
            is_awaitable = type(handling) is CoroutineType or isawaitable(handling)
            if is_awaitable:
                await handling
        except Exception as error:  # noqa: BLE001 - settled, logged and counted
            await self._failed(message, error)
        except asyncio.CancelledError:
            await self._was_cancelled(message)
        else:
            if not is_awaitable:
                self.is_stopping.set()  # first: no other worker is to call it with the same message
                self._receiver.take_back(message)
                expected = "a coroutine function (async def): what it returned cannot be awaited"
                raise InvalidArgumentError("handler", self.handler, expected)
            if needs_ack(message):
                await self._acknowledge(message)

    async def _may_receive_again(self, error: Exception) -> bool:
        """Wait a little after an error of the transport; return False if the consumer is closed, or raise."""
        if isinstance(error, ClosedError) and error.__cause__ is None:
            return False
        if isinstance(error, MissingExtraError) or not isinstance(error, BrokerError):
            raise error
        self._failures += 1
        if self._failures == 1:
            _log.warning("nothing can be received, which is tried again: %s", error)
        pause_s = float(_PAUSES(min(self._failures // self._concurrency, 10)))
        await wait_at_most(self.is_stopping, pause_s)
        return True

    async def _acknowledge(self, message: Message) -> None:
        try:
            await message.ack()
        except (AlreadySettledError, ClosedError) as error:
            _log.warning("%r was handled, but is not acknowledged: %s", message.id, error)
        except Exception as error:  # noqa: BLE001 - logged, and the message is handled again
            _log.warning("%r was handled, but could not be acknowledged, and is redelivered: %s", message.id, error)
            await self._nack(message, f"not acknowledged: {error}")

    async def _failed(self, message: Message, error: Exception) -> None:
        """Settle a message whose handler raised; log and count the exception."""
        is_verb = isinstance(error, Verb)
        self._settler.handler_errors += not is_verb
        try:
            verb = await settle_failed(message, error, self._rules)
        except Exception as fault:  # noqa: BLE001 - logged: what could be done is done
            _log.error("%r failed, and could not be settled as asked: %r", message, fault, exc_info=error)
        else:
            if verb is None:
                _log.error("%r failed, and is redelivered: %r", message, error, exc_info=error)

    async def _was_cancelled(self, message: Message) -> None:
        """Nack a message whose handler was cancelled: at the end of the drain, or because of what it awaited."""
        if self._is_ending:
            self._cancelled += 1
            if not message.is_settled:
                await self._nack(message, _CANCELLED)
            raise asyncio.CancelledError
        self._settler.handler_errors += 1
        _log.error("%r failed, and is redelivered: its handler, or something that it awaited, was cancelled", message)
        await self._nack_cancelled(message)

    async def _nack_cancelled(self, message: Message) -> None:
        """Nack a message unless it is settled; keep its worker running unless the drain cancelled it."""
        if self._is_ending:
            raise asyncio.CancelledError
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()
        try:
            if not message.is_settled:
                await self._nack(message, "CancelledError")
        except asyncio.CancelledError:
            await self._nack_cancelled(message)

    async def _nack(self, message: Message, reason: str) -> None:
        try:
            async with asyncio.timeout(_NACK_TIMEOUT_S if self._is_ending else None):
                await message.nack(reason=reason)
        except Exception as error:  # noqa: BLE001 - it stays unacknowledged, so it comes again after the close
            _log.warning("%r could not be nacked: %r", message.id, error)


@contextmanager
def _signals(call: Callable[[str], None]) -> Iterator[None]:
    """Call a function with the name of SIGTERM or SIGINT when it comes; restore the handlers in the end."""
    loop, before = asyncio.get_running_loop(), {}
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            handler = signal.getsignal(number)
            try:
                loop.add_signal_handler(number, partial(call, number.name))
            except (NotImplementedError, RuntimeError, ValueError) as error:
                expected = "False: signals need the main thread, and an event loop that handles them"
                raise InvalidArgumentError("stop_on_signals", "True", expected) from error
            before[number] = handler
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            if handler is not None:
                signal.signal(number, handler)
