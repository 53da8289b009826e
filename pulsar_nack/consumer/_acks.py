"""Acknowledgements under way: one at a time for each message, carried to their end whoever waits for them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ..clock import Clock
from ..errors import ClosedError
from ..ids import MessageId
from ._port import ConsumerPort, SupportsNowait
from ._states import Record, State, States

if TYPE_CHECKING:
    from .durable import DurableNacks

Waiter = asyncio.Future[None]

_BATCH: Final = 1_000
_MOST_TRIES: Final = 10
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 30.0


class Acks:
    """Carries acknowledgements out.

    :param on_settled: called with the records of what was acknowledged
    :param on_failed: called with the record of what could not be, whether its time came meanwhile, and the error
    :param on_unheard: called with the record and the error of one that failed and that nobody waits for
    :param ask_for: requests messages from the broker, by redelivery count at their last delivery; -1: not delivered
    :param durable: where acknowledgements are noted once the port has taken them, and before they are reported
    """

    def __init__(
        self,
        port: ConsumerPort,
        states: States,
        clock: Clock,
        *,
        tasks: asyncio.TaskGroup,
        on_settled: Callable[[Sequence[Record]], None],
        on_failed: Callable[..., None],
        on_unheard: Callable[[Record, Exception], None],
        ask_for: Callable[[Mapping[MessageId, int]], None],
        durable: DurableNacks | None = None,
    ) -> None:
        self.acked = 0
        self.acked_again = 0
        self._port = port
        self._states = states
        self._clock = clock
        self._tasks = tasks
        self._on_settled = on_settled
        self._on_failed = on_failed
        self._on_unheard = on_unheard
        self._ask_for = ask_for
        self._durable = durable
        self._loop = asyncio.get_running_loop()
        self._in_flight: dict[MessageId, asyncio.Task[Exception | None]] = {}
        self._waiters: dict[MessageId, list[asyncio.Future[Exception | None]]] = {}
        self._soon = port.acknowledge_soon if durable is None and isinstance(port, SupportsNowait) else None
        self._calls: dict[Record, Waiter | _Several | None] = {}
        """The caller that waits for each acknowledgement; None: nobody waits."""
        self._done = self._ended  # one object, by which the port knows those that it may end together
        self._all_answered: asyncio.Future[None] | None = None
        self._is_over = False
        self._copies: deque[MessageId] = deque()
        self._has_copies = asyncio.Event()
        self._tries: dict[MessageId, int] = {}

    def acknowledge(self, message_id: MessageId) -> Awaitable[None]:
        """Begin to acknowledge one, and return what waits for the outcome. Nothing happens when it is done already.

        Who does not wait any more does not stop it. Await it at once.
        """
        soon = self._soon
        if soon is None:
            return self._with_task(message_id)
        waiter: Waiter = asyncio.Future(loop=self._loop)
        record = self._states.get(message_id)
        if record is None or record.state is not State.IN_WORK or self._is_over:
            self._join(message_id, waiter)
            return waiter
        record.before_ack = State.IN_WORK  # in line: the hot path
        record.state = State.ACKING
        self._calls[record] = waiter
        try:
            soon(record.id, record, self._done)
        except Exception as error:
            self._not_begun(record, error)
            raise
        return waiter

    def acknowledge_soon(self, message_id: MessageId) -> None:
        """Begin to acknowledge one; nobody waits for the outcome."""
        if self._soon is not None:
            self._join(message_id, None)
            return
        if message_id not in self._in_flight:
            if self._is_done(message_id):
                return
            self._begin_task(self._states.begin_ack(message_id))

    def _is_done(self, message_id: MessageId) -> bool:
        return self._states.get(message_id) is None and self._states.is_settled(message_id)

    # --- on ports that need no task ----------------------------------------------------------------------------------

    def _join(self, message_id: MessageId, waiter: Waiter | None) -> None:
        """Wait for the acknowledgement of a message that is under way, or begin one if it is not acknowledged."""
        states = self._states
        record = states.get(message_id)
        if record is None and states.is_settled(message_id):
            if waiter is not None:
                waiter.set_result(None)
            return
        if self._is_over:
            raise ClosedError("the consumer")
        if record is not None and record in self._calls:
            if waiter is not None:
                call = self._calls[record]
                if not isinstance(call, _Several):
                    call = self._calls[record] = _Several([] if call is None else [call])
                call.waiters.append(waiter)
            return
        if record is None:
            record = states.begin_ack(message_id)
        else:
            record.learn(message_id)
            states.start_ack(record)
        self._calls[record] = waiter
        try:
            self._soon(record.id, record, self._done)  # type: ignore[misc]  # there is one, or this is not called
        except Exception as error:
            self._not_begun(record, error)
            raise

    def _not_begun(self, record: Record, error: Exception) -> None:
        del self._calls[record]
        self._failed(record, error)

    def _ended(self, records: Sequence[Record], error: Exception | None) -> None:
        if not self._is_over:  # or all were given up
            self._end(records, error)

    def _end(self, records: Sequence[Record], error: Exception | None) -> None:
        pop = self._calls.pop
        calls = [pop(record) for record in records]
        if error is None:
            self.acked += len(calls)
            self._on_settled(self._states.settle_all(records, self._clock.now_ms()))
        else:
            for record in records:
                self._failed(record, error)
        for record, call in zip(records, calls, strict=True):
            if isinstance(call, _Several):
                if call.end(error):
                    continue
            elif call is not None and not call.done():
                _resolve(call, error)
                continue
            if error is not None and not self._is_over:
                self._on_unheard(record, error)  # whoever waited was cancelled, or nobody did
        if self._all_answered is not None and not self._calls and not self._all_answered.done():
            self._all_answered.set_result(None)

    # --- with a task for each ----------------------------------------------------------------------------------------

    async def _with_task(self, message_id: MessageId) -> None:
        task = self._in_flight.get(message_id)
        if task is None:
            if self._is_done(message_id):
                return
            task = self._begin_task(self._states.begin_ack(message_id))
        waiter = asyncio.shield(task)
        self._waiters.setdefault(message_id, []).append(waiter)
        error = await waiter
        if error is not None:
            raise error

    def _begin_task(self, record: Record) -> asyncio.Task[Exception | None]:
        task = self._in_flight[record.id] = self._tasks.create_task(self._carry_out(record))
        return task

    async def _carry_out(self, record: Record) -> Exception | None:
        try:
            error = await self._outcome(record)
        finally:
            self._in_flight.pop(record.id, None)
            waiters = self._waiters.pop(record.id, ())
        if error is not None and all(waiter.done() for waiter in waiters):
            self._on_unheard(record, error)
        return error

    async def _outcome(self, record: Record) -> Exception | None:
        known = self._states.get
        try:
            if known(record.id) is record:  # else a seek has overtaken it
                await self._port.acknowledge([record.id])
            if self._durable is not None and known(record.id) is record:
                await self._durable.acked(record.id)  # failed: it is counted, and the broker knows
        except Exception as error:  # noqa: BLE001 - handed to whoever waits for it
            self._failed(record, error)
            return error
        except asyncio.CancelledError as error:
            self._failed(record, error)
            return ClosedError("the consumer")
        self.acked += 1
        self._on_settled(self._states.settle_all((record,), self._clock.now_ms()))
        return None

    def _failed(self, record: Record, error: BaseException) -> None:
        self._on_failed(record, was_due=self._states.ack_failed(record), error=error)

    async def finish(self, timeout: float) -> None:
        """Wait for those under way, then give the rest up: whoever waits gets :class:`~pulsar_nack.ClosedError`."""
        if self._in_flight:
            await asyncio.wait(list(self._in_flight.values()), timeout=timeout)
        for task in self._in_flight.values():
            task.cancel()
        if self._calls:
            self._all_answered = self._loop.create_future()
            await asyncio.wait([self._all_answered], timeout=timeout)
        self.give_up()

    def give_up(self) -> None:
        """Raise :class:`~pulsar_nack.ClosedError` where an answer without a task is waited for, now and later."""
        self._is_over = True
        self._end(list(self._calls), ClosedError("the consumer"))

    # --- copies of what is acknowledged ----------------------------------------------------------------------------

    def again(self, message_id: MessageId) -> None:
        """Acknowledge a copy that came after its acknowledgement."""
        self._copies.append(message_id)
        self._has_copies.set()

    async def run(self) -> None:
        """Acknowledge copies until cancelled; failed ones are tried again, fewer together: one is not to spoil all."""
        pause, most = _FIRST_PAUSE_S, _BATCH
        while True:
            await self._has_copies.wait()
            some: list[MessageId] = []
            outdated: list[MessageId] = []
            for _ in range(min(len(self._copies), most)):
                copy = self._copies.popleft()
                (some if self._is_acked_again(copy) else outdated).append(copy)
            if outdated:
                self._ask_for({each: -1 for each in outdated if self._states.was_wrongly_hidden(each)})
            if not self._copies:
                self._has_copies.clear()
            try:
                if some:
                    await self._port.acknowledge(some)
            except ClosedError:
                return
            except Exception:  # noqa: BLE001 - tried again; the message stays hidden meanwhile
                self._put_back(some)
                await asyncio.sleep(pause)
                pause, most = min(pause * 2, _LONGEST_PAUSE_S), max(len(some) // 2, 1)
            else:
                self.acked_again += len(some)
                for each in some if self._tries else ():
                    self._tries.pop(each, None)
                pause, most = _FIRST_PAUSE_S, min(2 * most, _BATCH)

    def _is_acked_again(self, message_id: MessageId) -> bool:
        """Return whether a copy is still hidden by its acknowledgement, which has not failed and counts."""
        was_acked = self._durable is not None and self._durable.was_acked(message_id)
        return was_acked or self._is_done(message_id)

    def _put_back(self, some: list[MessageId]) -> None:
        """Try copies again; one that fails by itself goes to the end, a few times: it comes again if it has to."""
        if len(some) > 1:
            self._copies.extendleft(reversed(some))
        elif self._tries.get(some[0], 0) < _MOST_TRIES:
            self._tries[some[0]] = self._tries.get(some[0], 0) + 1
            self._copies.append(some[0])
        else:
            self._tries.pop(some[0], None)
        if self._copies:
            self._has_copies.set()


class _Several:
    """Several calls that wait for the same acknowledgement."""

    __slots__ = ("waiters",)

    def __init__(self, waiters: list[Waiter]) -> None:
        self.waiters = waiters

    def end(self, error: Exception | None) -> bool:
        """Tell all who wait; return whether anybody did."""
        waiting = [waiter for waiter in self.waiters if not waiter.done()]
        for waiter in waiting:
            _resolve(waiter, error)
        return bool(waiting)


def _resolve(waiter: Waiter, error: Exception | None) -> None:
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)
        waiter.exception()  # whoever waits may have been cancelled in this turn of the loop
