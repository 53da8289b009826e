"""The metrics of delayed delivery with the names, types and labels of PIP-195; imported when they are asked for.

``prometheus-client`` writes a counter with ``_total`` behind its name, in the line of its type too. The proposal's
counter has no such ending, and its histogram tells its limits in the label ``quantile``; so these families tell their
types in a word that the writer does not recognize.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import Metric

from ..delayed.bucket import OPERATION_STATES, OPERATION_TYPES
from ._delayed_figures import QUANTILES, Figures, TopicFigures, namespace_of

_BUCKET: Final = "pulsar_delayed_message_index_bucket_"
_OPERATION: Final = _BUCKET + "op_count"
_LATENCY: Final = _BUCKET + "op_latency_ms"
FAMILIES: Final = {
    "pulsar_subscription_delayed": ("gauge", "Messages that are held back for a subscription."),
    "pulsar_subscription_delayed_message_index_size_bytes": ("gauge", "Memory of a subscription's delayed messages."),
    "pulsar_delayed_message_index_size_bytes": ("gauge", "Memory of the delayed messages of a topic."),
    _BUCKET + "total": ("gauge", "Buckets of delayed messages, those that are being filled included."),
    "pulsar_delayed_message_index_loaded": ("gauge", "Delayed messages whose index is in memory."),
    _BUCKET + "snapshot_size_bytes": ("gauge", "What the snapshots of buckets take on storage."),
    _OPERATION: ("counter", "Operations on snapshots of buckets, by type and state; all: those that were begun."),
    _LATENCY: ("histogram", "Operations on snapshots that succeeded, by how long they took (ms, up to the quantile)."),
}


class _Type(str):
    """A word that is like no other, and is written as it is."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return str.__hash__(self)


class Family(Metric):
    """A family of samples under exactly its name and type."""

    def __init__(self, name: str) -> None:
        kind, documentation = FAMILIES[name]
        super().__init__(name, documentation, kind)
        self.type = _Type(kind)

    def _restricted_metric(self, names: Iterable[str]) -> Family | None:
        """Return the family with some of its samples; that is what a scrape with ``name[]`` asks for."""
        samples = [sample for sample in self.samples if sample.name in names]
        if not samples:
            return None
        restricted = Family(self.name)
        restricted.samples = samples
        return restricted


def described() -> Iterator[Metric]:
    """Return the families without samples, for a registry that looks for clashes of names."""
    return (Metric(name, documentation, kind) for name, (kind, documentation) in FAMILIES.items())


def families_of(topics: dict[str, TopicFigures], cluster: str, *, subscriptions: bool) -> Iterator[Metric]:
    """Return the families with the samples of topics and, if wanted, of their subscriptions."""
    families = {name: Family(name) for name in FAMILIES}
    for topic_name, topic in sorted(topics.items()):
        labels = {"cluster": cluster, "namespace": namespace_of(topic_name), "topic": topic_name}
        size = families["pulsar_delayed_message_index_size_bytes"]
        size.add_sample(size.name, labels, topic.topic.memory_bytes)
        _add_buckets(families, labels, topic.topic)
        for name, figures in sorted(topic.subscriptions.items()) if subscriptions else ():
            own = {**labels, "subscription": name}
            delayed = families["pulsar_subscription_delayed"]
            delayed.add_sample(delayed.name, own, figures.delayed)
            size = families["pulsar_subscription_delayed_message_index_size_bytes"]
            size.add_sample(size.name, own, figures.memory_bytes)
            _add_buckets(families, own, figures)
    yield from families.values()


def _add_buckets(families: dict[str, Family], labels: dict[str, str], figures: Figures) -> None:
    if not figures.has_buckets:
        return
    for name, value in (
        (_BUCKET + "total", figures.buckets),
        ("pulsar_delayed_message_index_loaded", figures.loaded),
        (_BUCKET + "snapshot_size_bytes", figures.snapshot_bytes),
    ):
        families[name].add_sample(name, labels, value)
    for kind in OPERATION_TYPES:
        for state in OPERATION_STATES:
            families[_OPERATION].add_sample(
                _OPERATION, {**labels, "state": state, "type": kind}, figures.operations[kind, state]
            )
        _add_latency(families[_LATENCY], {**labels, "type": kind}, figures, kind)


def _add_latency(family: Family, labels: dict[str, str], figures: Figures, kind: str) -> None:
    counts = [figures.latency[kind, quantile] for quantile in QUANTILES]
    for quantile, count in zip(QUANTILES, counts, strict=True):
        family.add_sample(_LATENCY, {**labels, "quantile": quantile}, count)
    family.add_sample(_LATENCY + "_count", labels, sum(counts))
    family.add_sample(_LATENCY + "_sum", labels, figures.latency_ms[kind])
