"""Metrics that the broker has too, for Prometheus: of acknowledgement state (PIP-299) and delayed delivery (PIP-195).

A cursor computes its size when it is read, so no other thread may change it meanwhile. A scrape in another thread, as
the server of prometheus-client makes it, therefore reads the size in the cursor's event loop.

``prometheus-client`` writes a counter with ``_total`` behind its name, in the line of its type too. The counter of
PIP-195 has no such ending, and its histogram has its limits in the label ``quantile``; so these families name their
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
from ._scraping import Watched, measure_all, namespace_of, prometheus

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

    from ..cursor import Cursor

Labels = dict[str, str]
Sample = tuple[str, str, Labels, int]
"""The name of a family, what the sample's name has behind that, and its labels and value."""
_Size = Watched[int | None]
"""The size of a cursor's state, None if it is closed."""

_SIZE: Final = "pulsar_cursor_metadata_size_bytes"
_DOCUMENTATION: Final = "Size of the acknowledgement state of a subscription when it is persisted."
_CURSOR_LABELS: Final = ("cluster", "namespace", "topic", "subscription")
_MIN_SWEEP: Final = 16
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


class CursorMetrics:
    """A collector for ``prometheus-client`` (extra ``metrics``) over cursors: ``pulsar_cursor_metadata_size_bytes``.

    Name, type and labels are those of PIP-299; the value is the live size of each cursor at the time of the scrape,
    with changes that are not persisted yet. Cursors are held weakly, and closed ones are left out. Any thread may
    scrape: a size is read in the event loop in which the cursor was added. If that loop does not answer within a
    second, the size of the last scrape is exported.

    ::

        metrics = CursorMetrics(prometheus_client.REGISTRY, cluster="eu")
        metrics.add(cursor, topic_name="orders", subscription="billing")

    :param registry: the registry to register with; None: none, and you can register the collector yourself
    :param cluster: the label ``cluster``
    :raises MissingExtraError: prometheus-client is not installed
    """

    def __init__(self, registry: CollectorRegistry | None = None, *, cluster: str = "") -> None:
        if not isinstance(cluster, str):
            raise InvalidArgumentError("cluster", cluster, "a string")
        self._make_gauge = prometheus().GaugeMetricFamily
        self._cluster = cluster
        self._cursors: dict[tuple[str, str], _Size] = {}
        self._sweep_at = _MIN_SWEEP
        if registry is not None:
            registry.register(self)

    def add(self, cursor: Cursor, *, topic_name: str, subscription: str) -> None:
        """Export a cursor's size until the cursor is closed or garbage.

        :raises InvalidArgumentError: another open cursor of this subscription was added before
        """
        for field, value in (("topic_name", topic_name), ("subscription", subscription)):
            if not isinstance(value, str):
                raise InvalidArgumentError(field, value, "a string")
        key = full_name(topic_name), subscription
        before = self._cursors.get(key)
        if before is not None and before.source != ref(cursor):
            before.measure()
            if before.value is not None:
                raise InvalidArgumentError(
                    "subscription", subscription, "a subscription whose cursor was not added yet"
                )
        self._cursors[key] = Watched(ref(cursor), partial(_size_of, ref(cursor)))
        self._forget_closed()

    def collect(self) -> Iterator[Metric]:
        """Return the current metric; called for each scrape."""
        watched = dict(self._cursors)
        measure_all(watched.values())
        family = self._make_gauge(_SIZE, _DOCUMENTATION, labels=_CURSOR_LABELS)
        for (topic, subscription), each in sorted(watched.items()):
            if each.value is not None:
                family.add_metric((self._cluster, namespace_of(topic), topic, subscription), each.value)
        yield family

    def describe(self) -> Iterator[Metric]:
        """Return the metric without samples, so that a registry sees that its name is taken."""
        yield self._make_gauge(_SIZE, _DOCUMENTATION, labels=_CURSOR_LABELS)

    def _forget_closed(self) -> None:
        """Remove closed cursors once there are twice as many as were left the last time."""
        if len(self._cursors) >= self._sweep_at:
            measure_all(self._cursors.values())
            self._cursors = {key: each for key, each in self._cursors.items() if each.value is not None}
            self._sweep_at = max(_MIN_SWEEP, 2 * len(self._cursors))


def _size_of(reference: ref[Cursor]) -> int | None:
    """Return the size of a cursor's state, None if it is closed or gone."""
    cursor = reference()
    is_open = cursor is not None and not getattr(cursor, "is_closed", False)
    return cursor.metadata_size_bytes if cursor is not None and is_open else None


# --- delayed delivery -------------------------------------------------------------------------------------------------


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
        sums: dict[str, Counter[tuple[str, tuple[tuple[str, str], ...]]]] = {name: Counter() for name in FAMILIES}
        for name, suffix, labels, value in _samples(once.values(), self._cluster, subscriptions=self._subscriptions):
            sums[name][name + suffix, tuple(labels.items())] += value
        for name, values in sums.items():
            family = _family(name)
            for (sample, of_sample), value in values.items():
                family.add_sample(sample, dict(of_sample), value)
            yield family

    def describe(self) -> Iterator[Metric]:
        """Return the metrics without samples, so that a registry sees that their names are taken."""
        metric = prometheus().Metric
        return (metric(name, documentation, kind) for name, (kind, documentation) in FAMILIES.items())


def _samples(trackers: Iterable[OpenTracker], cluster: str, *, subscriptions: bool) -> Iterator[Sample]:
    """Yield the samples of each tracker, by topic and, if wanted, by subscription.

    A shared index counts once for its topic, and for no subscription.
    """
    shared: dict[int, tuple[Labels, BucketDelayedDeliveryTracker]] = {}
    named = [(full_name(topic_name), subscription, tracker) for topic_name, subscription, tracker in trackers]
    for topic_name, subscription, tracker in sorted(named, key=lambda each: each[:2]):
        of_topic = {"cluster": cluster, "namespace": namespace_of(topic_name), "topic": topic_name}
        memory_bytes, statistics = tracker.buffer_memory_usage, _statistics_of(tracker)
        if subscriptions:
            of_one = {**of_topic, "subscription": subscription}
            yield "pulsar_subscription_delayed", "", of_one, tracker.number_of_delayed_messages
            yield "pulsar_subscription_delayed_message_index_size_bytes", "", of_one, memory_bytes
            yield from _bucket_samples(of_one, statistics)
        if isinstance(tracker, SharedSubscription):
            index = tracker.shared_index.tracker
            shared[id(index)] = of_topic, index
            memory_bytes = max(memory_bytes - index.buffer_memory_usage, 0)
        yield "pulsar_delayed_message_index_size_bytes", "", of_topic, memory_bytes
        yield from _bucket_samples(of_topic, statistics)
    for of_topic, index in shared.values():
        yield "pulsar_delayed_message_index_size_bytes", "", of_topic, index.buffer_memory_usage
        yield from _bucket_samples(of_topic, _statistics_of(index))


def _bucket_samples(labels: Labels, statistics: BucketStatistics | None) -> Iterator[Sample]:
    """Yield the samples of a bucket tracker; its mutable bucket counts as a bucket."""
    if statistics is None:
        return
    yield _BUCKET + "total", "", labels, statistics.buckets + 1
    yield "pulsar_delayed_message_index_loaded", "", labels, statistics.loaded
    yield _BUCKET + "snapshot_size_bytes", "", labels, statistics.snapshot_bytes
    for kind in OPERATION_TYPES:
        for state in OPERATION_STATES:
            yield _OPERATION, "", {**labels, "state": state, "type": kind}, statistics.operations[kind, state]
        latency, of_kind = statistics.latency[kind], {**labels, "type": kind}
        for quantile, count in zip(_QUANTILES, latency.counts, strict=True):
            yield _LATENCY, "", {**of_kind, "quantile": quantile}, count
        yield _LATENCY, "_count", of_kind, sum(latency.counts)
        yield _LATENCY, "_sum", of_kind, round(latency.total_ms)


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
