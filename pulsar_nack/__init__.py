"""pulsar-nack: failed and delayed Apache Pulsar messages come back exactly when they should."""

from ._version import __version__
from .backoff import Backoff, Exponential, Fixed, Multiplier, Steps
from .clock import AlarmClock, Clock, LoopClock, MonotonicClock, WallClock
from .config import DelayedDeliveryConfig, NackConfig
from .consumer import (
    Consumer,
    ConsumerPort,
    ConsumerStatistics,
    Delivery,
    Message,
    PortTraits,
    Redelivery,
    Subscribing,
    SupportsCumulativeAck,
    SupportsSeek,
    subscribe,
    wrap,
)
from .delayed import DelayedDeliveryTracker, InMemoryDelayedDeliveryTracker
from .errors import (
    AlreadySettledError,
    BrokerError,
    ClosedError,
    InvalidArgumentError,
    MissingExtraError,
    NotOpenError,
    PulsarNackError,
    RedeliveryError,
    VirtualDeadlockError,
    WouldBlockError,
)
from .ids import MessageId, Position
from .nack import DueRun, NackSchedule, NackStatistics, NegativeAcksTracker, RedeliveryCallback

__all__ = [
    "AlarmClock",
    "AlreadySettledError",
    "Backoff",
    "BrokerError",
    "Clock",
    "ClosedError",
    "Consumer",
    "ConsumerPort",
    "ConsumerStatistics",
    "DelayedDeliveryConfig",
    "DelayedDeliveryTracker",
    "Delivery",
    "DueRun",
    "Exponential",
    "Fixed",
    "InMemoryDelayedDeliveryTracker",
    "InvalidArgumentError",
    "LoopClock",
    "Message",
    "MessageId",
    "MissingExtraError",
    "MonotonicClock",
    "Multiplier",
    "NackConfig",
    "NackSchedule",
    "NackStatistics",
    "NegativeAcksTracker",
    "NotOpenError",
    "PortTraits",
    "Position",
    "PulsarNackError",
    "Redelivery",
    "RedeliveryCallback",
    "RedeliveryError",
    "Steps",
    "Subscribing",
    "SupportsCumulativeAck",
    "SupportsSeek",
    "VirtualDeadlockError",
    "WallClock",
    "WouldBlockError",
    "__version__",
    "subscribe",
    "wrap",
]
