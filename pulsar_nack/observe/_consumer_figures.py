"""The exported figures of consumers: one table from the name of a metric to the statistic, for every exporter.

Names without ``nack`` are those of the Java client (PIP-342), where the meaning is equal. Figures are read when they
are asked for, except the two histograms of redeliveries, which are counted as these happen.

Consumers with the same topic and subscription are one series, and are added up. Counters of a closed consumer stay in
its series while another consumer of it is open, and for a while after the last one: so the last counts are scraped, and
a restart within that time is no reset. Then the series ends.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from threading import Lock
from typing import Any, Final, NamedTuple
from weakref import ref

from .._topic_pattern import full_name
from ..consumer import Consumer, MessageRedelivered
from ..errors import InvalidArgumentError
from ._scraping import Watched, measure_all, namespace_of

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
LABELS: Final = ("pulsar.tenant", "pulsar.namespace", "pulsar.topic", "pulsar.subscription")
_MESSAGES: Final = "{message}"
_JAVA: Final = "pulsar.client.consumer."
_OURS: Final = "pulsar_nack.consumer."
_MIN_SWEEP: Final = 16


class Figure(NamedTuple):
    """A metric and its statistics.

    :param kind: ``counter`` only grows; ``gauge`` is as it is now
    :param parts: fields of :class:`~pulsar_nack.ConsumerStatistics` with the value of the further label; a single one
        without a label has the key ``""``
    :param label: the further label
    """

    kind: str
    unit: str
    about: str
    parts: Mapping[str, str]
    label: str = ""


def _of(kind: str, statistic: str, about: str, unit: str = _MESSAGES) -> Figure:
    return Figure(kind, unit, about, {"": statistic})


FIGURES: Final[Mapping[str, Figure]] = {
    f"{_JAVA}message.received.count": _of(COUNTER, "shown", "Messages that the application received, each attempt."),
    f"{_JAVA}message.ack": _of(COUNTER, "acked", "Acknowledged messages, without dead letters and retries."),
    f"{_JAVA}message.nack": _of(COUNTER, "nacked", "Negatively acknowledged messages."),
    f"{_JAVA}message.dlq": _of(COUNTER, "dead_lettered", "Messages stored in the dead-letter topic."),
    f"{_JAVA}message.ack.timeout": _of(COUNTER, "leases_expired", "Messages that were not settled within their lease."),
    f"{_OURS}retried": _of(COUNTER, "retried", "Messages stored in the retry topic."),
    f"{_OURS}deferred": _of(COUNTER, "deferred", "Messages that were postponed."),
    f"{_OURS}handler.errors": _of(COUNTER, "handler_errors", "Exceptions of handlers under run.", "{exception}"),
    f"{_OURS}drains": _of(COUNTER, "drains", "Drains that are over.", "{drain}"),
    f"{_OURS}redeliveries": Figure(
        COUNTER,
        _MESSAGES,
        "Redeliveries from memory, and those that the broker was asked for.",
        {"memory": "redelivered_local", "broker": "redelivered_broker"},
        "source",
    ),
    f"{_OURS}redeliveries.repeated": _of(COUNTER, "requested_again", "Repeated requests, without an answer."),
    f"{_OURS}redeliveries.failed": _of(COUNTER, "nack.failed_commands", "Failed requests for redelivery.", "{request}"),
    f"{_OURS}duplicates": _of(COUNTER, "copies_dropped", "Duplicates that were dropped."),
    f"{_OURS}replayed": _of(COUNTER, "replayed", "Acknowledged messages that were delivered again on purpose."),
    f"{_OURS}dropped": _of(COUNTER, "dropped", "Held messages that are settled elsewhere."),
    f"{_OURS}dead_letters.failed": _of(COUNTER, "dead_letter_failures", "Failed steps of dead letters.", "{attempt}"),
    f"{_OURS}retries.failed": _of(COUNTER, "retry_failures", "Failed steps of messages for retry topics.", "{attempt}"),
    f"{_OURS}durable.failed": _of(COUNTER, "durable_failures", "Changes that could not be made durable.", "{change}"),
    f"{_OURS}hook.errors": _of(COUNTER, "nack.hook_errors", "Events for which a hook raised.", "{event}"),
    f"{_OURS}held": _of(GAUGE, "held", "Nacked messages that are not due."),
    f"{_OURS}requested": _of(GAUGE, "requested", "Messages requested from the broker that have not arrived."),
    f"{_OURS}in_work": _of(GAUGE, "in_work", "Messages that are being processed or ready to be received."),
    f"{_OURS}ready": _of(GAUGE, "ready", "Messages that are ready to be received."),
    f"{_OURS}held_for_keys": _of(GAUGE, "held_for_keys", "Messages that wait for earlier ones of their keys."),
    f"{_OURS}unacked": _of(GAUGE, "unacked", "Messages that are not settled, as the broker counts them."),
    f"{_OURS}unacked.limit": _of(GAUGE, "unacked_limit", "The most unacknowledged messages, where there is a limit."),
    f"{_OURS}held_back": _of(GAUGE, "is_held_back", "Consumers to which the broker sends nothing.", "{consumer}"),
    f"{_OURS}kept": _of(GAUGE, "kept_bytes", "Memory of payloads that are kept for a redelivery.", "By"),
    f"{_OURS}nacks.waiting": _of(GAUGE, "waiting_nacks", "Calls of nack that wait for room.", "{call}"),
    f"{_OURS}dead_letters.waiting": _of(GAUGE, "dead_letters_waiting", "Dead letters that are not stored yet."),
    f"{_OURS}retries.waiting": _of(GAUGE, "retries_waiting", "Messages for the retry topic that are not stored yet."),
    f"{_OURS}durable.entries": _of(GAUGE, "durable_entries", "Unsettled messages in the durable state."),
    f"{_OURS}gated": _of(GAUGE, "gated", "New messages that wait for room in the durable state."),
}
"""The metrics by the name that OpenTelemetry has for each; Prometheus has :func:`prometheus_name`."""

READ: Final = [statistic for figure in FIGURES.values() for statistic in figure.parts.values()]
"""The statistics that are read."""
_read: Final = attrgetter(*READ)
_COUNTED: Final = {each for figure in FIGURES.values() if figure.kind == COUNTER for each in figure.parts.values()}
"""The statistics that only grow."""


class HistogramFigure(NamedTuple):
    """A histogram that is counted as redeliveries happen; ``bounds`` are inclusive upper limits."""

    unit: str
    about: str
    value_of: Callable[[MessageRedelivered], float]
    bounds: tuple[float, ...]


HISTOGRAMS: Final[Mapping[str, HistogramFigure]] = {
    f"{_OURS}lateness": HistogramFigure(
        "s",
        "Time from the deadline of a nacked message to its redelivery; one that is early counts as 0.",
        lambda event: max(event.lateness_ms, 0) / 1000,
        (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    ),
    f"{_OURS}attempts": HistogramFigure(
        "{attempt}",
        "Numbers of the attempts of redelivered messages.",
        lambda event: event.attempt or 0,
        (2, 3, 4, 5, 7, 10, 20, 50, 100),
    ),
}


def prometheus_name(name: str, unit: str, kind: str) -> str:
    """Return the name that an OpenTelemetry exporter for Prometheus makes of a metric's name."""
    suffix = {"By": "_bytes", "s": "_seconds"}.get(unit, "")
    return name.replace(".", "_") + suffix + ("_total" if kind == COUNTER else "")


class Histogram:
    """Counts of observations by upper limits, the last one without a limit, and their sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self._bounds = bounds

    def observe(self, value: float) -> None:
        """Count an observation."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value


class _WatchedConsumer(Watched):
    """A consumer, and its figures as they were read last.

    ``consumer`` is the inner object, see ``_lifetime``, so that the user's is not kept open.
    """

    def __init__(self, consumer: Consumer) -> None:
        super().__init__()
        self.consumer = consumer._inner
        self.values: dict[str, Any] = {}
        self.has_ended = False
        self._outer = ref(consumer)
        self.measure()

    def measure(self) -> None:
        """Read the figures, and note whether they are final."""
        engine = self.consumer._engine
        was_dropped = self._outer() is None and engine.state.acks is None
        loop = None if self.loop is None else self.loop()
        is_over = self.loop is not None and (loop is None or loop.is_closed())
        self.has_ended = engine.has_ended or was_dropped or is_over
        self.values = dict(zip(READ, _read(self.consumer.statistics()), strict=True))


@dataclass(slots=True)
class Series:
    """The consumers of one topic and subscription.

    :param labels: the values of ``LABELS``
    :param values: the sum of each statistic; None: nothing is known, as of gauges without a consumer
    :param retired: the counts of consumers that have ended
    """

    labels: tuple[str, ...]
    histograms: dict[str, Histogram]
    values: dict[str, Any] = field(default_factory=dict)
    watched: list[_WatchedConsumer] = field(default_factory=list)
    retired: Counter[str] = field(default_factory=Counter)
    ended_at: float | None = None

    def count(self, event: MessageRedelivered) -> None:
        """Count a redelivery."""
        for name, histogram in self.histograms.items():
            histogram.observe(HISTOGRAMS[name].value_of(event))

    def add_up(self, now: float) -> None:
        """Add the figures up, and keep the counters of consumers that have ended."""
        living = [each for each in self.watched if not each.has_ended]
        for each in self.watched:
            if each.has_ended:
                self.retired.update({name: each.values[name] for name in _COUNTED})
        if not living and self.ended_at is None:
            self.ended_at = now
        self.watched = living
        self.values = {name: self._sum(name) for name in READ}

    def _sum(self, name: str) -> int | None:
        known: list[int] = [value for each in self.watched if (value := each.values[name]) is not None]
        if name in _COUNTED:
            return self.retired[name] + sum(known)
        return sum(known) if known else None


class ConsumerFigures:
    """The figures of some consumers.

    :param keep_closed: seconds for which a series stays after its last consumer was closed
    """

    def __init__(self, keep_closed: float) -> None:
        self._keep_closed = keep_closed
        self._lock = Lock()
        self._series: dict[tuple[str, ...], Series] = {}
        self._sweep_at = _MIN_SWEEP

    def add(self, consumer: Consumer, topic_name: str | None, subscription: str | None) -> Series | None:
        """Read a consumer from now on, until it is closed; return its series, None if it was added before or is closed.

        :raises InvalidArgumentError: it was added before, under another name than one that is given
        """
        names = _names_of(consumer)
        labels = _labels(
            names[0] if topic_name is None else topic_name, names[1] if subscription is None else subscription
        )
        watched = _WatchedConsumer(consumer)
        if watched.has_ended:
            return None  # if it was added before, its series has its counts already
        self._forget_closed()
        with self._lock:
            for series in self._series.values():
                if any(each.consumer is consumer._inner for each in series.watched):
                    _check_same("topic_name", topic_name, labels[2], series.labels[2])
                    _check_same("subscription", subscription, labels[3], series.labels[3])
                    return None
            if labels not in self._series:
                made = {name: Histogram(figure.bounds) for name, figure in HISTOGRAMS.items()}
                self._series[labels] = Series(labels, made)
            series = self._series[labels]
            series.ended_at = None
            series.watched.append(watched)
        consumer._engine.trace.watch_redeliveries(series.count)
        return series

    def read(self) -> list[Series]:
        """Read all figures now; series that ended too long ago are forgotten. Several threads may do this at once."""
        now = time.monotonic()
        with self._lock:
            for key, series in list(self._series.items()):
                if series.ended_at is not None and now - series.ended_at >= self._keep_closed:
                    del self._series[key]
            some = list(self._series.values())
        measure_all(each for series in some for each in series.watched)
        with self._lock:
            for series in some:
                series.add_up(now)
        return some

    def _forget_closed(self) -> None:
        """Drop ended consumers, each time the number of consumers has doubled."""
        if sum(len(series.watched) + 1 for series in list(self._series.values())) >= self._sweep_at:
            left = sum(len(series.watched) + 1 for series in self.read())
            self._sweep_at = max(_MIN_SWEEP, 2 * left)


def _check_same(field: str, given: str | None, label: str, before: str) -> None:
    if given is not None and label != before:
        expected = f"{before!r}, the name under which this consumer was added: it would be counted twice"
        raise InvalidArgumentError(field, given, expected)


def _names_of(consumer: Consumer) -> tuple[str, str]:
    """Return the topics and the subscription of a consumer, without its retry topic; empty where they have no names."""
    topic, subscription = getattr(consumer.port, "names", ("", ""))[:2]
    policy = consumer._engine.settings.retry_topic
    return ", ".join(policy.topics) if policy is not None and policy.topics else topic, subscription


def _labels(topic: str, subscription: str) -> tuple[str, ...]:
    """Return the labels of a consumer; of several topics tenant and namespace are those of the first."""
    first, *others = topic.split(", ")
    namespace = namespace_of(full_name(first))
    return namespace.partition("/")[0], namespace, topic if others else full_name(first), subscription
