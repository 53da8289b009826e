"""The metrics of delayed delivery with the names, types and labels of PIP-195; imports prometheus-client.

``prometheus-client`` writes a counter with ``_total`` behind its name, in the line of its type too. The proposal's
counter has no such ending, and its histogram has its limits in the label ``quantile``; so these families name their
types by a word that the writer does not recognize.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import Metric

from ..delayed.bucket import OPERATION_STATES, OPERATION_TYPES
from ._delayed_totals import QUANTILES, TopicTotals, TrackerTotals
from ._scraping import namespace_of

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


def families_of(topics: dict[str, TopicTotals], cluster: str, *, subscriptions: bool) -> Iterator[Metric]:
    """Return the families with samples of topics and, if wanted, of their subscriptions."""
    families = {name: Family(name) for name in FAMILIES}
    for topic_name, topic in sorted(topics.items()):
        labels = {"cluster": cluster, "namespace": namespace_of(topic_name), "topic": topic_name}
        size = families["pulsar_delayed_message_index_size_bytes"]
        size.add_sample(size.name, labels, topic.topic.memory_bytes)
        _add_buckets(families, labels, topic.topic)
        for name, totals in sorted(topic.subscriptions.items()) if subscriptions else ():
            of_one = {**labels, "subscription": name}
            delayed = families["pulsar_subscription_delayed"]
            delayed.add_sample(delayed.name, of_one, totals.delayed)
            size = families["pulsar_subscription_delayed_message_index_size_bytes"]
            size.add_sample(size.name, of_one, totals.memory_bytes)
            _add_buckets(families, of_one, totals)
    yield from families.values()


def _add_buckets(families: dict[str, Family], labels: dict[str, str], totals: TrackerTotals) -> None:
    if not totals.has_buckets:
        return
    for name, value in (
        (_BUCKET + "total", totals.buckets),
        ("pulsar_delayed_message_index_loaded", totals.loaded),
        (_BUCKET + "snapshot_size_bytes", totals.snapshot_bytes),
    ):
        families[name].add_sample(name, labels, value)
    for kind in OPERATION_TYPES:
        for state in OPERATION_STATES:
            families[_OPERATION].add_sample(
                _OPERATION, {**labels, "state": state, "type": kind}, totals.operations[kind, state]
            )
        _add_latency(families[_LATENCY], {**labels, "type": kind}, totals, kind)


def _add_latency(family: Family, labels: dict[str, str], totals: TrackerTotals, kind: str) -> None:
    counts = [totals.latency[kind, quantile] for quantile in QUANTILES]
    for quantile, count in zip(QUANTILES, counts, strict=True):
        family.add_sample(_LATENCY, {**labels, "quantile": quantile}, count)
    family.add_sample(_LATENCY + "_count", labels, sum(counts))
    family.add_sample(_LATENCY + "_sum", labels, totals.latency_ms[kind])
