"""In-flight acknowledgements: at most one per message, each completed even if its caller is cancelled.

A message whose acknowledgement failed is as it was before. If no caller learns of that, it is redelivered.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from ..errors import ClosedError
from ..ids import MessageId
from ._consumer_state import ConsumerState
from ._message_state import ACKING, DELIVERED, HELD, SENT_AWAY, MessageState, State
from ._port import AcksDone, SupportsNowait

if TYPE_CHECKING:
    from .durable import DurableNacks

_log = logging.getLogger("pulsar_nack.consumer")
Waiter = asyncio.Future[None]

_BATCH: Final = 1_000
_MAX_TRIES: Final = 10
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 30.0


class Acks:
    """Carries out the acknowledgements of one consumer while it is open, and notes what came of each.

    :param state: with its durable state, in which acknowledgements are noted once the port has taken them, and before
        they are reported
    """

    def __init__(self, state: ConsumerState) -> None:
        self.acked = 0
        """Without those of messages that were sent to another topic."""
        self.acked_again = 0
        self._state = state
        self._queue = queue = state.queue
        self._port = queue.port
        self._table = queue.table
        self._trace = queue.trace
        self._clock = queue.clock
        self._recent = state.recent
        self._tasks: asyncio.TaskGroup
        self._durable: DurableNacks | None = None
        self._loop: asyncio.AbstractEventLoop
        self._soon: Callable[[MessageId, MessageState, AcksDone[MessageState]], None] = self._begin_task
        self._running: set[asyncio.Task[None]] = set()
        """The tasks of acknowledgements that have to wait."""
        self._calls: dict[MessageState, list[Waiter]] = {}
        """The calls that wait for each acknowledgement under way."""
        self._learning: WeakKeyDictionary[Waiter, list[int]] = WeakKeyDictionary()
        """Of a failed acknowledgement with several calls: how many of them may learn of it, one object for all."""
        self._done = self._end  # one object, by which the port knows those that it may end together
        self._all_answered: asyncio.Future[None] | None = None
        self._is_over = False
        self._duplicates: deque[MessageId] = deque()
        self._has_duplicates = asyncio.Event()
        self._tries: dict[MessageId, int] = {}

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Begin to accept acknowledgements: the consumer, with its durable state, is open."""
        self._tasks, self._durable, self._loop = tasks, self._state.durable, asyncio.get_running_loop()
        if self._durable is None and isinstance(self._port, SupportsNowait):
            self._soon = self._port.acknowledge_soon

    def acknowledge(self, message_id: MessageId) -> Awaitable[None]:
        """Begin to acknowledge a message, unless that is done, and return an awaitable of the outcome.

        Cancelling the await does not cancel the acknowledgement. Await the result immediately.
        """
        waiter: Waiter = asyncio.Future(loop=self._loop)
        self.acknowledge_soon(message_id, waiter)
        return waiter

    def acknowledge_soon(self, message_id: MessageId, waiter: Waiter | None = None) -> None:
        """Begin to acknowledge a message, unless that is done; ``waiter`` gets the outcome, None: nobody waits."""
        record = self._table.get(message_id)
        if record is not None and record.state is DELIVERED and not self._is_over:
            record.before_ack = DELIVERED  # inlined: the hot path
            record.state = ACKING
        else:
            record = self._to_acknowledge(message_id, record, waiter)
            if record is None:
                return
        self._calls[record] = [] if waiter is None else [waiter]
        try:
            self._soon(record.id, record, self._done)
        except Exception as error:
            del self._calls[record]
            self._failed(record, error)
            raise

    def _to_acknowledge(
        self, message_id: MessageId, record: MessageState | None, waiter: Waiter | None
    ) -> MessageState | None:
        """Return the message, None if its acknowledgement is done, or is under way: the call waits for that one."""
        table = self._table
        if record is None and table.acked.is_acked(message_id):
            if waiter is not None:
                waiter.set_result(None)
            return None
        if self._is_over:
            raise ClosedError("the consumer")
        if record is not None and record in self._calls:
            if waiter is not None:
                self._calls[record].append(waiter)
            return None
        return table.mark_acking_unknown(message_id)

    def _begin_task(self, _: MessageId, record: MessageState, done: AcksDone[MessageState]) -> None:
        """Begin an acknowledgement that has to wait: for the port's call, or to be durable."""
        task = self._tasks.create_task(self._carry_out(record, done))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _carry_out(self, record: MessageState, done: AcksDone[MessageState]) -> None:
        known = self._table.get
        error: Exception | None = None
        try:
            if known(record.id) is record:  # else a seek has overtaken it
                await self._port.acknowledge([record.id])
            if self._durable is not None and known(record.id) is record:
                await self._durable.acked(record.id)  # failed: it is counted, and the broker knows
        except Exception as failure:  # noqa: BLE001 - handed to the callers that wait
            error = failure
        except asyncio.CancelledError:
            error = ClosedError("the consumer")
        done([record], error)

    # --- what came of them -------------------------------------------------------------------------------------------

    def _end(self, records: Sequence[MessageState], error: Exception | None) -> None:
        if self._is_over:  # all were given up
            return
        calls = list(map(self._calls.pop, records))
        if error is None:
            settled = self._table.settle_all(records, self._clock.now_ms())
            try:
                self._note_settled(settled)
            finally:  # also if a consumer's own trace raises
                for waiters in calls:
                    for waiter in waiters:
                        if not waiter.done():
                            waiter.set_result(None)
        else:
            self._end_failed(records, calls, error)
        if self._all_answered is not None and not self._calls and not self._all_answered.done():
            self._all_answered.set_result(None)

    def _note_settled(self, records: Sequence[MessageState]) -> None:
        self.acked += len(records)
        if self._trace.is_on:
            self._trace.settled(records)
        for record in records:
            if record.before_ack is not DELIVERED or record.lease is not None:
                self._queue.drop(record.id)
                self.acked -= record.before_ack in SENT_AWAY
            if record.has_duplicate:
                self.ack_duplicate(record.id)
        if self._recent.delivered:
            for record in records:
                self._recent.pop(record.id)
        if self._state.waiting_nacks:
            self._state.waiting_nacks.wake_all(value=False)
        if self._state.on_idle is not None:  # check_idle, without its call for each message
            self._state.on_idle()

    def _end_failed(self, records: Sequence[MessageState], calls: Sequence[list[Waiter]], error: Exception) -> None:
        try:
            for record in records:
                self._failed(record, error)
        finally:  # also if a consumer's own trace raises
            for record, waiters in zip(records, calls, strict=True):
                waiting = [waiter for waiter in waiters if not waiter.done()]
                if len(waiting) > 1:
                    learning = [len(waiting)]
                    self._learning.update((waiter, learning) for waiter in waiting)
                for waiter in waiting:
                    waiter.set_exception(error)
                    waiter.exception()  # the caller may have been cancelled in this turn of the loop
                if not waiting and not self._is_over:  # all callers were cancelled, or there was none
                    self._redeliver(record, error)

    def _failed(self, record: MessageState, error: Exception) -> None:
        """Note that a message is not acknowledged; redeliver it if its time came meanwhile."""
        was_due = self._table.ack_failed(record)
        self._trace.error(record.id, record.redelivery_count, "ack", error)
        if was_due and record.state is DELIVERED and record.lease is None:  # it was dropped meanwhile
            self._queue.hold(self._table.hold(record.id), 0, self._recent.pop(record.id))
        elif was_due:
            self._queue.arm(record.id, 0)
        is_unknown = record.is_guessed and self._table.get(record.id) is None
        if is_unknown and (record.has_duplicate or record.redelivery_count):
            self._queue.ask_for({record.id: record.redelivery_count})
        self._state.check_idle()

    def on_raised(self, message_id: MessageId, waiter: Waiter, raised: BaseException) -> None:
        """Redeliver a message if its acknowledgement failed in the turn in which the last call for it was cancelled.

        :param raised: what the call that waited raises; it has not learned of any other error
        """
        error = waiter.exception() if waiter.done() and not waiter.cancelled() else None
        if not isinstance(error, Exception) or error is raised:
            return
        learning = self._learning.get(waiter, [1])
        learning[0] -= 1
        record = self._table.get(message_id)
        if not learning[0] and record is not None:
            self._redeliver(record, error)

    def _redeliver(self, record: MessageState, error: Exception) -> None:
        """Redeliver a message as if it had been nacked: its acknowledgement failed and no caller will settle it."""
        known = self._table.get(record.id)
        if self._state.is_closed:
            return
        if record.is_guessed and known is None:
            self._queue.ask_for({record.id: record.redelivery_count})  # no task has it, or it was forgotten
        elif known is record and record.state is DELIVERED:
            _log.warning("%r could not be acknowledged, and is redelivered: %s", record.id, error)
            payload = self._recent.pop(record.id)
            self._queue.hold(self._table.hold(record.id), self._state.default_delay_ms(record), payload)
            self._state.check_idle()

    def acked_through(self, message_id: MessageId, now_ms: int) -> None:
        """Note a cumulative acknowledgement that the port has confirmed; holds up to it are cancelled."""
        for record in self._table.settle_through(message_id, now_ms):
            self.acked += 1
            self._trace.settled_through(record, was_held=record.state is HELD)
            self._state.forget(record.id)
            if self._state.letters is not None:
                self._state.letters.drop(record.id, State.ACKING.value)
        self._state.waiting_nacks.wake_all(value=False)
        self._state.check_idle()

    async def finish(self, timeout: float) -> None:
        """Wait for those under way, then give the rest up: their callers get :class:`~pulsar_nack.ClosedError`."""
        if self._calls:
            self._all_answered = self._loop.create_future()
            await asyncio.wait([self._all_answered], timeout=timeout)
        for task in self._running:
            task.cancel()
        self.give_up()

    def give_up(self) -> None:
        """Raise :class:`~pulsar_nack.ClosedError` in calls that wait for an answer, now and later."""
        self._is_over = True
        records = list(self._calls)
        calls = [self._calls.pop(record) for record in records]
        self._end_failed(records, calls, ClosedError("the consumer"))

    # --- duplicates of acknowledged messages -------------------------------------------------------------------------

    def ack_duplicate(self, message_id: MessageId) -> None:
        """Acknowledge a delivery that came after the message's acknowledgement."""
        self._duplicates.append(message_id)
        self._has_duplicates.set()

    async def run(self) -> None:
        """Acknowledge duplicates until cancelled; failed ones are tried again, fewer together, as one may fail all."""
        pause, most = _FIRST_PAUSE_S, _BATCH
        while True:
            await self._has_duplicates.wait()
            some: list[MessageId] = []
            outdated: list[MessageId] = []
            for _ in range(min(len(self._duplicates), most)):
                duplicate = self._duplicates.popleft()
                (some if self._is_acked_again(duplicate) else outdated).append(duplicate)
            if outdated:
                known, acked = self._table.get, self._table.acked
                lost = [each for each in outdated if known(each) is None and acked.was_wrongly_hidden(each)]
                self._queue.ask_for(dict.fromkeys(lost, -1))
            if not self._duplicates:
                self._has_duplicates.clear()
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
        """Return whether a duplicate is still hidden by its acknowledgement, which has not failed and counts."""
        was_acked = self._durable is not None and self._durable.was_acked(message_id)
        return was_acked or (self._table.get(message_id) is None and self._table.acked.is_acked(message_id))

    def _put_back(self, some: list[MessageId]) -> None:
        """Try duplicates again; one that fails alone goes to the end, a few times, and then is left to the broker."""
        if len(some) > 1:
            self._duplicates.extendleft(reversed(some))
        elif self._tries.get(some[0], 0) < _MAX_TRIES:
            self._tries[some[0]] = self._tries.get(some[0], 0) + 1
            self._duplicates.append(some[0])
        else:
            self._tries.pop(some[0], None)
        if self._duplicates:
            self._has_duplicates.set()
