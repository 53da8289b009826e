"""Delayed delivery: which messages must not be dispatched yet, and when they may be."""

from ._factory import DelayedDeliveryTrackerFactory, DelayedFactoryStatistics, TrackerFallback
from ._factory_parts import OpenTracker, TrackerRegistry
from ._in_memory import InMemoryDelayedDeliveryTracker
from ._protocol import DelayedDeliveryTracker, DisabledDelayedDeliveryTracker
from .bucket import (
    BucketDelayedDeliveryTracker,
    BucketStatistics,
    LogBucketTracker,
    LogDelayedCursor,
    LogSnapshotStorage,
    OperationLatency,
    SharedDelayedIndex,
    SharedSubscription,
    delete_bucket_snapshots,
)
from .storage import BucketSnapshotStorage, DelayedCursor, SupportsForgetting, SupportsSnapshotListing

__all__ = [
    "BucketDelayedDeliveryTracker",
    "BucketSnapshotStorage",
    "BucketStatistics",
    "DelayedCursor",
    "DelayedDeliveryTracker",
    "DelayedDeliveryTrackerFactory",
    "DelayedFactoryStatistics",
    "DisabledDelayedDeliveryTracker",
    "InMemoryDelayedDeliveryTracker",
    "LogBucketTracker",
    "LogDelayedCursor",
    "LogSnapshotStorage",
    "OpenTracker",
    "OperationLatency",
    "SharedDelayedIndex",
    "SharedSubscription",
    "SupportsForgetting",
    "SupportsSnapshotListing",
    "TrackerFallback",
    "TrackerRegistry",
    "delete_bucket_snapshots",
]
