"""Sealed buckets of delayed messages on storage (PIP-195)."""

from ._log_cursor import LogDelayedCursor
from ._log_storage import LogSnapshotStorage
from ._log_tracker import LogBucketTracker
from ._residues import delete_bucket_snapshots
from ._shared import SharedDelayedIndex, SharedSubscription
from ._statistics import BucketStatistics, OperationLatency
from ._tracker import BucketDelayedDeliveryTracker

__all__ = [
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
