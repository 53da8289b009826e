"""Metrics of consumers, for Prometheus and for OpenTelemetry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from .._delays import Delay, delay_ms
from ..consumer import Consumer, MessageRedelivered
from ..errors import InvalidArgumentError
from ._consumer_figures import (
    COUNTER,
    FIGURES,
    GAUGE,
    HISTOGRAMS,
    LABELS,
    ConsumerFigures,
    Figure,
    Series,
    prometheus_name,
)
from ._scraping import prometheus

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from prometheus_client import CollectorRegistry, Metric


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
        self._figures = ConsumerFigures(delay_ms(keep_closed, "keep_closed") / 1000)
        self._series: list[Series] = []
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
        series = self._figures.add(consumer, topic_name, subscription)
        if series is not None and self._records:
            consumer._engine.trace.watch_redeliveries(partial(self._record, _attributes(series)))

    # --- for prometheus-client ---------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """Return the current metrics; called for each scrape."""
        yield from self._families(self._figures.read())

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
                counted, buckets, count = series.histograms[name], [], 0
                for bound, more in zip((*histogram.bounds, "+Inf"), list(counted.counts), strict=True):
                    count += more
                    buckets.append((str(bound), count))
                family.add_metric(series.labels, buckets, counted.total)
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
            self._series = self._figures.read()
        self._given.add(name)
        for value, statistic in figure.parts.items():
            further = {figure.label: value} if figure.label else {}
            for series in self._series:
                if (number := series.values[statistic]) is not None:
                    yield Observation(number, {**_attributes(series), **further})

    def _record(self, attributes: Mapping[str, str], event: MessageRedelivered) -> None:
        for name, record in self._records.items():
            record(HISTOGRAMS[name].value_of(event), attributes)


def _attributes(series: Series) -> dict[str, str]:
    return dict(zip(LABELS, series.labels, strict=True))
