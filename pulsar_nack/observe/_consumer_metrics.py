"""Metrics of consumers, for Prometheus and for OpenTelemetry: one table from a metric to its statistic for both.

Names without ``nack`` are those of the Java client (PIP-342), where the meaning is equal. Figures are read when they
are asked for, except the two histograms of redeliveries, which are counted as these happen.

Consumers with the same topic and subscription are one series, and are added up. Counters of a closed consumer stay in
its series while another consumer of it is open, and for a while after the last one: so the last counts are scraped, and
a restart within that time is no reset. Then the series ends.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from operator import attrgetter
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import ref

from .._delays import Delay, delay_ms
from .._topic_pattern import full_name
from ..consumer import Consumer, MessageRedelivered
from ..errors import InvalidArgumentError
from ._scraping import Watched, measure_all, namespace_of, prometheus, running_loop

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from prometheus_client import CollectorRegistry, Metric

_MIN_SWEEP: Final = 16
COUNTER: Final = "counter"
GAUGE: Final = "gauge"
LABELS: Final = ("pulsar.tenant", "pulsar.namespace", "pulsar.topic", "pulsar.subscription")
_MESSAGES: Final = "{message}"
_JAVA: Final = "pulsar.client.consumer."
_OURS: Final = "pulsar_nack.consumer."


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


class Histogram(NamedTuple):
    """A histogram that is counted as redeliveries happen; ``bounds`` are inclusive upper limits."""

    unit: str
    about: str
    value_of: Callable[[MessageRedelivered], float]
    bounds: tuple[float, ...]


HISTOGRAMS: Final[Mapping[str, Histogram]] = {
    f"{_OURS}lateness": Histogram(
        "s",
        "Time from the deadline of a nacked message to its redelivery; one that is early counts as 0.",
        lambda event: max(event.lateness_ms, 0) / 1000,
        (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    ),
    f"{_OURS}attempts": Histogram(
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


Reading = tuple[dict[str, Any], bool]
"""The statistics of a consumer by their names, and whether they are final."""


def _reading(consumer: Consumer, outer: ref[Consumer], loop_of: ref[asyncio.AbstractEventLoop] | None) -> Reading:
    """Read a consumer's figures.

    :param consumer: the inner object, see ``_lifetime``, so that the user's is not kept open
    :param outer: the user's object
    :param loop_of: the loop in which it was added
    """
    engine = consumer._engine
    was_dropped = outer() is None and not engine.state.is_opened
    loop = None if loop_of is None else loop_of()
    is_over = loop_of is not None and (loop is None or loop.is_closed())
    values = dict(zip(READ, _read(consumer.statistics()), strict=True))
    return values, engine.has_ended or was_dropped or is_over


@dataclass(slots=True)
class Series:
    """The consumers of one topic and subscription.

    :param labels: the values of ``LABELS``
    :param counts: how many redeliveries each histogram has, by upper limits, the last one without a limit
    :param totals: the sum of the values that each histogram has
    :param values: the sum of each statistic; None: nothing is known, as of gauges without a consumer
    :param retired: the counts of consumers that have ended
    """

    labels: tuple[str, ...]
    counts: dict[str, list[int]] = field(
        default_factory=lambda: {name: [0] * (len(each.bounds) + 1) for name, each in HISTOGRAMS.items()}
    )
    totals: dict[str, float] = field(default_factory=lambda: dict.fromkeys(HISTOGRAMS, 0.0))
    values: dict[str, Any] = field(default_factory=dict)
    watched: list[Watched[Reading]] = field(default_factory=list)
    retired: Counter[str] = field(default_factory=Counter)
    ended_at: float | None = None

    def count(self, event: MessageRedelivered) -> None:
        """Count a redelivery."""
        for name, histogram in HISTOGRAMS.items():
            value = histogram.value_of(event)
            self.counts[name][bisect_left(histogram.bounds, value)] += 1
            self.totals[name] += value

    def add_up(self, now: float) -> None:
        """Add the figures up, and keep the counters of consumers that have ended."""
        living = []
        for each in self.watched:
            values, has_ended = each.value
            if has_ended:
                self.retired.update({name: values[name] for name in _COUNTED})
            else:
                living.append(each)
        if not living and self.ended_at is None:
            self.ended_at = now
        self.watched = living
        self.values = {name: self._sum(name) for name in READ}

    def _sum(self, name: str) -> int | None:
        known: list[int] = [value for each in self.watched if (value := each.value[0][name]) is not None]
        if name in _COUNTED:
            return self.retired[name] + sum(known)
        return sum(known) if known else None


class ConsumerMetrics:
    """The metrics of consumers: a collector for ``prometheus-client``, and instruments for OpenTelemetry.

    Counters and gauges are read from ``consumer.statistics()`` at each scrape; only the histograms of
    lateness and attempts are counted as messages are redelivered. Any thread may scrape: a consumer is read in the
    event loop in which it was added, and if that does not answer within a second its last figures are exported.

    Consumers with the same topic and subscription are added up. The counters of a closed one stay in the sum. A series
    without an open consumer is exported for another ``keep_closed``, and at least once.

    ::

        metrics = ConsumerMetrics(prometheus_client.REGISTRY)  # extra metrics
        metrics = ConsumerMetrics(meter=opentelemetry.metrics.get_meter("orders"))  # extra otel
        async with client.subscribe("orders", "billing") as consumer:
            metrics.add(consumer)

    :param registry: the registry of ``prometheus-client`` to register with; None: none, and you can register the
        collector yourself
    :param meter: the meter of OpenTelemetry that makes the instruments; None: none
    :param keep_closed: how long a series is exported after its last consumer was closed: longer than the time between
        two scrapes, or the last counts may not be seen
    :raises InvalidArgumentError: ``keep_closed`` is no delay
    :raises MissingExtraError: prometheus-client is not installed, and there is no meter
    """

    def __init__(
        self, registry: CollectorRegistry | None = None, *, meter: Meter | None = None, keep_closed: Delay = 300.0
    ) -> None:
        self._keep_closed = delay_ms(keep_closed, "keep_closed") / 1000
        self._lock = Lock()
        self._series: dict[tuple[str, ...], Series] = {}
        self._sweep_at = _MIN_SWEEP
        self._observed: list[Series] = []
        self._given: set[str] = set()
        self._records: dict[str, Any] = {}
        if registry is not None:
            registry.register(self)
        if meter is not None:
            self._make_instruments(meter)
        else:
            prometheus()

    def add(self, consumer: Consumer, *, topic_name: str | None = None, subscription: str | None = None) -> None:
        """Export a consumer's figures until it is closed; no effect if it was added before, or is closed.

        :param topic_name: for the labels, None: the topic that was subscribed to. The official client does not know
            the topics of a list
        :param subscription: for the label, None: its name
        :raises InvalidArgumentError: not a consumer, no names, or other names than those under which it was added
        """
        if not isinstance(consumer, Consumer):
            raise InvalidArgumentError("consumer", consumer, "a Consumer")
        given = {"topic_name": topic_name, "subscription": subscription}
        for name, value in given.items():
            if value is not None and not isinstance(value, str):
                raise InvalidArgumentError(name, value, "a string or None")
        names = _names_of(consumer)
        labels = _labels(
            names[0] if topic_name is None else topic_name, names[1] if subscription is None else subscription
        )
        inner = consumer._inner
        watched = Watched(inner, partial(_reading, inner, ref(consumer), running_loop()))
        if watched.value[1]:
            return  # if it was added before, its series has its counts already
        self._forget_closed()
        with self._lock:
            for series in self._series.values():
                if any(each.source is inner for each in series.watched):
                    for (name, value), label, before in zip(given.items(), labels[2:], series.labels[2:], strict=True):
                        if value is not None and label != before:
                            why = f"{before!r}, the name under which this consumer was added: it would be counted twice"
                            raise InvalidArgumentError(name, value, why)
                    return
            series = self._series.setdefault(labels, Series(labels))
            series.ended_at = None
            series.watched.append(watched)
        consumer._engine.trace.watch_redeliveries(series.count)
        if self._records:
            consumer._engine.trace.watch_redeliveries(partial(self._record, _attributes(series)))

    def _read(self) -> list[Series]:
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
            left = sum(len(series.watched) + 1 for series in self._read())
            self._sweep_at = max(_MIN_SWEEP, 2 * left)

    # --- for prometheus-client ---------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """Return the current metrics; called for each scrape."""
        yield from self._families(self._read())

    def describe(self) -> Iterator[Metric]:
        """Return the metrics without samples, so that a registry sees that their names are taken."""
        yield from self._families([])

    def _families(self, some: list[Series]) -> Iterator[Metric]:
        core = prometheus()
        make = {COUNTER: core.CounterMetricFamily, GAUGE: core.GaugeMetricFamily}
        labels = [label.replace(".", "_") for label in LABELS]
        for name, figure in FIGURES.items():
            further = [figure.label] if figure.label else []
            family = make[figure.kind](
                prometheus_name(name, figure.unit, figure.kind), figure.about, labels=[*labels, *further]
            )
            for value, statistic in figure.parts.items():
                for series in some:
                    if (number := series.values[statistic]) is not None:
                        family.add_metric([*series.labels, *([value] if further else [])], number)
            yield family
        for name, histogram in HISTOGRAMS.items():
            family = core.HistogramMetricFamily(
                prometheus_name(name, histogram.unit, ""), histogram.about, labels=labels
            )
            for series in some:
                bounds = map(str, (*histogram.bounds, "+Inf"))
                buckets = list(zip(bounds, accumulate(list(series.counts[name])), strict=True))
                family.add_metric(series.labels, buckets, series.totals[name])
            yield family

    # --- for OpenTelemetry -------------------------------------------------------------------------------------------

    def _make_instruments(self, meter: Meter) -> None:
        for name, figure in FIGURES.items():
            make = (
                meter.create_observable_counter if figure.kind == COUNTER else meter.create_observable_up_down_counter
            )
            make(name, [partial(self._observe, name, figure)], figure.unit, figure.about)
        for name, histogram in HISTOGRAMS.items():
            bounds = list(histogram.bounds)
            made = meter.create_histogram(
                name, histogram.unit, histogram.about, explicit_bucket_boundaries_advisory=bounds
            )
            self._records[name] = made.record

    def _observe(self, name: str, figure: Figure, _: CallbackOptions) -> Iterable[Observation]:
        """Return the values of an instrument. All instruments get one reading, until one asks for a second time."""
        from opentelemetry.metrics import Observation

        if name in self._given or not self._given:
            self._given.clear()
            self._observed = self._read()
        self._given.add(name)
        for value, statistic in figure.parts.items():
            further = {figure.label: value} if figure.label else {}
            for series in self._observed:
                if (number := series.values[statistic]) is not None:
                    yield Observation(number, {**_attributes(series), **further})

    def _record(self, attributes: Mapping[str, str], event: MessageRedelivered) -> None:
        for name, record in self._records.items():
            record(HISTOGRAMS[name].value_of(event), attributes)


def _attributes(series: Series) -> dict[str, str]:
    return dict(zip(LABELS, series.labels, strict=True))


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
