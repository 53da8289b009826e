"""Consumers: a port in front of a transport, and what the user holds in the hand."""

from ._consumer import Consumer
from ._message import Message
from ._port import (
    ConsumerPort,
    Delivery,
    PortTraits,
    SupportsActiveChanges,
    SupportsConnectionState,
    SupportsCumulativeAck,
    SupportsNowait,
    SupportsSeek,
)
from ._statistics import ConsumerStatistics
from ._subscribe import Subscribing, subscribe, wrap
from ._tracing import ConsumerTrace, TraceNote
from ._ways import Redelivery

__all__ = [
    "Consumer",
    "ConsumerPort",
    "ConsumerStatistics",
    "ConsumerTrace",
    "Delivery",
    "Message",
    "PortTraits",
    "Redelivery",
    "Subscribing",
    "SupportsActiveChanges",
    "SupportsConnectionState",
    "SupportsCumulativeAck",
    "SupportsNowait",
    "SupportsSeek",
    "TraceNote",
    "subscribe",
    "wrap",
]
