"""Watching a stream of traces: alerts for messages that are not back in time, and rates.

The state of each message that waits lies in Spark's state store, with one timer, so a restart from the checkpoint goes
on where it was. ``clock="event"`` goes by the times of the events: the timers run as far as events were seen, less the
lateness that is waited for. ``clock="wall"`` goes by the time of the machine, and also sees that nothing comes at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from os import PathLike
from typing import Any, Final, Literal

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import StructType

from ..errors import InvalidArgumentError
from ._checks import require_columns, schema_of
from ._source import ROCKS_DB, STATE_STORE
from ._watch_rules import Alert, Event, Pending, Rules
from .schemas import IDENTITY, MAX_TIME_MS, TRACE

ALERTS: Final = schema_of(
    "topic string, partition int, subscription string, ledger long, entry long, batch_index int, kind string, "
    "consumer string, attempt int, nacked_ms long, delay_ms long, deadline_ms long, due_ms long, actual_ms long, "
    "reason string"
)
"""An alert: a message, its nack, and until when it had to be back.

``kind``: ``late``, it came back at ``actual_ms``; ``missing``, it was not seen to come back. ``reason`` is what the
last hold or error said, else that of the nack. A message and its ``nacked_ms`` are in one alert at most.
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

    :param bound_ms: how long after its deadline a message may be back
    :param lateness_ms: events may come so much later than the newest one; those that come later are left out. At least
        what the trace writer takes to close a file. With ``clock="wall"`` an alert waits for so long
    :param until: whether a message is back when its redelivery was asked for, or when it arrived
    :param clock: by which time alerts are raised
    :raises InvalidArgumentError: a column is missing, a time is negative, PySpark is older than 4.1, or the session's
        state store is not RocksDB, see :data:`STATE_STORE`
    """
    _check(bound_ms=bound_ms, lateness_ms=lateness_ms)
    _one_of("until", until, ("redeliver", "arrive"))
    _one_of("clock", clock, ("event", "wall"))
    require_columns(df, TRACE)
    _check_spark(df)
    is_event = clock == "event"
    keyed = _timed(df, lateness_ms if is_event else None).groupBy(*IDENTITY)
    return keyed.transformWithState(
        statefulProcessor=_Watcher(Rules(bound_ms, until), 0 if is_event else lateness_ms),
        outputStructType=ALERTS,
        outputMode="append",
        timeMode="EventTime" if is_event else "ProcessingTime",
    )


def watch_rates(df: DataFrame, *, window_ms: int = 60_000, lateness_ms: int = 60_000) -> DataFrame:
    """Return how many events of each kind there were in each window of time, by topic and subscription.

    A window is told once, when no event in it is waited for any more. Columns: ``start_ms``, ``end_ms``, ``topic``,
    ``subscription``, the counts ``nacks``, ``redeliveries``, ``arrivals``, ``acks``, ``cancels``, ``holds`` and
    ``errors``, of nacks and redeliveries also the rates a second, and ``worst_late_ms``, of arrivals.

    :raises InvalidArgumentError: a column is missing, or a time is not positive
    """
    _check(lateness_ms=lateness_ms)
    if window_ms < 1:
        raise InvalidArgumentError("window_ms", window_ms, "at least 1")
    require_columns(df, TRACE)
    window = F.window(_AT, f"{window_ms} milliseconds")
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
            F.max(F.when(F.col("event") == "arrive", F.col("actual_ms") - F.col("deadline_ms"))).alias("worst_late_ms"),
        )
    )
    seconds = window_ms / 1_000
    return counted.select(
        F.unix_millis("window.start").alias("start_ms"),
        F.unix_millis("window.end").alias("end_ms"),
        *[name for name in counted.columns if name != "window"],
        (F.col("nacks") / seconds).alias("nacks_per_s"),
        (F.col("redeliveries") / seconds).alias("redeliveries_per_s"),
    )


def start_watch(
    df: DataFrame, sink: Sink, checkpoint: str | PathLike[str], *, once: bool = False, every_ms: int = 1_000
) -> StreamingQuery:
    """Start a query that writes alerts or rates.

    Started again with the same checkpoint it goes on where it was. A folder then holds each row once. A function gets
    the rows of a batch and the batch's number, and gets them again, under the same number, if it failed or the process
    ended in it.

    :param sink: ``"console"``, a folder for Parquet, or a function of a DataFrame and the number of the batch
    :param once: end when all that is there now was read; else look for more for ever, each ``every_ms``
    """
    writer = df.writeStream.outputMode("append").option("checkpointLocation", str(checkpoint))
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{every_ms} milliseconds")
    if callable(sink):
        return writer.foreachBatch(sink).start()
    if sink == "console":
        return writer.format("console").option("truncate", value=False).start()
    return writer.format("parquet").start(str(sink))


class _Watcher(StatefulProcessor):
    """Keeps the pending nack of each message, and a timer for it."""

    def __init__(self, rules: Rules, wait_ms: int) -> None:
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
        kind, pending, actual_ms = alert
        values = {**pending._asdict(), "kind": kind, "actual_ms": actual_ms, "due_ms": self._rules.due_ms(pending)}
        values.update(zip(IDENTITY, key, strict=True))
        return Row(**{name: values[name] for name in ALERTS.fieldNames()})


def _timed(df: DataFrame, lateness_ms: int | None) -> DataFrame:
    """Add the time of the events; leave out those whose time cannot be: one would make all after it too late."""
    timed = df.where(F.col("time_ms").between(0, MAX_TIME_MS)).withColumn(_AT, F.timestamp_millis("time_ms"))
    return timed if lateness_ms is None else timed.withWatermark(_AT, f"{lateness_ms} milliseconds")


def _count(event: str, name: str) -> Column:
    return F.count_if(F.col("event") == event).alias(name)


def _check(**times: object) -> None:
    for name, value in times.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InvalidArgumentError(name, value, "whole milliseconds, 0 or more")


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InvalidArgumentError(name, value, f"one of {', '.join(known)}")


def _check_spark(df: DataFrame) -> None:
    spark = df.sparkSession
    if tuple(map(int, spark.version.split(".")[:2])) < (4, 1):
        raise InvalidArgumentError("spark", spark.version, "PySpark 4.1 or later")
    provider = spark.conf.get(STATE_STORE, "")
    if provider != ROCKS_DB:
        raise InvalidArgumentError(STATE_STORE, provider, ROCKS_DB)
