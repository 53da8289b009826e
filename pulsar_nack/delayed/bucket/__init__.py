"""Sealed buckets of delayed messages on storage (PIP-195)."""

from ._residues import delete_bucket_snapshots
from ._shared import SharedDelayedIndex, SharedSubscription
from ._statistics import BucketStatistics
from ._tracker import BucketDelayedDeliveryTracker

__all__ = [
    "BucketDelayedDeliveryTracker",
    "BucketStatistics",
    "SharedDelayedIndex",
    "SharedSubscription",
    "delete_bucket_snapshots",
]
