"""The verbs that send a message to another topic: dead-letter, consume later, and the nacks that become either."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from .._delays import Delay, delay_ms
from ..errors import InvalidArgumentError, NoDeadLetterError
from ..ids import MessageId
from ._consumer_state import ConsumerState
from ._letter_rules import Wait, as_reason, check_properties
from ._letters import Letters
from ._message_state import MessageState, State
from ._port import Delivery
from ._tracing import DEAD_LETTER, RETRY_TOPIC

if TYPE_CHECKING:
    from .durable import Outcome


class LetterVerbs:
    """The part of a settler that sends messages to other topics."""

    def __init__(self, state: ConsumerState) -> None:
        self._state = state
        if state.letters is not None:
            state.letters.hold_again = self._hold_again

    async def dead_letter(self, payload: Delivery, count: int, reason: str) -> None:
        """Send a message to the dead-letter topic, and wait until it is there and acknowledged."""
        self._state.check_open()
        letters = self._state.letters
        if letters is None or letters.rules is None:
            raise NoDeadLetterError(payload.id)
        reason = as_reason(reason)
        await self._until_room(letters, payload.id, count, State.DEAD_LETTERING)
        await letters.wait(letters.dead_letter(payload, count, reason))

    async def reconsume_later(
        self, payload: Delivery, count: int, delay: Delay | None, properties: Mapping[str, str] | None, reason: str
    ) -> None:
        """Send a message to the retry topic, or after its last attempt to the dead-letter topic, and wait for that."""
        state, letters = self._state, self._state.letters
        state.check_open()
        record = state.queue.table.get(payload.id)
        wait = self._wait(state.default_delay_ms(record) if delay is None else delay_ms(delay), properties)
        reason = as_reason(reason)
        if letters is None or letters.retry is None:
            raise InvalidArgumentError("retry_topic", None, "a RetryTopicPolicy, for messages to be consumed later")
        is_last = letters.rules is not None and letters.rules.is_last(count)
        await self._until_room(letters, payload.id, count, State.DEAD_LETTERING if is_last else State.RETRYING)
        if is_last:
            await letters.wait(letters.dead_letter(payload, count, reason, wait))
        else:
            await letters.wait(letters.reconsume_later(payload, count, wait, reason))

    # --- nacks -------------------------------------------------------------------------------------------------------

    def nack(  # noqa: PLR0917 - all that a nack has
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
        letters = self._state.letters
        if letters is None or (record is not None and record.is_doubtful):  # then others may have settled it
            return None
        count = (attempt or 0) if record is None else record.redelivery_count
        if letters.rules is not None and letters.rules.is_last(count) and not is_deferred:
            return self._nack(letters, payload, count, attempt, None, reason)
        is_new = record is None or record.state is State.DELIVERED  # else the earlier of both deadlines counts
        may_spill = letters.may_spill and not letters.is_full and not self._state.queue.router.wants_all
        if is_new and may_spill and self._spills(letters, payload, milliseconds):
            wait = self._wait(milliseconds)._replace(is_deferred=is_deferred)
            return self._nack(letters, payload, count, attempt, wait, reason)
        return None

    def _spills(self, letters: Letters, payload: Delivery, milliseconds: int) -> bool:
        limiter, state, retry_topic = self._state.limiter, self._state, letters.retry_topic
        assert retry_topic is not None
        if retry_topic.spills(milliseconds, limiter.count(), limiter.near, limiter.limit):
            return True
        return state.must_wait(state.queue.router.choose(payload.id, milliseconds), payload)

    async def _nack(  # noqa: PLR0917 - all that a nack has
        self, letters: Letters, payload: Delivery, count: int, attempt: int | None, wait: Wait | None, reason: str
    ) -> asyncio.Future[Outcome] | None:
        to, state = State.DEAD_LETTERING if wait is None else State.RETRYING, self._state
        await self._until_room(letters, payload.id, attempt, to, is_new=False)
        state.nacked += wait is None or not wait.is_deferred
        if wait is None:
            letters.dead_letter(payload, count, reason)
            state.queue.trace.nacked_last(payload.id, count, reason)
            return None
        letters.reconsume_later(payload, count, wait, reason, is_spilled=True)
        durable = state.durable
        return None if durable is None else durable.nacked(payload.id, wait.delay_ms, count - wait.is_deferred)

    def _hold_again(self, payload: Delivery, record: MessageState, wait: Wait) -> None:
        """Hold a message whose nack could not wait in the retry topic."""
        queue, left_ms = self._state.queue, max(wait.until_ms - self._state.wall_clock.now_ms(), 0)
        plan = queue.router.choose_memory(record.id, left_ms) if wait.is_deferred else None
        queue.hold(queue.table.hold(record.id), left_ms, payload, plan)
        if wait.is_deferred:
            record.defer()

    # --- both --------------------------------------------------------------------------------------------------------

    def _wait(self, milliseconds: int, properties: Mapping[str, str] | None = None) -> Wait:
        until_ms = self._state.wall_clock.now_ms() + milliseconds
        return Wait(milliseconds, until_ms, check_properties(properties))

    async def _until_room(
        self, letters: Letters, message_id: MessageId, attempt: int | None, to: State, *, is_new: bool = True
    ) -> None:
        """Wait until a message may be sent to another topic; its nack is cancelled then."""
        state = self._state
        state.check_not_sent_away(message_id, to)
        if is_new and message_id not in letters:
            state.check_unsettled(message_id, attempt)
        while letters.is_full and message_id not in letters:
            await letters.has_room.wait()
            state.check_open()
            state.check_not_sent_away(message_id, to)
            if message_id not in letters:
                state.check_unsettled(message_id, attempt)
        queue = state.queue
        record = queue.table.get(message_id)
        if record is not None and record.state is State.HELD:
            reason = DEAD_LETTER if to is State.DEAD_LETTERING else RETRY_TOPIC
            queue.trace.cancel(message_id, record.redelivery_count, reason)
        state.forget(message_id)
