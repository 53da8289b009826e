"""What the parts of a consumer share: whether it is open, how much is unacknowledged, and which nacks wait for room.

A broker stops delivering when a consumer holds too many unacknowledged messages (50 000 by default). Holding one more
nack then helps nobody, so it waits. It never waits while a message is ready for the user: the caller may be the only
one who takes messages, and taking one is what makes room. Nor does it wait if everything unacknowledged is nacks that
wait, as nobody would make room. So the bounds are exceeded by the number of callers at most.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from .._delays import delay_ms
from .._lifetime import NO_THREAD, check_loop
from ..backoff import as_backoff
from ..clock import Clock, WallClock
from ..errors import AlreadySettledError, BrokerError, ClosedError, NotOpenError
from ..ids import MessageId
from ._letters import Letters
from ._message_state import DELIVERED, MessageState, State
from ._payloads import LruPayloads
from ._port import Delivery, SupportsSessions
from ._redelivery_queue import RedeliveryQueue
from ._settings import ConsumerSettings

if TYPE_CHECKING:
    from .durable import DurableNacks

_log = logging.getLogger("pulsar_nack.consumer")
_NEAR: Final = 0.8
HELD_BACK_S: Final = 10.0
"""How long a receiver waits for nothing, with messages unacknowledged, until the consumer asks the broker why."""
_MAX_REFUSALS: Final = 3
"""After this many refused questions the consumer does not ask the broker again."""
YIELD_AFTER_MS: Final = 5
"""How long the calls of a consumer may keep the loop from other tasks."""


class ConsumerState:
    """Whether a consumer is open, what it has, and whether a message can be settled or a nack held now.

    Nacks that wait are admitted first come, first served.

    :param limit: how many messages may be unacknowledged here, None: any number
    :param must_admit: whether the next nack is not to wait, whatever the bounds say
    """

    def __init__(
        self,
        queue: RedeliveryQueue,
        letters: Letters | None,
        settings: ConsumerSettings,
        limit: int | None,
        *,
        must_admit: Callable[[], bool],
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
        self.limit = limit
        self.near = math.inf if limit is None else _NEAR * min(limit, sys.maxsize)
        """From how many unacknowledged messages on :meth:`warn_if_near` warns."""
        self.prefetched = queue.port.traits.receiver_queue_size
        """How many more the transport prefetches."""
        self.held_back_at: int | None = None
        """How many deliveries had come when the broker last said that it holds messages back."""
        self.waiting_nacks = queue.waiting_nacks
        self._must_admit = must_admit
        self._has_warned = self._has_warned_of_waiting = False
        self._closed_by: Exception | None = None
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

    # --- unacknowledged messages -----------------------------------------------------------------------------------

    def count_unacked(self) -> int:
        """Return how many messages are unacknowledged here."""
        return self.queue.table.delivered + self.queue.table.held

    def warn_if_near(self) -> None:
        """Warn, once, when the count comes near the limit."""
        if not self._has_warned and self.count_unacked() >= self.near:
            self._has_warned = True
            _log.warning(
                "%d messages are unacknowledged; at %s the broker stops delivering; shorter delays or faster"
                " handlers would help",
                self.count_unacked(),
                self.limit,
            )

    def must_wait(self, payload: Delivery | None, delay_ms: int, is_local: bool | None = None) -> bool:
        """Return whether a nack has to wait for room, or until fewer messages are unacknowledged.

        :param is_local: whether its message is redelivered from memory; None: as its delay says
        """
        limit, table = self.limit, self.queue.table
        if limit is not None and table.delivered + table.held >= limit:
            return True
        return not self.has_room(payload, delay_ms, is_local)

    def has_room(self, payload: Delivery | None, delay_ms: int, is_local: bool | None) -> bool:
        """Return whether a nack may be held; the limit on unacknowledged messages is not looked at."""
        most, queue = self.config.max_held, self.queue
        if most is not None and queue.table.held >= most:
            return False
        if payload is None or not queue.wants_all:
            return True
        must_keep = queue.is_local(delay_ms) if is_local is None else is_local
        return not must_keep or queue.has_room(payload)

    async def wait_for_room(self, payload: Delivery | None, delay_ms: int, is_local: bool | None) -> None:
        """Wait until :meth:`must_wait` is false, or the nack must be admitted.

        The caller fills the room before it awaits anything else, so that the next one sees it.
        """
        while self.must_wait(payload, delay_ms, is_local) and not self._must_admit():
            if self._closed_by is not None:
                raise self._closed_by
            self._warn_that_one_waits()
            if await self.waiting_nacks.wait(self._pass_on):
                return

    def _pass_on(self, must_pass: bool) -> None:
        if must_pass:
            self.admit_one()

    def admit_one(self) -> None:
        """Admit one nack whatever the bounds say: a message is ready."""
        if self.waiting_nacks:
            self.waiting_nacks.wake_first(value=True)

    def _warn_that_one_waits(self) -> None:
        """Warn, once, that a nack waits although the limit is not reached, of which :meth:`warn_if_near` warns."""
        is_free = self.limit is None or self.count_unacked() < self.limit
        if is_free and not self._has_warned_of_waiting:
            self._has_warned_of_waiting = True
            _log.warning(
                "a call of nack waits for room, with %d messages held: max_held or max_local_bytes is reached; "
                "shorter delays or higher limits would help",
                self.queue.table.held,
            )

    def end_waiting_nacks(self, error: Exception) -> None:
        """Raise ``error`` in every nack that waits, now and later."""
        self._closed_by = error
        self.waiting_nacks.fail_all(error)

    # --- holds -----------------------------------------------------------------------------------------------------

    def default_delay_ms(self, record: MessageState | None) -> int:
        """Return the delay of a nack that names none."""
        count = 0 if record is None else record.redelivery_count
        delay = None if self._backoff is None else self._backoff(count)
        return self.config.negative_ack_redelivery_delay_ms if delay is None else delay_ms(delay)

    def forget(self, message_id: MessageId) -> None:
        """End the hold of a message."""
        self.queue.drop(message_id)
        self.recent.pop(message_id)


async def watch_held_back(
    port: SupportsSessions, wanted: asyncio.Event, state: ConsumerState, received: Callable[[], int]
) -> None:
    """Ask the broker why nothing comes while messages are wanted, and some are unacknowledged; warn once."""
    has_warned, refusals = False, 0
    while refusals < _MAX_REFUSALS:
        await wanted.wait()
        before = received()
        await asyncio.sleep(HELD_BACK_S)
        if received() != before or not wanted.is_set() or not state.count_unacked():
            continue
        try:
            reason = await port.held_back()
        except BrokerError as error:
            _log.debug("the broker does not say why nothing comes: %s", error)
            refusals += 1
            continue
        state.held_back_at = None if reason is None else before
        if reason is not None and not has_warned:
            has_warned = True
            _log.warning(
                "nothing comes while %d messages are unacknowledged here, of at most %s: %s; acknowledge some, "
                "raise that limit, or set unacked_limit below it",
                state.count_unacked(),
                "any number" if state.limit is None else state.limit + state.prefetched,
                reason,
            )
