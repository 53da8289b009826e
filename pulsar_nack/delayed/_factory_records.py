"""What a factory of trackers says about itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ._protocol import DelayedDeliveryTracker


class OpenTracker(NamedTuple):
    """A tracker that a factory made and that is open, and whose it is."""

    topic_name: str
    cursor_name: str
    tracker: DelayedDeliveryTracker


@dataclass(frozen=True, slots=True)
class TrackerFallback:
    """A tracker is in memory although buckets are configured."""

    topic_name: str
    """Its topic."""
    cursor_name: str
    """Its subscription."""
    error: Exception
    """Why: what the storage raised, or :class:`TimeoutError`."""


@dataclass(frozen=True, slots=True)
class DelayedFactoryStatistics:
    """A snapshot of a factory's figures."""

    trackers: int
    """Now: trackers that are open."""
    fallbacks: int
    """Total: trackers that were made in memory although buckets are configured."""
    cleaning: int
    """Now: cursors whose snapshots are not wanted any more and are still to be deleted."""
    cleaned: int
    """Total: snapshots that were deleted for that."""
    last_error: Exception | None
    """What last went wrong with the storage."""
