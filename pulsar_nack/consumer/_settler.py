"""The verbs of messages: acknowledge, nack, dead-letter, consume later. Messages hold it, the consumer owns it.

The settler knows whether the consumer is open. It decides once how a nack is carried out, and hands the decision on as
a :class:`RedeliveryPlan`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from .._delays import Delay, delay_ms
from .._lifetime import check_loop, running_loop
from ..backoff import as_backoff
from ..clock import Clock, WallClock
from ..config import NackConfig
from ..errors import (
    AlreadySettledError,
    ClosedError,
    NotDurableError,
    NotOpenError,
)
from ..ids import MessageId
from ._acks import Acks
from ._dead_letter_rules import as_reason
from ._leases import Leases
from ._letter_verbs import LetterVerbs
from ._letters import Letters
from ._message_state import SENT_AWAY, MessageState, State
from ._payloads import LruPayloads
from ._port import Delivery
from ._redelivery_queue import RedeliveryQueue
from ._redelivery_router import RedeliveryPlan
from ._settings import ConsumerSettings
from ._unacked import UnackedLimiter

if TYPE_CHECKING:
    from .durable import DurableNacks, Outcome

_log = logging.getLogger("pulsar_nack.consumer")
YIELD_AFTER_MS: Final = 5


class LoopTurn:
    """Measures how long this consumer's calls have kept the loop from other tasks."""

    def __init__(self, clock: Clock) -> None:
        self.now_ms = self.yielded_at_ms = clock.now_ms()
        """The time of the latest call, and when other tasks ran before."""
        self._calls: list[Callable[[], None]] = []

    def is_long(self) -> bool:
        """Return whether the loop has to run other tasks at ``now_ms``; the caller then lets it."""
        if self.now_ms - self.yielded_at_ms < YIELD_AFTER_MS:
            return False
        self.yielded_at_ms = self.now_ms
        return True

    def call_at_end(self, call: Callable[[], None]) -> None:
        """Call a function in the next turn of the loop, all functions of this turn together."""
        if not self._calls:
            asyncio.get_running_loop().call_soon(self._call_all)
        self._calls.append(call)

    def _call_all(self) -> None:
        calls, self._calls = self._calls, []
        for call in calls:
            call()


class Settler:
    """Settles the messages of one consumer."""

    def __init__(
        self,
        queue: RedeliveryQueue,
        recent: LruPayloads,
        limiter: UnackedLimiter,
        letters: Letters | None,
        settings: ConsumerSettings,
    ) -> None:
        self.turn = LoopTurn(queue.clock)
        self.is_closed = False
        self.on_idle: Callable[[], None] | None = None
        """Called when messages were settled or held; None while nobody waits for that."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self.acks: Acks | None = None
        """None until the consumer is open."""
        self.durable: DurableNacks | None = None
        self.nacked = self.dropped = self.acked_through = self.given_up = self.handler_errors = 0
        self.queue = queue
        self.recent = recent
        self.limiter = limiter
        self.letters = letters
        self.has_dead_letters = letters is not None and letters.rules is not None
        self.letter_verbs = LetterVerbs(self, letters)
        self._table = queue.table
        self._trace = queue.trace
        self.config = settings.config or NackConfig()
        self._backoff = None if settings.backoff is None else as_backoff(settings.backoff)
        self.wall_clock = settings.wall_clock or WallClock()
        self.leases = None if settings.lease is None else Leases(self, settings.lease)
        """None: the consumer has no leases."""

    def check_open(self) -> Acks:
        """Return the acknowledgements of an open consumer, in its event loop.

        :raises ClosedError: the consumer is closed
        :raises NotOpenError: it is not open yet
        :raises WrongLoopError: another loop runs here
        """
        if self.is_closed:
            raise ClosedError("the consumer")
        if self.acks is None:
            raise NotOpenError("the consumer")
        check_loop(self.loop, "the consumer")
        return self.acks

    # --- acknowledging -----------------------------------------------------------------------------------------------

    def acknowledge(self, message_id: MessageId) -> Awaitable[None]:
        """Begin to acknowledge a message, and return an awaitable of the outcome."""
        acks = self.acks
        if acks is None or self.is_closed or running_loop() is not self.loop:
            acks = self.check_open()
        if self.letters is not None:
            self.check_not_sent_away(message_id)
        return acks.acknowledge(message_id)

    def acknowledge_soon(self, message_id: MessageId) -> None:
        """Begin to acknowledge a message; nobody waits for the outcome."""
        acks = self.check_open()
        if self.letters is not None:
            self.check_not_sent_away(message_id)
        acks.acknowledge_soon(message_id)

    def settled_through(self, message_id: MessageId, now_ms: int) -> None:
        """Note a cumulative acknowledgement that the port has confirmed; holds up to it are cancelled."""
        for record in self._table.settle_through(message_id, now_ms):
            self.acked_through += 1
            self._trace.settled_through(record, was_held=record.state is State.HELD)
            self.forget(record.id)
            if self.letters is not None:
                self.letters.drop(record.id, State.ACKING.value)
        self._changed()

    def on_settled(self, records: Sequence[MessageState]) -> None:
        """Note messages whose acknowledgement was confirmed."""
        if self._trace.is_on:
            self._trace.settled(records)
        for record in records:
            if record.before_ack is not State.DELIVERED or record.lease is not None:
                self.queue.drop(record.id)
                self.given_up += record.before_ack in SENT_AWAY
            if record.has_duplicate and self.acks is not None:
                self.acks.ack_duplicate(record.id)
        if self.recent.delivered:
            for record in records:
                self.recent.pop(record.id)
        if self.limiter.waiters:
            self.limiter.changed()
        if self.on_idle is not None:
            self.on_idle()

    def on_ack_failed(self, record: MessageState, error: BaseException, *, was_due: bool) -> None:
        """Note a message whose acknowledgement failed, and whether its time came meanwhile."""
        self._trace.error(record.id, record.redelivery_count, "ack", error)
        if was_due:
            self.queue.hold_again(record)
        is_unknown = record.is_guessed and self._table.get(record.id) is None
        if is_unknown and (record.has_duplicate or record.redelivery_count):
            self.queue.ask_for({record.id: record.redelivery_count})

    def on_unobserved(self, message_id: MessageId, error: BaseException | None) -> None:
        """Note the outcome of an acknowledgement, None: not known yet, whose caller was cancelled."""
        record = self._table.get(message_id)
        if isinstance(error, Exception) and record is not None:
            self.on_unobserved_error(record, error)

    def on_unobserved_error(self, record: MessageState, error: Exception) -> None:
        """Redeliver a message as if it had been nacked: its acknowledgement failed and no caller will settle it."""
        known = self._table.get(record.id)
        if self.is_closed:
            return
        if record.is_guessed and known is None:
            self.queue.ask_for({record.id: record.redelivery_count})  # no task has it, or it was forgotten
        elif known is record and record.state is State.DELIVERED:
            _log.warning("%r could not be acknowledged, and is redelivered: %s", record.id, error)
            payload = self.recent.pop(record.id)
            self.queue.hold(self._table.hold(record.id), self.default_delay_ms(record), payload)

    def redeliver(self, record: MessageState) -> None:
        """Redeliver a message that is being processed, as if it had been nacked without a delay; waits for no room."""
        payload = self.recent.pop(record.id)
        self.queue.hold(self._table.hold(record.id), 0, payload)
        if self._trace.is_on:
            self._trace.nack(record, 0, "redeliver_unacknowledged_messages")

    # --- checks ------------------------------------------------------------------------------------------------------

    def check_attempt(self, message_id: MessageId, count: int) -> None:
        """Raise if a later attempt of the message is being processed."""
        record = self._table.get(message_id)
        if record is not None and record.state is State.DELIVERED:
            self.check_unsettled(message_id, count)

    def is_in_work(self, message_id: MessageId) -> bool:
        """Return whether a delivered message is not settled by its id, as far as that is known."""
        record = self._table.get(message_id)
        return record is None or record.state is State.DELIVERED

    def is_sent_away(self, message_id: MessageId) -> bool:
        """Return whether a message is on its way to the dead-letter topic or the retry topic."""
        return self.letters is not None and message_id in self.letters

    def check_not_sent_away(self, message_id: MessageId, to: State | None = None) -> None:
        """Raise AlreadySettledError if the message is on its way to another topic, except ``to``."""
        state = None if self.letters is None else self.letters.state_of(message_id)
        if state is not None and state is not to:
            raise AlreadySettledError(message_id, state.value)

    def check_unsettled(self, message_id: MessageId, count: int | None) -> MessageState | None:
        """Raise if the message is settled, or if an attempt later than ``count`` is being processed."""
        record = self._table.get(message_id)
        if record is not None and record.state is State.DELIVERED:
            if count is not None and record.redelivery_count != count and not record.is_guessed:
                raise AlreadySettledError(message_id, "redelivered")
            return record
        self._table.check_unsettled(message_id)
        if record is None and self.durable is not None and self.durable.was_acked(message_id):
            raise AlreadySettledError(message_id, State.ACKING.value)
        return record

    # --- negative acknowledgement ------------------------------------------------------------------------------------

    async def nack(
        self,
        message_id: MessageId,
        delay: Delay | None,
        payload: Delivery | None = None,
        attempt: int | None = None,
        *,
        reason: str = "",
        is_deferred: bool = False,
    ) -> asyncio.Future[Outcome] | None:
        """Hold a message; return a future of its durable record, None if there is nothing to wait for.

        :param payload: None: not known here
        :param attempt: the redelivery count of the attempt that ends; None: of any
        :param is_deferred: the next attempt has the same count
        """
        if self.acks is None or self.is_closed or running_loop() is not self.loop:
            self.check_open()
        now_ms = self.turn.now_ms = self.queue.clock.now_ms()
        milliseconds = self.default_delay_ms(self._table.get(message_id)) if delay is None else delay_ms(delay)
        if reason or type(reason) is not str:
            reason = as_reason(reason)
        payload = self.recent.get(message_id) if payload is None else payload
        letters = self.letters
        if letters is not None and message_id in letters:
            return None
        record = self._table.get(message_id)
        if record is None or record.state is not State.DELIVERED or record.redelivery_count != attempt:
            record = self.check_unsettled(message_id, attempt)
        if (
            letters is not None
            and payload is not None
            and (sent := self.letter_verbs.nack(payload, record, attempt, milliseconds, reason, is_deferred))
            is not None
        ):
            return await sent
        router, left_ms = self.queue.router, milliseconds
        choose = router.choose_memory if is_deferred else router.choose
        plan = choose(message_id, milliseconds)
        is_new = record is None or record.state is State.DELIVERED
        if is_new and self.must_wait(plan, payload):
            waited_ms = await self._wait_for_room(message_id, attempt, plan, payload)
            left_ms = max(milliseconds - waited_ms, 0)
            plan = choose(message_id, left_ms)
            now_ms = self.turn.now_ms = self.queue.clock.now_ms()
        record = self._table.hold(message_id)
        self.queue.hold(record, left_ms, payload, plan, now_ms)
        if is_deferred:
            self._note_deferred(record, milliseconds, is_new=is_new)
        else:
            self.nacked += 1
            if self._trace.is_on:
                self._trace.nack(record, milliseconds, reason)
        if self.recent.delivered:
            self.recent.pop(message_id)
        if self._table.delivered + self._table.held >= self.limiter.near:
            self.limiter.warn_if_near()
        if self.on_idle is not None:
            self.on_idle()
        return None if self.durable is None else self._write_nack(self.durable, record)

    def _note_deferred(self, record: MessageState, milliseconds: int, *, is_new: bool) -> None:
        """Note that a message was deferred: it comes as the same attempt again, whatever the broker counts."""
        self._trace.deferred(record, milliseconds)
        if is_new:
            record.redelivery_count -= 1
            record.hidden_count += 1

    def _write_nack(self, durable: DurableNacks, record: MessageState) -> asyncio.Future[Outcome] | None:
        if record.state is not State.HELD:
            return None
        due_in_ms = record.due_at_ms - self.queue.clock.now_ms()
        return durable.nacked(record.id, due_in_ms, record.redelivery_count)

    async def _wait_for_room(
        self, message_id: MessageId, attempt: int | None, plan: RedeliveryPlan, payload: Delivery | None
    ) -> int:
        """Wait until a nack may be held; return how many ms that took."""
        if not self._has_room(plan, payload):
            record = self._table.get(message_id)
            self._trace.hold(message_id, 0 if record is None else record.redelivery_count, "no room")
        now = asyncio.get_running_loop().time
        began_at = now()
        await self.limiter.wait_for(lambda: self._has_room(plan, payload))
        self.check_unsettled(message_id, attempt)
        return round((now() - began_at) * 1000)

    def must_wait(self, plan: RedeliveryPlan, payload: Delivery | None) -> bool:
        """Return whether a nack has to wait for room."""
        limit, table = self.limiter.limit, self._table
        if limit is not None and table.delivered + table.held >= limit:
            return True
        most = self.config.max_held
        if plan.must_keep:
            return not self._has_room(plan, payload)
        return most is not None and table.held >= most

    def _has_room(self, plan: RedeliveryPlan, payload: Delivery | None) -> bool:
        most = self.config.max_held
        is_full = most is not None and self._table.held >= most
        return not is_full and (payload is None or not plan.must_keep or self.queue.has_room(payload))

    def default_delay_ms(self, record: MessageState | None) -> int:
        """Return the delay of a nack that names none."""
        count = 0 if record is None else record.redelivery_count
        delay = None if self._backoff is None else self._backoff(count)
        return self.config.negative_ack_redelivery_delay_ms if delay is None else delay_ms(delay)

    @staticmethod
    async def until_durable(message_id: MessageId, written: asyncio.Future[Outcome]) -> None:
        """Wait until a nack is durable.

        :raises NotDurableError: it could not be written
        """
        error = await written
        if error is not None:
            what = f"{message_id!r} comes back in time while this consumer lives, but that could not be made durable"
            raise NotDurableError(what, error) from error

    # --- forgetting --------------------------------------------------------------------------------------------------

    def drop(self, records: Sequence[MessageState], reason: str) -> None:
        """Forget waiting messages that are settled, or that another consumer gets."""
        self._trace.cancel_all(records, reason)
        for record in records:
            self.forget(record.id)
        if records:
            self.dropped += len(records)
            _log.info("%d messages that waited for redelivery are dropped: %s", len(records), reason)
        self._changed()

    def clear(self, trace_reason: str, dead_letter_reason: str) -> None:
        """Forget all messages: the subscription was moved or deleted."""
        self.trace_cancelled(trace_reason)
        self.queue.clear()
        self.recent.clear()
        self._table.clear()
        if self.letters is not None:
            self.letters.clear(dead_letter_reason)

    def _changed(self) -> None:
        self.limiter.changed()
        if self.on_idle is not None:
            self.on_idle()

    def trace_cancelled(self, reason: str) -> None:
        """Note in the trace that all holds end."""
        if self._trace.is_on:
            self._trace.cancel_all(self._table.select({State.HELD}), reason)

    def forget(self, message_id: MessageId) -> None:
        self.queue.drop(message_id)
        self.recent.pop(message_id)
