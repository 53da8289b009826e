"""The exported figures of consumers: one table from the name of a metric to the statistic, for every exporter.

Names without ``nack`` are those of the Java client (PIP-342), where the meaning is equal. Figures are read when they
are asked for, except the two histograms of redeliveries, which are counted as these happen.

Consumers with the same topic and subscription are one series, and are added up. Counters of a closed consumer stay in
its series while another consumer of it is open, and for a while after the last one: so the last counts are scraped, and
a restart within that time is no reset. Then the series ends.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, NamedTuple
from weakref import ref

from ..consumer import Consumer, MessageRedelivered
from ._scraping import Watched

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


class WatchedConsumer(Watched):
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
        was_dropped = self._outer() is None and not engine.state.is_opened
        loop = None if self.loop is None else self.loop()
        is_over = self.loop is not None and (loop is None or loop.is_closed())
        self.has_ended = engine.has_ended or was_dropped or is_over
        self.values = dict(zip(READ, _read(self.consumer.statistics()), strict=True))


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
    watched: list[WatchedConsumer] = field(default_factory=list)
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
