"""pulsar-nack: failed and delayed Apache Pulsar messages come back exactly when they should."""

from ._version import __version__
from .backoff import Backoff, Exponential, Fixed, Multiplier, Steps
from .clock import AlarmClock, Clock, LoopClock, MonotonicClock, WallClock
from .config import NackConfig
from .consumer import ConsumerPort, Delivery, PortTraits
from .errors import (
    AlreadySettledError,
    BrokerError,
    ClosedError,
    InvalidArgumentError,
    MissingExtraError,
    PulsarNackError,
    RedeliveryError,
    VirtualDeadlockError,
    WouldBlockError,
)
from .ids import MessageId, Position
from .nack import DueRun, NackSchedule

__all__ = [
    "AlarmClock",
    "AlreadySettledError",
    "Backoff",
    "BrokerError",
    "Clock",
    "ClosedError",
    "ConsumerPort",
    "Delivery",
    "DueRun",
    "Exponential",
    "Fixed",
    "InvalidArgumentError",
    "LoopClock",
    "MessageId",
    "MissingExtraError",
    "MonotonicClock",
    "Multiplier",
    "NackConfig",
    "NackSchedule",
    "PortTraits",
    "Position",
    "PulsarNackError",
    "RedeliveryError",
    "Steps",
    "VirtualDeadlockError",
    "WallClock",
    "WouldBlockError",
    "__version__",
]
