"""Sealed buckets of delayed messages on storage (PIP-195)."""

from ._log_cursor import LogDelayedCursor
from ._log_storage import LogSnapshotStorage
from ._shared import SharedDelayedIndex, SharedSubscription
from ._snapshots import delete_bucket_snapshots
from ._statistics import LATENCY_BOUNDS_MS, OPERATION_STATES, OPERATION_TYPES, BucketStatistics, OperationLatency
from ._tracker import BucketDelayedDeliveryTracker, LogBucketTracker

__all__ = [
    "LATENCY_BOUNDS_MS",
    "OPERATION_STATES",
    "OPERATION_TYPES",
    "BucketDelayedDeliveryTracker",
    "BucketStatistics",
    "LogBucketTracker",
    "LogDelayedCursor",
    "LogSnapshotStorage",
    "OperationLatency",
    "SharedDelayedIndex",
    "SharedSubscription",
    "delete_bucket_snapshots",
]
