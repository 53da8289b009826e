"""The events of a consumer: one frozen record for each thing that happens to it and its messages.

A hook is any callable that takes one event. A consumer's hooks also get the events of its tracker, see
:data:`~pulsar_nack.nack.NackEvent`. Hooks run in the event loop and must not block. The first error that one raises is
logged, and all are counted (``statistics().nack.hook_errors``); they never reach the consumer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..ids import MessageId
from ..nack import NackEvent


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


class ConsumerHook(Protocol):
    """A callable that receives every event of a consumer, and of its tracker."""

    def __call__(self, event: ConsumerEvent | NackEvent, /) -> None:
        """Handle one event."""
        ...
