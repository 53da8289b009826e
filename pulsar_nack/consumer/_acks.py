"""Acknowledgements under way: one at a time for each message, carried to their end whoever waits for them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from ..clock import Clock
from ..errors import ClosedError
from ..ids import MessageId
from ._port import ConsumerPort, SupportsNowait
from ._states import Record, States

if TYPE_CHECKING:
    from ._durable import DurableNacks

AckSoon = Callable[[MessageId, Callable[[Exception | None], None]], None]

_BATCH: Final = 1_000
_MOST_TRIES: Final = 10
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 30.0


class Acks:
    """Carries acknowledgements out.

    :param on_settled: called with the record of what was acknowledged
    :param on_failed: called with the record of what could not be, whether its time came meanwhile, and the error
    :param on_unheard: called with the record and the error of one that failed and that nobody waits for
    :param durable: where acknowledgements are noted once the port has taken them, and before they are reported
    """

    def __init__(
        self,
        port: ConsumerPort,
        states: States,
        clock: Clock,
        *,
        tasks: asyncio.TaskGroup,
        on_settled: Callable[[Record], None],
        on_failed: Callable[..., None],
        on_unheard: Callable[[Record, Exception], None],
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
        self._durable = durable
        self._loop = asyncio.get_running_loop()
        self._in_flight: dict[MessageId, asyncio.Task[Exception | None]] = {}
        self._unheard: set[MessageId] = set()
        self._waiters: dict[MessageId, list[asyncio.Future[Exception | None]]] = {}
        self._soon: AckSoon | None = (
            port.acknowledge_soon if durable is None and isinstance(port, SupportsNowait) else None
        )
        self._calls: dict[MessageId, _Call] = {}
        self._all_answered: asyncio.Future[None] | None = None
        self._is_over = False
        self._copies: deque[MessageId] = deque()
        self._has_copies = asyncio.Event()
        self._tries: dict[MessageId, int] = {}

    def acknowledge(self, message_id: MessageId) -> Awaitable[None]:
        """Begin to acknowledge one, and return what waits for the outcome. Nothing happens when it is done already.

        Who does not wait any more does not stop it. Await it at once.
        """
        if self._soon is None:
            return self._with_task(message_id)
        waiter: asyncio.Future[None] = self._loop.create_future()
        call = self._begin(message_id, self._soon)
        if call is None:
            waiter.set_result(None)
        else:
            call.waiters.append(waiter)
        return waiter

    def acknowledge_soon(self, message_id: MessageId) -> None:
        """Begin to acknowledge one; nobody waits for the outcome."""
        if self._soon is not None:
            call = self._begin(message_id, self._soon)
            if call is not None:
                call.is_unheard = True
            return
        if message_id not in self._in_flight:
            if self._is_done(message_id):
                return
            self._begin_task(self._states.begin_ack(message_id))
        self._unheard.add(message_id)

    def _is_done(self, message_id: MessageId) -> bool:
        return self._states.get(message_id) is None and self._states.is_settled(message_id)

    # --- on ports that need no task ----------------------------------------------------------------------------------

    def _begin(self, message_id: MessageId, soon: AckSoon) -> _Call | None:
        """Return the call that is under way for a message, a new one if need be; None: it is acknowledged."""
        call = self._calls.get(message_id)
        if call is not None:
            return call
        states = self._states
        record = states.get(message_id)
        if record is None and states.is_settled(message_id):
            return None
        if self._is_over:
            raise ClosedError("the consumer")
        if record is None:
            record = states.begin_ack(message_id)
        else:
            states.start_ack(record)
        call = self._calls[record.id] = _Call(self._answered, record)
        try:
            soon(record.id, call)
        except Exception as error:
            del self._calls[record.id]
            self._failed(record, error)
            raise
        return call

    def _answered(self, call: _Call, error: Exception | None) -> None:
        record = call.record
        if self._calls.pop(record.id, None) is not call:  # given up meanwhile
            return
        if error is None:
            self.acked += 1
            self._states.settle(record.id, self._clock.now_ms())
            self._on_settled(record)
        else:
            self._failed(record, error)
            if call.is_unheard and all(waiter.done() for waiter in call.waiters):
                self._on_unheard(record, error)
        for waiter in call.waiters:
            if not waiter.done():
                _resolve(waiter, error)
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
            has_call_unheard = record.id in self._unheard
            self._unheard.discard(record.id)
        if error is not None and has_call_unheard and all(waiter.done() for waiter in waiters):
            self._on_unheard(record, error)
        return error

    async def _outcome(self, record: Record) -> Exception | None:
        try:
            await self._port.acknowledge([record.id])
            if self._durable is not None:
                await self._durable.settled(record.id)  # failed: it is counted, and the broker knows
        except Exception as error:  # noqa: BLE001 - handed to whoever waits for it
            self._failed(record, error)
            return error
        except asyncio.CancelledError as error:
            self._failed(record, error)
            return ClosedError("the consumer")
        self.acked += 1
        self._states.settle(record.id, self._clock.now_ms())
        self._on_settled(record)
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
        for call in list(self._calls.values()):
            self._answered(call, ClosedError("the consumer"))

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
            some = [self._copies.popleft() for _ in range(min(len(self._copies), most))]
            if not self._copies:
                self._has_copies.clear()
            try:
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


class _Call:
    """An acknowledgement that has no task, and the calls that wait for it; to be called with its outcome."""

    __slots__ = ("_answered", "is_unheard", "record", "waiters")

    def __init__(self, answered: Callable[[_Call, Exception | None], None], record: Record) -> None:
        self._answered = answered
        self.record = record
        self.is_unheard = False  # whether one of the calls does not wait
        self.waiters: list[asyncio.Future[None]] = []

    def __call__(self, error: Exception | None) -> None:
        self._answered(self, error)


def _resolve(waiter: asyncio.Future[None], error: Exception | None) -> None:
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)
        waiter.exception()  # whoever waits may have been cancelled in this turn of the loop
