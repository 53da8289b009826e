"""Consumers: a port in front of a transport, and what the user holds in the hand."""

from ._consumer import Consumer
from ._dead_letter import DeadLetterPolicy
from ._message import Message
from ._port import (
    AcksDone,
    ConsumerPort,
    Delivery,
    OwnPublisher,
    PortTraits,
    Publisher,
    SessionEvent,
    SupportsConnectionState,
    SupportsCumulativeAck,
    SupportsHeldBack,
    SupportsNowait,
    SupportsPause,
    SupportsPublishing,
    SupportsRedeliverNowait,
    SupportsSeek,
    SupportsSessions,
    SupportsUnsubscribe,
)
from ._statistics import ConsumerStatistics
from ._subscribe import Subscribing, subscribe, wrap
from ._tracing import ConsumerTrace, TraceNote
from ._ways import Redelivery

__all__ = [
    "AcksDone",
    "Consumer",
    "ConsumerPort",
    "ConsumerStatistics",
    "ConsumerTrace",
    "DeadLetterPolicy",
    "Delivery",
    "Message",
    "OwnPublisher",
    "PortTraits",
    "Publisher",
    "Redelivery",
    "SessionEvent",
    "Subscribing",
    "SupportsConnectionState",
    "SupportsCumulativeAck",
    "SupportsHeldBack",
    "SupportsNowait",
    "SupportsPause",
    "SupportsPublishing",
    "SupportsRedeliverNowait",
    "SupportsSeek",
    "SupportsSessions",
    "SupportsUnsubscribe",
    "TraceNote",
    "subscribe",
    "wrap",
]
