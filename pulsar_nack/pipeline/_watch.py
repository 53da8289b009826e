"""The job ``watch`` over a stream of traces: alerts for overdue messages, and rates.

The state of each nacked message is in Spark's state store, with one timer, so a restart resumes from the checkpoint.
With ``clock="event"`` time is that of the newest event minus the allowed lateness. With ``clock="wall"`` it is the
machine's time, so alerts are raised even if no event comes at all.

::

                 nack                     deadline        due = deadline + bound
    -------------|------------------------|---------------|-----------------------> time of the events
      nothing    |  pending               it should be back        it is overdue

A message is pending from its nack until it is back or settled, or its alert is raised. Depending on the rules it is
back when its redelivery is requested, or when it arrives. An event after ``due`` is too late: the alert is raised
whether the time or that event is seen first. So each nack raises at most one alert, however events are cut into
batches, as long as no event comes later than the allowed lateness.

An alert is a nack, and the time at which its message came back: it is *late* if that is known, else *missing*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from os import PathLike
from typing import Any, Final, Literal, NamedTuple

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import StructType

from .._check import check_integer, check_one_of
from ..errors import InvalidArgumentError
from ._jobs import require_columns
from ._source import ROCKS_DB, STATE_STORE
from .schemas import IDENTITY, MAX_TIME_MS, TRACE, _schema_of

_SETTLES: Final = {"ack", "cancel"}
_EXPLAINS: Final = {"hold", "error"}
_RANK: Final = {"redeliver": 0, "arrive": 1, "hold": 2, "error": 2, "cancel": 3, "ack": 3, "nack": 4}
"""The order of events of the same time: a message that comes back can be nacked again at once."""

# --- rules for one message ------------------------------------------------------------------------------------------


class Pending(NamedTuple):
    """A nack whose message is not back yet."""

    nacked_ms: int
    deadline_ms: int
    delay_ms: int | None
    attempt: int | None
    consumer: str | None
    reason: str | None


class Event(NamedTuple):
    """The fields of a trace event that the rules use."""

    event: str
    time_ms: int
    mono_ns: int | None = None
    consumer: str | None = None
    attempt: int | None = None
    delay_ms: int | None = None
    deadline_ms: int | None = None
    actual_ms: int | None = None
    reason: str | None = None


Alert = tuple[Pending, int | None]
"""A message that was not back in time, and when it came back; None if that was not seen."""


class OverdueRules(NamedTuple):
    """The rules for messages that are overdue.

    :param bound_ms: how long after its deadline a message becomes overdue
    :param until: a message is back when its redelivery is requested (``redeliver``) or when it arrives (``arrive``)
    """

    bound_ms: int
    until: str = "redeliver"

    def due_ms(self, pending: Pending) -> int:
        """Return the time by which a message has to be back."""
        return pending.deadline_ms + self.bound_ms

    def follow(self, pending: Pending | None, events: Iterable[Event]) -> tuple[Pending | None, list[Alert]]:
        """Return the pending nack after events of a message, given in any order, and the alerts that they raise."""
        alerts: list[Alert] = []
        for event in sorted(events, key=_order):
            pending = self._next(pending, event, alerts)
        return pending, alerts

    def expire(self, pending: Pending | None, now_ms: int) -> Alert | None:
        """Return the alert to raise if the message is overdue at ``now_ms`` and no earlier event will come."""
        return (pending, None) if pending is not None and self.due_ms(pending) <= now_ms else None

    def _next(self, pending: Pending | None, event: Event, alerts: list[Alert]) -> Pending | None:
        if event.event == "nack":
            return self._nacked(pending, event, alerts)
        if pending is None or event.time_ms < pending.nacked_ms:
            return pending
        if event.event in _SETTLES:
            if event.time_ms > self.due_ms(pending):
                alerts.append((pending, None))
            return None
        if event.event in {"arrive", self.until}:
            if event.time_ms > self.due_ms(pending):
                alerts.append((pending, event.time_ms if event.actual_ms is None else event.actual_ms))
            return None
        return pending._replace(reason=event.reason) if event.event in _EXPLAINS and event.reason else pending

    def _nacked(self, pending: Pending | None, event: Event, alerts: list[Alert]) -> Pending | None:
        """Return the new nack; of two nacks of the same delivery that with the earlier deadline."""
        if event.deadline_ms is None:
            return pending
        new = Pending(event.time_ms, event.deadline_ms, event.delay_ms, event.attempt, event.consumer, event.reason)
        if pending is None:
            return new
        if event.time_ms > self.due_ms(pending):
            alerts.append((pending, None))
            return new
        if (event.attempt or 0) > (pending.attempt or 0):
            return new
        return min(pending, new, key=lambda each: each.deadline_ms)


def _order(event: Event) -> tuple[int, int, int]:
    return event.time_ms, _RANK.get(event.event, 2), event.mono_ns or 0


# --- the job --------------------------------------------------------------------------------------------------------

ALERTS: Final = _schema_of(
    "topic string, partition int, subscription string, ledger long, entry long, batch_index int, kind string, "
    "consumer string, attempt int, nacked_ms long, delay_ms long, deadline_ms long, due_ms long, actual_ms long, "
    "reason string"
)
"""An alert: a message, its nack, and when it had to be back.

``kind`` is ``late`` if the message came back at ``actual_ms``, and ``missing`` if it was not seen to come back.
``reason`` is that of the last hold or error, else that of the nack. A message and its ``nacked_ms`` have at most one
alert.
"""
_EVENT: Final = Event._fields
_PENDING: Final = StructType([ALERTS[name] for name in Pending._fields])
_AT: Final = "at"

Sink = Literal["console"] | str | PathLike[str] | Callable[[DataFrame, int], None]


def watch(
    df: DataFrame,
    *,
    bound_ms: int = 1_000,
    lateness_ms: int = 60_000,
    until: str = "redeliver",
    clock: str = "event",
) -> DataFrame:
    """Return the alerts of a streaming DataFrame of traces, as :data:`ALERTS`.

    :param bound_ms: how long after its deadline a message becomes overdue
    :param lateness_ms: how much older than the newest event an event may be; older ones are left out. At least the time
        in which the trace writer closes a file. With ``clock="wall"`` alerts are delayed by this time
    :param until: whether a message counts as back when its redelivery is requested, or when it arrives
    :param clock: the time that raises alerts
    :raises InvalidArgumentError: a column is missing, a time is negative, PySpark is older than 4.1, or the session's
        state store is not RocksDB, see :data:`STATE_STORE`
    """
    check_integer("bound_ms", bound_ms, 0)
    check_integer("lateness_ms", lateness_ms, 0)
    check_one_of("until", until, ("redeliver", "arrive"))
    check_one_of("clock", clock, ("event", "wall"))
    require_columns(df, TRACE)
    _check_spark(df)
    is_event = clock == "event"
    keyed = _timed(df, lateness_ms if is_event else None).groupBy(*IDENTITY)
    return keyed.transformWithState(
        statefulProcessor=_OverdueProcessor(OverdueRules(bound_ms, until), 0 if is_event else lateness_ms),
        outputStructType=ALERTS,
        outputMode="append",
        timeMode="EventTime" if is_event else "ProcessingTime",
    )


def watch_rates(df: DataFrame, *, window_ms: int = 60_000, lateness_ms: int = 60_000) -> DataFrame:
    """Return the number of events of each kind in each window of time, by topic and subscription.

    A window is emitted once, when its events are complete. Columns: ``start_ms``, ``end_ms``, ``topic``,
    ``subscription``, the counts ``nacks``, ``redeliveries``, ``arrivals``, ``acks``, ``cancels``, ``holds`` and
    ``errors``, the rates ``nacks_per_s`` and ``redeliveries_per_s``, and ``worst_late_ms`` of arrivals.

    :raises InvalidArgumentError: a column is missing, or a time is not positive
    """
    check_integer("lateness_ms", lateness_ms, 0)
    check_integer("window_ms", window_ms, 1)
    require_columns(df, TRACE)
    window = sf.window(_AT, f"{window_ms} milliseconds")
    counted = (
        _timed(df, lateness_ms)
        .groupBy(window, "topic", "subscription")
        .agg(
            _count("nack", "nacks"),
            _count("redeliver", "redeliveries"),
            _count("arrive", "arrivals"),
            _count("ack", "acks"),
            _count("cancel", "cancels"),
            _count("hold", "holds"),
            _count("error", "errors"),
            sf.max(sf.when(sf.col("event") == "arrive", sf.col("actual_ms") - sf.col("deadline_ms"))).alias(
                "worst_late_ms"
            ),
        )
    )
    seconds = window_ms / 1_000
    return counted.select(
        sf.unix_millis("window.start").alias("start_ms"),
        sf.unix_millis("window.end").alias("end_ms"),
        *[name for name in counted.columns if name != "window"],
        (sf.col("nacks") / seconds).alias("nacks_per_s"),
        (sf.col("redeliveries") / seconds).alias("redeliveries_per_s"),
    )


def start_watch(
    df: DataFrame, sink: Sink, checkpoint: str | PathLike[str], *, once: bool = False, every_ms: int = 1_000
) -> StreamingQuery:
    """Start a query that writes alerts or rates.

    A restart with the same checkpoint resumes. A folder then has each row once. A function may get a batch again, with
    the same number, if it failed or the process ended in it.

    :param sink: ``"console"``, a folder for Parquet, or a function of a DataFrame and the number of the batch
    :param once: end when all current files were read; otherwise look for new ones each ``every_ms``
    :raises InvalidArgumentError: ``every_ms`` is negative
    """
    check_integer("every_ms", every_ms, 0)
    writer = df.writeStream.outputMode("append").option("checkpointLocation", str(checkpoint))
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{every_ms} milliseconds")
    if callable(sink):
        return writer.foreachBatch(sink).start()
    if sink == "console":
        return writer.format("console").option("truncate", value=False).start()
    return writer.format("parquet").start(str(sink))


class _OverdueProcessor(StatefulProcessor):
    """The state of each message: its pending nack, and a timer for it."""

    def __init__(self, rules: OverdueRules, wait_ms: int) -> None:
        self._rules = rules
        self._wait_ms = wait_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("pending", _PENDING)

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterable[Any],
        timerValues: TimerValues,  # noqa: ARG002, N803
    ) -> Iterator[Row]:
        before = self._pending()
        after, alerts = self._rules.follow(before, (Event(*(row[name] for name in _EVENT)) for row in rows))
        if after != before:
            self._keep(before, after)
        return iter([self._row(key, alert) for alert in alerts])

    def handleExpiredTimer(  # noqa: N802 - Spark's name
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: ARG002, N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        pending = self._pending()
        alert = self._rules.expire(pending, expiredTimerInfo.getExpiryTimeInMs() - self._wait_ms)
        if alert is None:
            return iter(())
        self._state.clear()
        return iter([self._row(key, alert)])

    def close(self) -> None:
        pass

    def _pending(self) -> Pending | None:
        found = self._state.get()
        return None if found is None else Pending(*found)

    def _keep(self, before: Pending | None, after: Pending | None) -> None:
        old, new = (None if each is None else self._rules.due_ms(each) + self._wait_ms for each in (before, after))
        if old is not None and old != new:
            self._handle.deleteTimer(old)
        if new is not None and old != new:
            self._handle.registerTimer(new)
        if after is None:
            self._state.clear()
        else:
            self._state.update(tuple(after))

    def _row(self, key: Any, alert: Alert) -> Row:
        pending, actual_ms = alert
        kind = "missing" if actual_ms is None else "late"
        values = {**pending._asdict(), "kind": kind, "actual_ms": actual_ms, "due_ms": self._rules.due_ms(pending)}
        values.update(zip(IDENTITY, key, strict=True))
        return Row(**{name: values[name] for name in ALERTS.fieldNames()})


def _timed(df: DataFrame, lateness_ms: int | None) -> DataFrame:
    """Add the time of events, without invalid ones: a time too high would make all later events too late."""
    timed = df.where(sf.col("time_ms").between(0, MAX_TIME_MS)).withColumn(_AT, sf.timestamp_millis("time_ms"))
    return timed if lateness_ms is None else timed.withWatermark(_AT, f"{lateness_ms} milliseconds")


def _count(event: str, name: str) -> Column:
    return sf.count_if(sf.col("event") == event).alias(name)


def _check_spark(df: DataFrame) -> None:
    spark = df.sparkSession
    if tuple(map(int, spark.version.split(".")[:2])) < (4, 1):
        raise InvalidArgumentError("spark", spark.version, "PySpark 4.1 or later")
    provider = spark.conf.get(STATE_STORE, "")
    if provider != ROCKS_DB:
        raise InvalidArgumentError(STATE_STORE, provider, ROCKS_DB)
