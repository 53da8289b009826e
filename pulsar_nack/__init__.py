"""pulsar-nack: failed and delayed Apache Pulsar messages come back exactly when they should."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._connect import connect
from ._version import __version__
from .backoff import Backoff, Exponential, Fixed, Multiplier, Steps
from .clock import Clock
from .config import BucketConfig, CursorConfig, DelayedDeliveryConfig, NackConfig
from .consumer import Consumer, ConsumerPort, DeadLetterPolicy, Delivery, Message, PortTraits, subscribe, wrap
from .errors import (
    AlreadySettledError,
    BrokerError,
    ClosedError,
    InvalidArgumentError,
    PulsarNackError,
    RedeliveryError,
    WouldBlockError,
)
from .ids import MessageId, Position
from .nack import DueRun, NackSchedule, NackStatistics, NegativeAcksTracker, RedeliveryCallback

if TYPE_CHECKING:
    from .cursor import Cursor
    from .delayed import (
        BucketDelayedDeliveryTracker,
        BucketSnapshotStorage,
        DelayedDeliveryTracker,
        InMemoryDelayedDeliveryTracker,
    )
    from .topic import LocalTopic

_HOMES = {
    "AcknowledgeError": "errors",
    "AlreadyEnteredError": "errors",
    "BatchSet": "cursor",
    "BrokerRefusedError": "errors",
    "BucketDelayedDeliveryTracker": "delayed",
    "BucketSnapshotStorage": "delayed",
    "BucketStatistics": "delayed",
    "ConnectionLostError": "errors",
    "ConsumerConnected": "consumer",
    "ConsumerDisconnected": "consumer",
    "ConsumerDrained": "consumer",
    "ConsumerEvent": "consumer",
    "ConsumerHook": "consumer",
    "ConsumerStatistics": "consumer",
    "Cursor": "cursor",
    "CursorFormatError": "errors",
    "CursorStatistics": "cursor",
    "DeadLetter": "consumer",
    "Defer": "consumer",
    "DelayedCursor": "delayed",
    "DelayedDeliveryTracker": "delayed",
    "DelayedDeliveryTrackerFactory": "delayed",
    "DelayedFactoryStatistics": "delayed",
    "DisabledDelayedDeliveryTracker": "delayed",
    "DrainReport": "consumer",
    "ErrorRule": "consumer",
    "Handler": "consumer",
    "Ignore": "consumer",
    "InMemoryDelayedDeliveryTracker": "delayed",
    "InjectedError": "errors",
    "KeyShared": "consumer",
    "LeaseExpired": "consumer",
    "LeaseExpiredError": "errors",
    "LedgerError": "errors",
    "LocalTopic": "topic",
    "LogBucketTracker": "delayed",
    "LogCorruptedError": "errors",
    "LogDelayedCursor": "delayed",
    "LogExistsError": "errors",
    "LogFencedError": "errors",
    "LogForeignFilesError": "errors",
    "LogLockedError": "errors",
    "LogNotFoundError": "errors",
    "LogSealedError": "errors",
    "LogSnapshotStorage": "delayed",
    "LogStorageError": "errors",
    "LogVersionError": "errors",
    "LoopClock": "clock",
    "MessageAcknowledged": "consumer",
    "MessageDeadLettered": "consumer",
    "MessageDeferred": "consumer",
    "MessageEvent": "consumer",
    "MessageNacked": "consumer",
    "MessageReceived": "consumer",
    "MessageRedelivered": "consumer",
    "MessageRetried": "consumer",
    "MissingExtraError": "errors",
    "MonotonicClock": "clock",
    "NoDeadLetterError": "errors",
    "NotDurableError": "errors",
    "NotOpenError": "errors",
    "OnError": "consumer",
    "OpenTracker": "delayed",
    "OperationLatency": "delayed",
    "OwnPublisher": "consumer",
    "ProtocolError": "errors",
    "Publisher": "consumer",
    "Reader": "wire",
    "ReceivedMessage": "consumer",
    "Redelivery": "consumer",
    "RequestTimeoutError": "errors",
    "Retry": "consumer",
    "RetryTopicPolicy": "consumer",
    "SessionEvent": "consumer",
    "SharedDelayedIndex": "delayed",
    "SharedSubscription": "delayed",
    "SnapshotError": "errors",
    "SnapshotFormatError": "errors",
    "SnapshotNotFoundError": "errors",
    "Subscribing": "consumer",
    "SupportsForgetting": "delayed",
    "SupportsNowait": "consumer",
    "SupportsPause": "consumer",
    "SupportsPublishing": "consumer",
    "SupportsSessions": "consumer",
    "SupportsSnapshotListing": "delayed",
    "SupportsSubscription": "consumer",
    "TableChange": "wire",
    "TableView": "wire",
    "TopicConfig": "config",
    "TopicFormatError": "errors",
    "TopicNotFoundError": "errors",
    "TraceConfig": "config",
    "TrackerFallback": "delayed",
    "UndecodableMessageError": "errors",
    "Verb": "consumer",
    "VirtualDeadlockError": "errors",
    "WallClock": "clock",
    "WrongLoopError": "errors",
    "delete_bucket_snapshots": "delayed",
    "open_local": "topic",
}
"""Public names by the package that has them, imported on first use; most programs need only those of ``__all__``."""

__all__ = [
    "AlreadySettledError",
    "Backoff",
    "BrokerError",
    "BucketConfig",
    "BucketDelayedDeliveryTracker",
    "BucketSnapshotStorage",
    "Clock",
    "ClosedError",
    "Consumer",
    "ConsumerPort",
    "Cursor",
    "CursorConfig",
    "DeadLetterPolicy",
    "DelayedDeliveryConfig",
    "DelayedDeliveryTracker",
    "Delivery",
    "DueRun",
    "Exponential",
    "Fixed",
    "InMemoryDelayedDeliveryTracker",
    "InvalidArgumentError",
    "LocalTopic",
    "Message",
    "MessageId",
    "Multiplier",
    "NackConfig",
    "NackSchedule",
    "NackStatistics",
    "NegativeAcksTracker",
    "PortTraits",
    "Position",
    "PulsarNackError",
    "RedeliveryCallback",
    "RedeliveryError",
    "Steps",
    "WouldBlockError",
    "__version__",
    "connect",
    "subscribe",
    "wrap",
]


if not TYPE_CHECKING:  # a type checker would take any name from it, misspelled ones too

    def __getattr__(name: str) -> Any:
        """Import a name of ``_HOMES`` from its package."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
