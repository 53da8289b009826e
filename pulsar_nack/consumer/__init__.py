"""The Consumer and Message API, and the transport port beneath it."""

from ._consumer import Consumer
from ._dialect import KeyShared
from ._events import (
    ConsumerConnected,
    ConsumerDisconnected,
    ConsumerDrained,
    ConsumerEvent,
    ConsumerHook,
    ConsumerTrace,
    LeaseExpired,
    MessageAcknowledged,
    MessageDeadLettered,
    MessageDeferred,
    MessageEvent,
    MessageNacked,
    MessageReceived,
    MessageRedelivered,
    MessageRetried,
    TraceNote,
)
from ._letter_rules import DeadLetterPolicy, RetryTopicPolicy
from ._message import Message, ReceivedMessage
from ._outcomes import DeadLetter, Defer, ErrorRule, Ignore, OnError, Retry, Verb
from ._port import (
    AcksDone,
    ConsumerPort,
    Delivery,
    OwnPublisher,
    PortTraits,
    Publisher,
    SessionEvent,
    SupportsNowait,
    SupportsPause,
    SupportsPublishing,
    SupportsSessions,
    SupportsSubscription,
)
from ._redelivery_router import Redelivery
from ._runner import DrainReport, Handler
from ._settings import ConsumerOptions
from ._statistics import ConsumerStatistics
from ._subscribe import Subscribing, subscribe, wrap

__all__ = [
    "AcksDone",
    "Consumer",
    "ConsumerConnected",
    "ConsumerDisconnected",
    "ConsumerDrained",
    "ConsumerEvent",
    "ConsumerHook",
    "ConsumerOptions",
    "ConsumerPort",
    "ConsumerStatistics",
    "ConsumerTrace",
    "DeadLetter",
    "DeadLetterPolicy",
    "Defer",
    "Delivery",
    "DrainReport",
    "ErrorRule",
    "Handler",
    "Ignore",
    "KeyShared",
    "LeaseExpired",
    "Message",
    "MessageAcknowledged",
    "MessageDeadLettered",
    "MessageDeferred",
    "MessageEvent",
    "MessageNacked",
    "MessageReceived",
    "MessageRedelivered",
    "MessageRetried",
    "OnError",
    "OwnPublisher",
    "PortTraits",
    "Publisher",
    "ReceivedMessage",
    "Redelivery",
    "Retry",
    "RetryTopicPolicy",
    "SessionEvent",
    "Subscribing",
    "SupportsNowait",
    "SupportsPause",
    "SupportsPublishing",
    "SupportsSessions",
    "SupportsSubscription",
    "TraceNote",
    "Verb",
    "subscribe",
    "wrap",
]
