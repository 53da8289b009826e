"""The state of one consumer that its verbs share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from .._delays import delay_ms
from .._lifetime import NO_THREAD, check_loop
from ..backoff import as_backoff
from ..clock import Clock, WallClock
from ..errors import AlreadySettledError, ClosedError, NotOpenError
from ..ids import MessageId
from ._letters import Letters
from ._message_state import DELIVERED, MessageState, State
from ._payloads import LruPayloads
from ._port import Delivery
from ._redelivery_queue import RedeliveryQueue
from ._settings import ConsumerSettings
from ._unacked import UnackedLimiter

if TYPE_CHECKING:
    from .durable import DurableNacks

YIELD_AFTER_MS: Final = 5
"""How long the calls of a consumer may keep the loop from other tasks."""


class ConsumerState:
    """Whether a consumer is open, what it has, and whether a message can be settled or a nack held now."""

    def __init__(
        self,
        queue: RedeliveryQueue,
        limiter: UnackedLimiter,
        letters: Letters | None,
        settings: ConsumerSettings,
    ) -> None:
        self.now_ms = self.yielded_at_ms = queue.clock.now_ms()
        """The time of the latest call, and when other tasks ran before."""
        self.just_nacked: list[Any] = []
        """Messages that were nacked in this turn of the loop.

        Until the turn ends, only the task that nacked a message can take that back.
        """
        self.is_closed = False
        self.on_idle: Callable[[], None] | None = None
        """Called when messages were settled, held or taken back; None while nobody waits for that."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread = NO_THREAD
        """Where calls need no check of whether the consumer is open, in its loop: see :meth:`check_open`."""
        self.is_opened = False
        self.durable: DurableNacks | None = None
        """None: the consumer is not durable, or not open yet."""
        self.delivered = self.nacked = 0
        self.queue = queue
        self.recent = LruPayloads(settings.max_local_bytes)
        self.limiter = limiter
        self.letters = letters
        """None: the consumer has neither a dead-letter topic nor a retry topic."""
        self.has_dead_letters = letters is not None and letters.dead is not None
        self.config = queue.config
        self.wall_clock: Clock = settings.wall_clock or WallClock()
        self._backoff = None if settings.backoff is None else as_backoff(settings.backoff)

    def check_idle(self) -> None:
        """Let what waits for an idle consumer look again: fewer messages are being processed."""
        if self.on_idle is not None:
            self.on_idle()

    def end_turn(self) -> None:
        """Let any task settle the messages that were nacked in this turn; the first nack has the loop call this."""
        nacked, self.just_nacked = self.just_nacked, []
        for message in nacked:
            message._nacking = None

    def check_open(self) -> None:
        """Raise unless the consumer is open, and its event loop runs here.

        :raises ClosedError: the consumer is closed
        :raises NotOpenError: it is not open yet
        :raises WrongLoopError: another loop runs here
        """
        if self.is_closed:
            raise ClosedError("the consumer")
        if not self.is_opened:
            raise NotOpenError("the consumer")
        check_loop(self.loop, "the consumer")

    def is_sent_away(self, message_id: MessageId) -> bool:
        """Return whether a message is on its way to the dead-letter topic or the retry topic."""
        return self.letters is not None and message_id in self.letters

    def check_not_sent_away(self, message_id: MessageId, to: State | None = None) -> None:
        """Raise AlreadySettledError if the message is on its way to another topic, except ``to``."""
        state = None if self.letters is None else self.letters.state_of(message_id)
        if state is not None and state is not to:
            raise AlreadySettledError(message_id, state.value)

    def check_latest(self, record: MessageState, count: int) -> None:
        """Raise if a message was delivered again after the attempt with this ``count``."""
        is_later = max(record.redelivery_count, record.deferred_count) > count
        is_earlier = record.redelivery_count < count and record.state is DELIVERED
        if (is_later or is_earlier) and not record.is_guessed:
            raise AlreadySettledError(record.id, "redelivered")

    def check_unsettled(self, message_id: MessageId, count: int | None) -> MessageState | None:
        """Raise if the message is settled, or was delivered again after the attempt with this ``count``."""
        record = self.queue.table.get(message_id)
        if record is not None and count is not None:
            self.check_latest(record, count)
        if record is not None and record.state is DELIVERED:
            return record
        self.queue.table.check_unsettled(message_id)
        if record is None and self.durable is not None and self.durable.was_acked(message_id):
            raise AlreadySettledError(message_id, State.ACKING.value)
        return record

    def must_wait(self, payload: Delivery | None, *, is_local: bool) -> bool:
        """Return whether a nack has to wait for room, or until fewer messages are unacknowledged."""
        limit, table = self.limiter.limit, self.queue.table
        if limit is not None and table.delivered + table.held >= limit:
            return True
        if is_local:
            return not self.has_room(payload, is_local=True)
        return self.config.max_held is not None and table.held >= self.config.max_held

    def has_room(self, payload: Delivery | None, *, is_local: bool) -> bool:
        """Return whether a nack may be held; the limit on unacknowledged messages is not looked at.

        :param is_local: it is redelivered from memory
        """
        most, queue = self.config.max_held, self.queue
        if most is not None and queue.table.held >= most:
            return False
        return payload is None or not (is_local and queue.wants_all) or queue.has_room(payload)

    def default_delay_ms(self, record: MessageState | None) -> int:
        """Return the delay of a nack that names none."""
        count = 0 if record is None else record.redelivery_count
        delay = None if self._backoff is None else self._backoff(count)
        return self.config.negative_ack_redelivery_delay_ms if delay is None else delay_ms(delay)

    def forget(self, message_id: MessageId) -> None:
        """End the hold of a message."""
        self.queue.drop(message_id)
        self.recent.pop(message_id)
