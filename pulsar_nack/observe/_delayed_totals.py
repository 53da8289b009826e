"""The exported figures of delayed delivery, by subscription and added up by topic."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from .._topic_pattern import full_name
from ..delayed import (
    BucketDelayedDeliveryTracker,
    BucketStatistics,
    DelayedDeliveryTracker,
    OpenTracker,
    SharedSubscription,
)
from ..delayed.bucket import LATENCY_BOUNDS_MS

_ATTEMPTS: Final = 10
QUANTILES: Final = (*map(str, LATENCY_BOUNDS_MS), "overflow")


@dataclass(slots=True)
class TrackerTotals:
    """The sums over some trackers; ``has_buckets`` says whether one of them is a bucket tracker."""

    delayed: int = 0
    memory_bytes: int = 0
    has_buckets: bool = False
    buckets: int = 0
    loaded: int = 0
    snapshot_bytes: int = 0
    operations: Counter[tuple[str, str]] = field(default_factory=Counter)
    latency: Counter[tuple[str, str]] = field(default_factory=Counter)
    latency_ms: Counter[str] = field(default_factory=Counter)

    def add(self, delayed: int, memory_bytes: int, statistics: BucketStatistics | None) -> None:
        """Add the figures of a tracker; its mutable bucket counts as a bucket."""
        self.delayed += delayed
        self.memory_bytes += memory_bytes
        if statistics is None:
            return
        self.has_buckets = True
        self.buckets += statistics.buckets + 1
        self.loaded += statistics.loaded
        self.snapshot_bytes += statistics.snapshot_bytes
        for key, count in statistics.operations.items():
            self.operations[key] += count
        for kind, latency in statistics.latency.items():
            for quantile, count in zip(QUANTILES, latency.counts, strict=True):
                self.latency[kind, quantile] += count
            self.latency_ms[kind] += round(latency.total_ms)


@dataclass(slots=True)
class TopicTotals:
    """The totals of a topic, and of each of its subscriptions."""

    topic: TrackerTotals = field(default_factory=TrackerTotals)
    subscriptions: dict[str, TrackerTotals] = field(default_factory=dict)


def totals_by_topic(trackers: list[OpenTracker]) -> dict[str, TopicTotals]:
    """Return the totals of trackers. A shared index counts once for its topic, and for no subscription."""
    found: dict[str, TopicTotals] = {}
    shared: dict[int, tuple[TopicTotals, BucketDelayedDeliveryTracker]] = {}
    for topic_name, subscription, tracker in trackers:
        topic = found.setdefault(full_name(topic_name), TopicTotals())
        of_one = topic.subscriptions.setdefault(subscription, TrackerTotals())
        delayed, memory_bytes = tracker.number_of_delayed_messages, tracker.buffer_memory_usage
        of_one.add(delayed, memory_bytes, statistics := statistics_of(tracker))
        if isinstance(tracker, SharedSubscription):
            index = tracker.shared_index.tracker
            shared[id(index)] = topic, index
            memory_bytes = max(memory_bytes - index.buffer_memory_usage, 0)
        topic.topic.add(delayed, memory_bytes, statistics)
    for topic, index in shared.values():
        topic.topic.add(0, index.buffer_memory_usage, statistics_of(index))
    return found


def statistics_of(tracker: DelayedDeliveryTracker) -> BucketStatistics | None:
    """Return the statistics of a bucket tracker, None of another; an event loop may change it in another thread."""
    if not isinstance(tracker, BucketDelayedDeliveryTracker):
        return None
    for _ in range(_ATTEMPTS):
        try:
            return tracker.statistics()
        except RuntimeError:  # a bucket was added or removed during the iteration
            continue
    return None
