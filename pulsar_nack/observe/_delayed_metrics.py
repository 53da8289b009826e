"""Metrics of delayed delivery for Prometheus, with the names, types and labels of the broker (PIP-195).

``prometheus-client`` writes a counter with ``_total`` behind its name, in the line of its type too. The proposal's
counter has no such ending, and its histogram has its limits in the label ``quantile``; so these families name their
types by a word that the writer does not recognize.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from .._topic_pattern import full_name
from ..delayed import (
    BucketDelayedDeliveryTracker,
    BucketStatistics,
    DelayedDeliveryTracker,
    DelayedDeliveryTrackerFactory,
    OpenTracker,
    SharedSubscription,
    TrackerRegistry,
)
from ..delayed.bucket import LATENCY_BOUNDS_MS, OPERATION_STATES, OPERATION_TYPES
from ..errors import InvalidArgumentError
from ._scraping import namespace_of, prometheus

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

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


class DelayedMetrics:
    """A collector for ``prometheus-client`` (extra ``metrics``) over trackers of delayed messages.

    A scrape covers the trackers that are open then, of watched factories and those that were added. Trackers are held
    weakly, so they need not be removed. Any thread may scrape.

    Names, types and labels are the broker's, for topics and also for each subscription (label ``subscription``).
    Counters only grow while a tracker lives; trackers with the same name are added up.

    ::

        metrics = DelayedMetrics(prometheus_client.REGISTRY, cluster="eu")
        metrics.watch(factory)

    :param registry: the registry to register with; None: none, and you can register the collector yourself
    :param cluster: the label ``cluster``
    :param subscriptions: False leaves out the samples of single subscriptions
    :raises MissingExtraError: prometheus-client is not installed
    """

    def __init__(
        self, registry: CollectorRegistry | None = None, *, cluster: str = "", subscriptions: bool = True
    ) -> None:
        if not isinstance(cluster, str):
            raise InvalidArgumentError("cluster", cluster, "a string")
        prometheus()
        self._cluster = cluster
        self._subscriptions = subscriptions
        self._factories: list[ref[DelayedDeliveryTrackerFactory]] = []
        self._trackers = TrackerRegistry()
        if registry is not None:
            registry.register(self)

    def watch(self, factory: DelayedDeliveryTrackerFactory) -> None:
        """Export all trackers of a factory, including those that it makes later."""
        living = [each for each in self._factories if each() not in (None, factory)]
        self._factories = [*living, ref(factory)]

    def add(self, tracker: DelayedDeliveryTracker, *, topic_name: str = "", subscription: str = "") -> None:
        """Export a tracker that was made without a factory.

        :raises InvalidArgumentError: another open tracker was added for this subscription of the topic
        """
        self._trackers.reserve(topic_name, subscription)
        self._trackers.settle(topic_name, subscription, tracker)

    def collect(self) -> Iterator[Metric]:
        """Return the current metrics; called for each scrape."""
        factories = [factory for each in self._factories if (factory := each()) is not None]
        trackers = [*self._trackers.all(), *(each for factory in factories for each in factory.trackers())]
        once = {id(each.tracker): each for each in trackers}
        return _families_of(once.values(), self._cluster, subscriptions=self._subscriptions)

    def describe(self) -> Iterator[Metric]:
        """Return the metrics without samples, so that a registry sees that their names are taken."""
        metric = prometheus().Metric
        return (metric(name, documentation, kind) for name, (kind, documentation) in FAMILIES.items())


def _families_of(trackers: Iterable[OpenTracker], cluster: str, *, subscriptions: bool) -> Iterator[Metric]:
    """Return the families with the sums over trackers, by topic and, if wanted, by subscription.

    A shared index counts once for its topic, and for no subscription.
    """
    sums = _Sums()
    shared: dict[int, tuple[Labels, BucketDelayedDeliveryTracker]] = {}
    named = [(full_name(topic_name), subscription, tracker) for topic_name, subscription, tracker in trackers]
    for topic_name, subscription, tracker in sorted(named, key=lambda each: each[:2]):
        of_topic = {"cluster": cluster, "namespace": namespace_of(topic_name), "topic": topic_name}
        memory_bytes, statistics = tracker.buffer_memory_usage, _statistics_of(tracker)
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
        sums.add_buckets(of_topic, _statistics_of(index))
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
            family = _family(name)
            for (sample, labels), value in values.items():
                family.add_sample(sample, dict(labels), value)
            yield family


def _statistics_of(tracker: DelayedDeliveryTracker) -> BucketStatistics | None:
    """Return the statistics of a bucket tracker, None of another; an event loop may change it in another thread."""
    if not isinstance(tracker, BucketDelayedDeliveryTracker):
        return None
    for _ in range(_ATTEMPTS):
        try:
            return tracker.statistics()
        except RuntimeError:  # a bucket was added or removed during the iteration
            continue
    return None


class _Type(str):
    """A type name that equals no other string, and is written as it is."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return str.__hash__(self)


def _family(name: str) -> Any:
    """Return a family of samples that is written under exactly its name and type."""
    kind, documentation = FAMILIES[name]
    family = prometheus().Metric(name, documentation, kind)
    family.type = _Type(kind)
    family._restricted_metric = partial(_restricted, family)
    return family


def _restricted(family: Any, names: Collection[str]) -> Any:
    """Return a family with only these samples, for a scrape with ``name[]``; None without any."""
    restricted = _family(family.name)
    restricted.samples = [sample for sample in family.samples if sample.name in names]
    return restricted if restricted.samples else None
