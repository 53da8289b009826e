"""Sealed buckets of delayed messages on storage (PIP-195)."""

from ._shared import SharedDelayedIndex, SharedSubscription
from ._statistics import BucketStatistics
from ._tracker import BucketDelayedDeliveryTracker

__all__ = ["BucketDelayedDeliveryTracker", "BucketStatistics", "SharedDelayedIndex", "SharedSubscription"]
