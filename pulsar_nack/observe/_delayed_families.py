"""The metrics of delayed delivery with the names, types and labels of PIP-195; imports prometheus-client.

``prometheus-client`` writes a counter with ``_total`` behind its name, in the line of its type too. The proposal's
counter has no such ending, and its histogram has its limits in the label ``quantile``; so these families name their
types by a word that the writer does not recognize.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import Metric

from .._topic_pattern import full_name
from ..delayed import (
    BucketDelayedDeliveryTracker,
    BucketStatistics,
    DelayedDeliveryTracker,
    OpenTracker,
    SharedSubscription,
)
from ..delayed.bucket import LATENCY_BOUNDS_MS, OPERATION_STATES, OPERATION_TYPES
from ._scraping import namespace_of

Labels = dict[str, str]

_ATTEMPTS: Final = 10
_QUANTILES: Final = (*map(str, LATENCY_BOUNDS_MS), "overflow")
_BUCKET: Final = "pulsar_delayed_message_index_bucket_"
_OPERATION: Final = _BUCKET + "op_count"
_LATENCY: Final = _BUCKET + "op_latency_ms"
FAMILIES: Final = {
    "pulsar_subscription_delayed": ("gauge", "Delayed messages of a subscription that are not due yet."),
    "pulsar_subscription_delayed_message_index_size_bytes": ("gauge", "Memory of a subscription's delayed messages."),
    "pulsar_delayed_message_index_size_bytes": ("gauge", "Memory of the delayed messages of a topic."),
    _BUCKET + "total": ("gauge", "Buckets of delayed messages, including mutable ones."),
    "pulsar_delayed_message_index_loaded": ("gauge", "Delayed messages whose index is in memory."),
    _BUCKET + "snapshot_size_bytes": ("gauge", "Size of bucket snapshots on storage."),
    _OPERATION: ("counter", "Operations on bucket snapshots, by type and state; all: those that began."),
    _LATENCY: ("histogram", "Operations on bucket snapshots that succeeded, by duration (ms, up to the quantile)."),
}


class _Type(str):
    """A type name that equals no other string, and is written as it is."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return str.__hash__(self)


class Family(Metric):
    """A family of samples that is written under exactly its name and type."""

    def __init__(self, name: str) -> None:
        kind, documentation = FAMILIES[name]
        super().__init__(name, documentation, kind)
        self.type = _Type(kind)

    def _restricted_metric(self, names: Iterable[str]) -> Family | None:
        """Return the family with only these samples, for a scrape with ``name[]``."""
        samples = [sample for sample in self.samples if sample.name in names]
        if not samples:
            return None
        restricted = Family(self.name)
        restricted.samples = samples
        return restricted


def described() -> Iterator[Metric]:
    """Return the families without samples, so that a registry sees that their names are taken."""
    return (Metric(name, documentation, kind) for name, (kind, documentation) in FAMILIES.items())


def families_of(trackers: Iterable[OpenTracker], cluster: str, *, subscriptions: bool) -> Iterator[Metric]:
    """Return the families with the sums over trackers, by topic and, if wanted, by subscription.

    A shared index counts once for its topic, and for no subscription.
    """
    sums = _Sums()
    shared: dict[int, tuple[Labels, BucketDelayedDeliveryTracker]] = {}
    named = [(full_name(topic_name), subscription, tracker) for topic_name, subscription, tracker in trackers]
    for topic_name, subscription, tracker in sorted(named, key=lambda each: each[:2]):
        of_topic = {"cluster": cluster, "namespace": namespace_of(topic_name), "topic": topic_name}
        memory_bytes, statistics = tracker.buffer_memory_usage, statistics_of(tracker)
        if subscriptions:
            of_one = {**of_topic, "subscription": subscription}
            sums.add("pulsar_subscription_delayed", of_one, tracker.number_of_delayed_messages)
            sums.add("pulsar_subscription_delayed_message_index_size_bytes", of_one, memory_bytes)
            sums.add_buckets(of_one, statistics)
        if isinstance(tracker, SharedSubscription):
            index = tracker.shared_index.tracker
            shared[id(index)] = of_topic, index
            memory_bytes = max(memory_bytes - index.buffer_memory_usage, 0)
        sums.add("pulsar_delayed_message_index_size_bytes", of_topic, memory_bytes)
        sums.add_buckets(of_topic, statistics)
    for of_topic, index in shared.values():
        sums.add("pulsar_delayed_message_index_size_bytes", of_topic, index.buffer_memory_usage)
        sums.add_buckets(of_topic, statistics_of(index))
    return sums.families()


class _Sums:
    """Samples by family, each a sum over trackers, in the order in which they were first added."""

    def __init__(self) -> None:
        self._values: dict[str, Counter[tuple[str, tuple[tuple[str, str], ...]]]] = {
            name: Counter() for name in FAMILIES
        }

    def add(self, family: str, labels: Labels, value: int, suffix: str = "") -> None:
        """Add to a sample of a family; ``suffix`` is the end of its name."""
        self._values[family][family + suffix, tuple(labels.items())] += value

    def add_buckets(self, labels: Labels, statistics: BucketStatistics | None) -> None:
        """Add the figures of a bucket tracker; its mutable bucket counts as a bucket."""
        if statistics is None:
            return
        self.add(_BUCKET + "total", labels, statistics.buckets + 1)
        self.add("pulsar_delayed_message_index_loaded", labels, statistics.loaded)
        self.add(_BUCKET + "snapshot_size_bytes", labels, statistics.snapshot_bytes)
        for kind in OPERATION_TYPES:
            for state in OPERATION_STATES:
                self.add(_OPERATION, {**labels, "state": state, "type": kind}, statistics.operations[kind, state])
            latency, of_kind = statistics.latency[kind], {**labels, "type": kind}
            for quantile, count in zip(_QUANTILES, latency.counts, strict=True):
                self.add(_LATENCY, {**of_kind, "quantile": quantile}, count)
            self.add(_LATENCY, of_kind, sum(latency.counts), "_count")
            self.add(_LATENCY, of_kind, round(latency.total_ms), "_sum")

    def families(self) -> Iterator[Metric]:
        """Return all families, also those without samples."""
        for name, values in self._values.items():
            family = Family(name)
            for (sample, labels), value in values.items():
                family.add_sample(sample, dict(labels), value)
            yield family


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
