"""The verbs of messages: acknowledge, nack, dead-letter, consume later. Messages hold it, the consumer owns it."""

from __future__ import annotations

import asyncio
import logging
from _thread import get_ident
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .._delays import Delay, delay_ms
from ..errors import InvalidArgumentError, NoDeadLetterError, NotDurableError
from ..ids import MessageId
from ._acks import Acks
from ._consumer_state import ConsumerState
from ._events import ASKED_FOR, DEAD_LETTER, RETRY_TOPIC
from ._leases import Leases
from ._letter_rules import Wait, as_reason, check_properties
from ._letters import Letters
from ._message_state import ACKING, DEAD_LETTERING, DELIVERED, HELD, RETRYING, MessageState, State
from ._port import Delivery

if TYPE_CHECKING:
    from .durable import DurableNacks, Outcome

_log = logging.getLogger("pulsar_nack.consumer")


class Settler:
    """Settles the messages of one consumer."""

    def __init__(self, state: ConsumerState, lease: Delay | None) -> None:
        self.state = state
        self.queue = queue = state.queue
        self.acks = Acks(state)
        self.dropped = self.handler_errors = 0
        self.leases = None if lease is None else Leases(state, lease)
        """None: the consumer has no leases."""
        self._recent = state.recent
        self._letters = state.letters
        if state.letters is not None:
            state.letters.hold_again, state.letters.on_left = self._hold_again, self._changed
        self._table = queue.table
        self._trace = queue.trace

    # --- acknowledging -----------------------------------------------------------------------------------------------

    def acknowledge(self, message_id: MessageId) -> asyncio.Future[None]:
        """Begin to acknowledge a message, and return a future of the outcome."""
        waiter: asyncio.Future[None] = asyncio.Future(loop=self.state.loop)
        self.acknowledge_soon(message_id, waiter)
        return waiter

    def acknowledge_soon(self, message_id: MessageId, waiter: asyncio.Future[None] | None = None) -> None:
        """Begin to acknowledge a message; ``waiter`` gets the outcome, None: nobody waits."""
        if get_ident() != self.state.thread._thread_id:
            self.state.check_open()
        if self._letters is not None:
            self.state.check_not_sent_away(message_id)
        self.acks.acknowledge_soon(message_id, waiter)

    def redeliver(self, record: MessageState) -> None:
        """Redeliver a message that is being processed, as if it had been nacked without a delay; waits for no room."""
        payload = self._recent.pop(record.id)
        self.queue.hold(self._table.hold(record.id), 0, payload)
        self._trace.nack(record, 0, ASKED_FOR)
        self.state.check_idle()

    # --- checks ------------------------------------------------------------------------------------------------------

    def check_attempt(self, message_id: MessageId, count: int) -> None:
        """Raise if the message was delivered again after this attempt, and is not settled."""
        record = self._table.get(message_id)
        if record is not None:
            self.state.check_latest(record, count)

    def is_in_work(self, message_id: MessageId, attempt: int, *, is_late: bool) -> bool:
        """Return whether a delivered message, at this attempt, is not settled by its id, as far as that is known.

        :param is_late: its lease has ended, so it may be held, or on its way again
        """
        record = self._table.get(message_id)
        return record is None or (record.nacked_attempt < attempt and (is_late or record.state is DELIVERED))

    def is_acking(self, message_id: MessageId) -> bool:
        """Return whether an acknowledgement of a message is under way."""
        record = self._table.get(message_id)
        return record is not None and record.state is ACKING

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
        if get_ident() != self.state.thread._thread_id:
            self.state.check_open()
        now_ms = self.state.now_ms = self.queue.clock.now_ms()
        milliseconds = self.state.default_delay_ms(self._table.get(message_id)) if delay is None else delay_ms(delay)
        if reason or type(reason) is not str:
            reason = as_reason(reason)
        payload = self._recent.get(message_id) if payload is None else payload
        letters = self._letters
        if letters is not None and message_id in letters:
            return None
        record = self._table.get(message_id)
        if record is None or record.state is not DELIVERED or record.redelivery_count != attempt:
            record = self.state.check_unsettled(message_id, attempt)
        if (
            letters is not None
            and payload is not None
            and (sent := self._send_nacked(payload, record, attempt, milliseconds, reason, is_deferred)) is not None
        ):
            return await sent
        queue, left_ms = self.queue, milliseconds
        is_local = True if is_deferred and queue.is_auto else None
        is_new = record is None or record.state is DELIVERED
        if is_new and self.state.must_wait(payload, milliseconds, is_local):
            left_ms = await self._wait_for_room(message_id, attempt, payload, milliseconds, is_local)
            now_ms = self.state.now_ms = self.queue.clock.now_ms()
        record = self._table.hold(message_id)
        queue.hold(record, left_ms, payload, now_ms, is_local=is_local)
        if is_deferred:
            self._note_deferred(record, milliseconds, is_new=is_new)
        else:
            self.state.nacked += 1
            record.nacked_attempt = record.redelivery_count + 1
            if self._trace.is_on:
                self._trace.nack(record, milliseconds, reason)
        if self._recent.delivered:
            self._recent.pop(message_id)
        if self._table.delivered + self._table.held >= self.state.near:
            self.state.warn_if_near()
        if self.state.on_idle is not None:
            self.state.on_idle()
        return None if self.state.durable is None else self._write_nack(self.state.durable, record)

    def _note_deferred(self, record: MessageState, milliseconds: int, *, is_new: bool) -> None:
        self._trace.deferred(record, milliseconds)
        if is_new:
            record.defer()

    def _write_nack(self, durable: DurableNacks, record: MessageState) -> asyncio.Future[Outcome] | None:
        if record.state is not HELD:
            return None
        due_in_ms = record.due_at_ms - self.queue.clock.now_ms()
        return durable.nacked(record.id, due_in_ms, record.redelivery_count)

    async def _wait_for_room(
        self, message_id: MessageId, attempt: int | None, payload: Delivery | None, delay_ms: int, is_local: bool | None
    ) -> int:
        """Wait until a nack may be held; return what is left of its delay."""
        if not self.state.has_room(payload, delay_ms, is_local):
            record = self._table.get(message_id)
            self._trace.hold(message_id, 0 if record is None else record.redelivery_count, "no room")
        now = asyncio.get_running_loop().time
        began_at = now()
        await self.state.wait_for_room(payload, delay_ms, is_local)
        self.state.check_unsettled(message_id, attempt)
        return max(delay_ms - round((now() - began_at) * 1000), 0)

    @staticmethod
    async def until_durable(message_id: MessageId, written: asyncio.Future[Outcome]) -> None:
        """Wait until a nack is durable.

        :raises NotDurableError: it could not be written
        """
        error = await written
        if error is not None:
            what = f"{message_id!r} comes back in time while this consumer lives, but that could not be made durable"
            raise NotDurableError(what, error) from error

    # --- sending to another topic ------------------------------------------------------------------------------------

    async def dead_letter(self, payload: Delivery, count: int, reason: str) -> None:
        """Send a message to the dead-letter topic, and wait until it is there and acknowledged."""
        self.state.check_open()
        letters = self._letters
        if letters is None or letters.dead is None:
            raise NoDeadLetterError(payload.id)
        reason = as_reason(reason)
        await self._until_room(letters, payload.id, count, DEAD_LETTERING)
        await letters.wait(letters.dead_letter(payload, count, reason))

    async def reconsume_later(
        self, payload: Delivery, count: int, delay: Delay | None, properties: Mapping[str, str] | None, reason: str
    ) -> None:
        """Send a message to the retry topic, or after its last attempt to the dead-letter topic, and wait for that."""
        state, letters = self.state, self._letters
        state.check_open()
        record = self._table.get(payload.id)
        wait = self._wait(state.default_delay_ms(record) if delay is None else delay_ms(delay), properties)
        reason = as_reason(reason)
        if letters is None or letters.retry is None:
            expected = "a RetryTopicPolicy: without one the consumer cannot let a message be consumed later"
            raise InvalidArgumentError("retry_topic", None, expected)
        is_last = letters.rules.is_last(count)
        await self._until_room(letters, payload.id, count, DEAD_LETTERING if is_last else RETRYING)
        if is_last:
            await letters.wait(letters.dead_letter(payload, count, reason, wait))
        else:
            await letters.wait(letters.reconsume_later(payload, count, wait, reason))

    def _send_nacked(  # noqa: PLR0917 - all that a nack has
        self,
        payload: Delivery,
        record: MessageState | None,
        attempt: int | None,
        milliseconds: int,
        reason: str,
        is_deferred: bool = False,
    ) -> Coroutine[Any, Any, asyncio.Future[Outcome] | None] | None:
        """Return what sends a nacked message away, to be awaited; None if it waits here.

        :param record: of a message that is not settled, None: it is not known
        :param attempt: the redelivery count of the attempt that ends; None: of any
        :param is_deferred: nothing failed: the message comes as the same attempt again
        """
        letters = self._letters
        if letters is None or (record is not None and record.is_doubtful):  # then others may have settled it
            return None
        count = (attempt or 0) if record is None else record.redelivery_count
        if letters.rules.is_last(count) and not is_deferred:
            return self._nack_away(letters, payload, count, attempt, None, reason)
        is_new = record is None or record.state is DELIVERED  # else the earlier of both deadlines counts
        may_spill = letters.rules.may_spill and not letters.is_full and not self.queue.wants_all
        if is_new and may_spill and self._spills(letters, payload, milliseconds):
            wait = self._wait(milliseconds)._replace(is_deferred=is_deferred)
            return self._nack_away(letters, payload, count, attempt, wait, reason)
        return None

    def _spills(self, letters: Letters, payload: Delivery, milliseconds: int) -> bool:
        state = self.state
        if letters.rules.spills(milliseconds, state.count_unacked(), state.near, state.limit):
            return True
        return state.must_wait(payload, milliseconds)

    async def _nack_away(  # noqa: PLR0917 - all that a nack has
        self, letters: Letters, payload: Delivery, count: int, attempt: int | None, wait: Wait | None, reason: str
    ) -> asyncio.Future[Outcome] | None:
        to, state = DEAD_LETTERING if wait is None else RETRYING, self.state
        await self._until_room(letters, payload.id, attempt, to, is_new=False)
        state.nacked += wait is None or not wait.is_deferred
        if wait is None:
            letters.dead_letter(payload, count, reason)
            self._trace.nacked_last(payload.id, count, reason)
            return None
        letters.reconsume_later(payload, count, wait, reason, is_spilled=True)
        durable = state.durable
        return None if durable is None else durable.nacked(payload.id, wait.delay_ms, count - wait.is_deferred)

    def _hold_again(self, payload: Delivery, record: MessageState, wait: Wait) -> None:
        """Hold a message whose nack could not wait in the retry topic."""
        queue, left_ms = self.queue, max(wait.until_ms - self.state.wall_clock.now_ms(), 0)
        is_local = True if wait.is_deferred and queue.is_auto else None
        queue.hold(self._table.hold(record.id), left_ms, payload, is_local=is_local)
        if wait.is_deferred:
            record.defer()
        self.state.check_idle()

    def _wait(self, milliseconds: int, properties: Mapping[str, str] | None = None) -> Wait:
        until_ms = self.state.wall_clock.now_ms() + milliseconds
        return Wait(milliseconds, until_ms, check_properties(properties))

    async def _until_room(
        self, letters: Letters, message_id: MessageId, attempt: int | None, to: State, *, is_new: bool = True
    ) -> None:
        """Wait until a message may be sent to another topic; its nack is cancelled then."""
        state = self.state
        state.check_not_sent_away(message_id, to)
        if is_new and message_id not in letters:
            state.check_unsettled(message_id, attempt)
        while letters.is_full and message_id not in letters:
            await letters.has_room.wait()
            state.check_open()
            state.check_not_sent_away(message_id, to)
            if message_id not in letters:
                state.check_unsettled(message_id, attempt)
        record = self._table.get(message_id)
        if record is not None and record.state is HELD:
            reason = DEAD_LETTER if to is DEAD_LETTERING else RETRY_TOPIC
            self._trace.cancel(message_id, record.redelivery_count, reason)
        state.forget(message_id)

    # --- forgetting --------------------------------------------------------------------------------------------------

    def drop(self, records: Sequence[MessageState], reason: str) -> None:
        """Forget waiting messages that are settled, or that another consumer gets."""
        self._trace.cancel_all(records, reason)
        for record in records:
            self.state.forget(record.id)
        if records:
            self.dropped += len(records)
            _log.info("%d messages that waited for redelivery are dropped: %s", len(records), reason)
        self._changed()

    def clear(self, trace_reason: str, dead_letter_reason: str) -> None:
        """Forget all messages: the subscription was moved or deleted."""
        self.trace_cancelled(trace_reason)
        self.queue.clear()
        self._recent.clear()
        self._table.clear()
        if self._letters is not None:
            self._letters.clear(dead_letter_reason)

    def _changed(self) -> None:
        self.state.waiting_nacks.wake_all(value=False)
        if self.state.on_idle is not None:
            self.state.on_idle()

    def trace_cancelled(self, reason: str) -> None:
        """Note in the trace that all holds end."""
        if self._trace.is_on:
            self._trace.cancel_all(self._table.select({HELD}), reason)
