"""The events of a consumer, for its hooks and its trace. All of them are reported by :class:`MessageTrace`.

A hook is any callable that takes one event, a frozen record. A consumer's hooks also get the events of its tracker, see
:data:`~pulsar_nack.nack.NackEvent`. Hooks run in the event loop and must not block. The first error that one raises is
logged, and all are counted (``statistics().nack.hook_errors``); they never reach the consumer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from .._foreign import quoted
from ..clock import Clock
from ..ids import MessageId
from ..nack import Hooks, NackEvent
from ._message_state import DEAD_LETTERING, DELIVERED, HELD, RETRYING, SENT_AWAY, MessageState

DEAD_LETTER: Final = "dead-letter"
"""The reason of the acknowledgement of a dead letter."""
RETRY_TOPIC: Final = "retry-topic"
"""The reason of the acknowledgement of a message that was published to the retry topic."""
ASKED_FOR: Final = "redeliver_unacknowledged_messages"
"""The reason of the nack of a message that this call asks for."""
REQUESTED_AGAIN: Final = "asked again"
"""The reason of a redelivery that was noted before."""
LEASE_EXPIRED: Final = "lease expired"
"""The reason of the nack, or of the dead letter, of a message whose lease ended."""
_REASONS: Final = {DEAD_LETTERING: DEAD_LETTER, RETRYING: RETRY_TOPIC}


@dataclass(frozen=True, slots=True)
class MessageEvent:
    """Something that happened to one message; the base of all events of messages.

    :param id: the message id
    :param attempt: the number of the attempt, 1 for the first, as :attr:`Message.attempt`; None where it is not known
    :param at_ms: when, in ms of the consumer's clock
    """

    id: MessageId
    attempt: int | None
    at_ms: int


@dataclass(frozen=True, slots=True)
class MessageReceived(MessageEvent):
    """A message arrived for an attempt, and was not dropped as a duplicate."""


@dataclass(frozen=True, slots=True)
class MessageRedelivered(MessageReceived):
    """A message with a deadline arrived; this is a :class:`MessageReceived` too.

    The deadline is that of a nack, a lease or a postponed message, or of the retry topic that it comes from.

    :param is_local: it came from memory; False: from the broker
    :param lateness_ms: how long after its deadline; negative: before it
    """

    is_local: bool
    lateness_ms: int


@dataclass(frozen=True, slots=True)
class MessageAcknowledged(MessageEvent):
    """The acknowledgement of a message was confirmed; not for dead letters and messages of a retry topic."""


@dataclass(frozen=True, slots=True)
class MessageNacked(MessageEvent):
    """A message was negatively acknowledged.

    :param delay_ms: the delay asked for; None: it was the last attempt, and the message becomes a dead letter
    :param reason: empty without one
    """

    delay_ms: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class MessageDeferred(MessageEvent):
    """A message was postponed, which is no failure; ``delay_ms`` is the delay asked for."""

    delay_ms: int


@dataclass(frozen=True, slots=True)
class MessageDeadLettered(MessageEvent):
    """A message was stored in the dead-letter topic and acknowledged; ``attempt`` is the last one that it had.

    :param topic: the dead-letter topic
    """

    topic: str
    reason: str


@dataclass(frozen=True, slots=True)
class MessageRetried(MessageEvent):
    """A message was stored in the retry topic and acknowledged.

    :param topic: the retry topic
    :param delay_ms: how long it waits there
    """

    topic: str
    delay_ms: int


@dataclass(frozen=True, slots=True)
class LeaseExpired(MessageEvent):
    """A message was not settled within its lease, and is redelivered."""


@dataclass(frozen=True, slots=True)
class ConsumerConnected:
    """A session of a topic or partition began, or the consumer was opened.

    :param topic: of a session the topic with its partition; of the opening the name that was subscribed to
    :param partition: -1 without one
    :param at_ms: when, in ms of the consumer's clock
    """

    topic: str
    partition: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class ConsumerDisconnected:
    """A session ended, or the consumer is closed; topic and partition as in :class:`ConsumerConnected`.

    :param reason: ``lost``: the connection broke; ``closed``: the broker or the user ended it; ``inactive``: another
        Failover consumer gets the messages
    """

    topic: str
    partition: int
    at_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class ConsumerDrained:
    """The consumer was drained.

    :param given_back: prefetched messages that went back to the broker at once
    :param left: delivered messages that were not settled in the end, as in :class:`DrainReport`
    """

    at_ms: int
    given_back: int
    left: int


ConsumerEvent = MessageEvent | ConsumerConnected | ConsumerDisconnected | ConsumerDrained
"""Any event of a consumer."""


ConsumerHook = Callable[[ConsumerEvent | NackEvent], None]
"""Any callable that handles one event; it receives every event of a consumer, and of its tracker."""
TraceNote = Callable[..., None]
"""Notes one event; called on the loop, never blocks, never raises.

Its arguments are the event (nack, redeliver, arrive, ack, cancel, hold or error), the message id, and the attempt: how
often the message was delivered before, None if that is not known. Its keywords are ``delay_ms``, ``due_in_ms`` (the
deadline, from now; negative: past) and ``reason``, None where they are left out.
"""


class ConsumerTrace(Protocol):
    """Where consumers note what happens; a :class:`~pulsar_nack.observe.TraceWriter` is one."""

    def source(self, topic: str = "", subscription: str = "", consumer: str = "") -> TraceNote:
        """Return the callable that one consumer notes its events with."""
        ...


class MessageTrace:
    """Reports what happens to the trace and to the hooks, and counts what is rare.

    Callers may leave out a call while :attr:`is_on` is false, except those that count.

    :param note: takes the events of the trace; None: they are dropped
    :param hooks: take the events above
    """

    def __init__(self, note: TraceNote | None, clock: Clock, hooks: Sequence[ConsumerHook] = ()) -> None:
        self.hooks = Hooks(hooks)
        self._has_hooks = bool(self.hooks)
        self.is_on = note is not None or self._has_hooks
        self.total_retried = self.total_deferred = self.total_leases_expired = self.total_drains = 0
        self._note = _drop if note is None else note
        self.clock = clock
        self._redelivery_hooks = Hooks([])

    def watch_redeliveries(self, hook: Callable[[MessageRedelivered], None]) -> None:
        """Call a hook with each :class:`MessageRedelivered` from now on, and with nothing else: for metrics."""
        self._redelivery_hooks = Hooks([*self._redelivery_hooks, hook])
        self.is_on = True

    # --- deliveries, holds and requests ------------------------------------------------------------------------------

    def arrive(self, record: MessageState, due_at_ms: int | None, *, is_local: bool = False) -> None:
        """Note a delivery to the user; ``due_at_ms``: the deadline, if a redelivery was awaited."""
        self._note("arrive", record.id, record.redelivery_count, due_in_ms=self._due_in(due_at_ms))
        if due_at_ms is None:
            if self._has_hooks:
                self.hooks.emit(MessageReceived(*self._about(record)))
        elif self._has_hooks or self._redelivery_hooks:
            message_id, attempt, now_ms = self._about(record)
            event = MessageRedelivered(message_id, attempt, now_ms, is_local, now_ms - due_at_ms)
            self.hooks.emit(event)
            self._redelivery_hooks.emit(event)

    def nack(self, record: MessageState, delay_ms: int | None, reason: str | None) -> None:
        """Note a negative acknowledgement; ``delay_ms`` is None for a message that goes to another topic."""
        self._note_held(record, delay_ms, reason)
        if self._has_hooks and delay_ms is not None:
            self.hooks.emit(MessageNacked(*self._about(record), delay_ms, reason or ""))

    def nacked_last(self, message_id: MessageId, count: int, reason: str) -> None:
        """Note the negative acknowledgement of the last attempt; the trace has its dead letter."""
        self.hooks.emit(MessageNacked(message_id, count + 1, self.clock.now_ms(), None, reason))

    def deferred(self, record: MessageState, delay_ms: int) -> None:
        """Note and count a message that is postponed: in the trace a nack with the reason ``deferred``."""
        self.total_deferred += 1
        self._note_held(record, delay_ms, "deferred")
        self.hooks.emit(MessageDeferred(*self._about(record), delay_ms))

    def lease_expired(self, record: MessageState, delay_ms: int | None) -> None:
        """Note and count the end of a lease: in the trace a nack, unless that has the nack of a dead letter already.

        :param delay_ms: None for a dead letter
        """
        self.total_leases_expired += 1
        if delay_ms is not None:
            self._note_held(record, delay_ms, LEASE_EXPIRED)
        self.hooks.emit(LeaseExpired(*self._about(record)))

    def hold(self, message_id: MessageId, count: int, reason: str) -> None:
        """Note why a message, or its nack, has to wait."""
        self._note("hold", message_id, count, reason=reason)

    def redeliver(self, record: MessageState, reason: str | None = None) -> None:
        """Note that a message is due and redelivered, from memory or by the broker."""
        due_in_ms = self._due_in(record.due_at_ms)
        self._note("redeliver", record.id, record.redelivery_count, due_in_ms=due_in_ms, reason=reason)

    def request_again(self, counts: Iterable[tuple[MessageId, int | None]], reason: str) -> None:
        """Note repeated requests; without a deadline, for another consumer may have nacked since."""
        for message_id, count in counts:
            self._note("redeliver", message_id, count, reason=reason)

    def cancel(self, message_id: MessageId, count: int | None, reason: str) -> None:
        """Note that a hold, or a message that waited to be redelivered, is dropped."""
        self._note("cancel", message_id, count, reason=reason)

    def cancel_all(self, records: Iterable[MessageState], reason: str) -> None:
        """Note that waiting messages are dropped."""
        for record in records:
            self.cancel(record.id, record.redelivery_count, reason)

    def error(self, message_id: MessageId, count: int | None, what: str, error: BaseException) -> None:
        """Note that a request for a message failed."""
        if self._note is not _drop:  # an error's own repr is only called for a trace
            self._note("error", message_id, count, reason=f"{what}: {quoted(error)}")

    # --- the ends of messages ----------------------------------------------------------------------------------------

    def settled(self, records: Sequence[MessageState]) -> None:
        """Note confirmed acknowledgements, and the holds that they ended."""
        for record in records if self._has_hooks else ():
            if record.before_ack not in SENT_AWAY:
                self.hooks.emit(MessageAcknowledged(*self._about(record)))
        for record in records:
            if record.before_ack is HELD:
                self._note("cancel", record.id, record.redelivery_count, reason="ack")
            reason = _REASONS.get(record.before_ack or DELIVERED, "ack")
            self._note("ack", record.id, record.redelivery_count, reason=reason)

    def settled_through(self, record: MessageState, *, was_held: bool) -> None:
        """Note a message that a cumulative acknowledgement covers."""
        if was_held:
            self._note("cancel", record.id, reason="ack")
        self._note("ack", record.id, reason="ack")
        self.hooks.emit(MessageAcknowledged(*self._about(record)))

    def dead_lettered(self, record: MessageState, topic: str, reason: str) -> None:
        """Note a message that is in the dead-letter topic, and acknowledged."""
        self.hooks.emit(MessageDeadLettered(*self._about(record), topic, reason))

    def retried(self, record: MessageState, topic: str, delay_ms: int) -> None:
        """Note and count a message that is in the retry topic, and acknowledged."""
        self.total_retried += 1
        self.hooks.emit(MessageRetried(*self._about(record), topic, delay_ms))

    # --- the consumer ------------------------------------------------------------------------------------------------

    def connected(self, topic: str, partition: int) -> None:
        """Note that a session began, or that the consumer is open."""
        self.hooks.emit(ConsumerConnected(topic, partition, self.clock.now_ms()))

    def disconnected(self, topic: str, partition: int, reason: str) -> None:
        """Note that a session ended, or that the consumer is closed."""
        self.hooks.emit(ConsumerDisconnected(topic, partition, self.clock.now_ms(), reason))

    def drained(self, given_back: int, left: int) -> None:
        """Note and count a drain that is over."""
        self.total_drains += 1
        self.hooks.emit(ConsumerDrained(self.clock.now_ms(), given_back, left))

    def _note_held(self, record: MessageState, delay_ms: int | None, reason: str | None) -> None:
        is_held = delay_ms is not None and record.is_held
        due_in_ms = max(record.due_at_ms - self.clock.now_ms(), 0) if is_held else None
        count = record.redelivery_count
        self._note("nack", record.id, count, delay_ms=delay_ms, due_in_ms=due_in_ms, reason=reason or None)

    def _about(self, record: MessageState) -> tuple[MessageId, int, int]:
        return record.id, record.redelivery_count + 1, self.clock.now_ms()

    def _due_in(self, due_at_ms: int | None) -> int | None:
        return None if due_at_ms is None else due_at_ms - self.clock.now_ms()


def _drop(*_: object, **_more: object) -> None:
    """Take an event of a trace that nobody wants."""


def names_of(port: Any) -> tuple[str, str, str]:
    """Return topic, subscription and consumer name, each empty where the port does not name it."""
    names = getattr(port, "names", ("", "", ""))
    return (str(names[0]), str(names[1]), str(names[2]))
