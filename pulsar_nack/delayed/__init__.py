"""Delayed delivery: which messages must not be dispatched yet, and when they may be."""

from ._in_memory import InMemoryDelayedDeliveryTracker
from ._protocol import DelayedDeliveryTracker
from .bucket import (
    BucketDelayedDeliveryTracker,
    BucketStatistics,
    SharedDelayedIndex,
    SharedSubscription,
    delete_bucket_snapshots,
)
from .storage import BucketSnapshotStorage, DelayedCursor, SupportsSnapshotListing

__all__ = [
    "BucketDelayedDeliveryTracker",
    "BucketSnapshotStorage",
    "BucketStatistics",
    "DelayedCursor",
    "DelayedDeliveryTracker",
    "InMemoryDelayedDeliveryTracker",
    "SharedDelayedIndex",
    "SharedSubscription",
    "SupportsSnapshotListing",
    "delete_bucket_snapshots",
]
