"""Metrics of consumers, for Prometheus and for OpenTelemetry; their names and values are in ``_consumer_figures``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import accumulate
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from .._delays import Delay, delay_ms
from .._topic_pattern import full_name
from ..consumer import Consumer, MessageRedelivered
from ..errors import InvalidArgumentError
from ._consumer_figures import (
    COUNTER,
    FIGURES,
    GAUGE,
    HISTOGRAMS,
    LABELS,
    Figure,
    Series,
    WatchedConsumer,
    prometheus_name,
)
from ._scraping import measure_all, namespace_of, prometheus

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from prometheus_client import CollectorRegistry, Metric

_MIN_SWEEP: Final = 16


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
        for field, value in (("topic_name", topic_name), ("subscription", subscription)):
            if value is not None and not isinstance(value, str):
                raise InvalidArgumentError(field, value, "a string or None")
        names = _names_of(consumer)
        labels = _labels(
            names[0] if topic_name is None else topic_name, names[1] if subscription is None else subscription
        )
        watched = WatchedConsumer(consumer)
        if watched.has_ended:
            return  # if it was added before, its series has its counts already
        self._forget_closed()
        with self._lock:
            for series in self._series.values():
                if any(each.consumer is consumer._inner for each in series.watched):
                    _check_same("topic_name", topic_name, labels[2], series.labels[2])
                    _check_same("subscription", subscription, labels[3], series.labels[3])
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
