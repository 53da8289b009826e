"""The report on traces, and optionally on acknowledgement holes and a plan: one HTML file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as sf

from ..errors import InvalidArgumentError
from ._accuracy import accuracy
from ._holes import DEFAULT_LIMIT
from ._jobs import DEAD_LETTER, require_columns
from ._report_page import Section, bars, figure, lines, moment, number, render, size, span, table
from ._retries import retries
from .schemas import HOLES_SHOWN, IDENTITY, TRACE

_MAX_ROWS: Final = 50
_MAX_SERIES: Final = 6
_LEFT_OUT: Final = {"chains"}
"""One row for each message."""
_RISKS: Final = ("over", "paused", "near")
_STEPS: Final = 120
_NICE_MS: Final = (
    *(100, 1_000, 5_000, 10_000, 30_000, 60_000, 300_000, 900_000, 3_600_000, 14_400_000, 86_400_000),
    *(604_800_000, 2_592_000_000),
)
_SHARES: Final = (0.5, 0.99, 1.0)
_EDGES_MS: Final = (-10_000, -1_000, -100, -10, 0, 10, 50, 100, 500, 1_000, 10_000, 60_000)
_MAX_REASONS: Final = 15
_MAX_ATTEMPTS: Final = 20
_BAD_LATE_MS: Final = 1_000
_LINES: Final = {"nack": "nacks", "redeliver": "redeliveries", "arrive": "arrivals", "error": "errors"}


def report(
    traces: DataFrame,
    *,
    holes: DataFrame | None = None,
    plan: DataFrame | None = None,
    title: str = "pulsar-nack report",
    limit: int = DEFAULT_LIMIT,
) -> str:
    """Return a report as HTML that needs no other file, no script and no network.

    The traces are read several times: cache them if that is expensive. The collected data is small for any input.

    :param traces: rows of :data:`~pulsar_nack.pipeline.schemas.TRACE`
    :param holes: what :func:`~pulsar_nack.pipeline.holes` returns
    :param plan: what :func:`~pulsar_nack.pipeline.plan` returns
    :param limit: the limit of ``holes``, to draw it
    :raises InvalidArgumentError: the traces lack a column
    """
    require_columns(traces, TRACE)
    extent = _extent_of(traces)
    sections = [_overview(traces, extent)]
    figures, plots = _lateness(traces, extent)
    text = "How far from its deadline each message came back; negative: early."
    sections.append(Section("accuracy", "Accuracy", text, figures, [*plots, *_tables(accuracy(traces))]))
    text = "How often messages were nacked, which never succeed, and when there were more nacks than usual."
    sections.append(Section("retries", "Retries", text, parts=[_attempts(traces), *_tables(retries(traces))]))
    if holes is not None:
        sections.append(_holes(holes, limit))
    if plan is not None:
        text = "Memory for pending nacks by the width of buckets."
        sections.append(Section("plan", "Plan", text, parts=list(_tables(plan))))
    return render(title, "Times are UTC.", sections)


def write_report(html: str, path: str | PathLike[str], *, overwrite: bool = False) -> None:
    """Write a report to a file, as a whole or not at all.

    :raises InvalidArgumentError: the file exists and is not to be overwritten, or cannot be written
    """
    target = Path(path)
    if target.is_dir() or (target.exists() and not overwrite):
        raise InvalidArgumentError("out", str(target), "a file that does not exist yet, or overwrite")
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        partial.write_text(html, encoding="utf-8")
        partial.replace(target)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise InvalidArgumentError("out", str(target), f"a file that can be written ({error.strerror})") from error


def _tables(result: Any) -> Iterator[str]:
    """Yield a table for each DataFrame of a job's result."""
    named: Mapping[str, DataFrame] = {"": result} if isinstance(result, DataFrame) else result._asdict()
    for name, frame in named.items():
        if name not in _LEFT_OUT:
            rows = frame.limit(_MAX_ROWS + 1).collect()
            more = frame.count() - _MAX_ROWS if len(rows) > _MAX_ROWS else 0
            yield table(name.replace("_", " ").capitalize(), frame.columns, rows[:_MAX_ROWS], more)


# --- traces -----------------------------------------------------------------------------------------------------------


def _extent_of(traces: DataFrame) -> Row:
    """Return counts of events, messages and topics, the first and last time, and the width of about a hundred steps."""
    is_dead = (sf.col("event") == "ack") & (sf.col("reason") == DEAD_LETTER)
    (row,) = traces.agg(
        sf.count("*").alias("events"),
        *(_events(event).alias(name) for event, name in _LINES.items()),
        sf.count_if(is_dead).alias("dead_letters"),
        sf.approx_count_distinct(sf.struct(*IDENTITY)).alias("messages"),
        sf.approx_count_distinct("topic").alias("topics"),
        sf.min("time_ms").alias("first_ms"),
        sf.max("time_ms").alias("last_ms"),
    ).collect()
    length = (row.last_ms or 0) - (row.first_ms or 0)
    step_ms = next((each for each in _NICE_MS if each * _STEPS >= length), _NICE_MS[-1])
    return Row(**row.asDict(), step_ms=step_ms)


def _overview(traces: DataFrame, extent: Row) -> Section:
    """Return the section of events over time, and of the reasons of nacks."""
    counted = traces.groupBy(_step(extent)).agg(*(_events(event).alias(name) for event, name in _LINES.items()))
    rows = counted.orderBy("at").collect()
    series = {name: [(row.at, row[name]) for row in rows] for name in _LINES.values()}
    figures = [
        figure("events", number(extent.events)),
        figure("messages, about", number(extent.messages)),
        figure("topics, about", number(extent.topics)),
        figure("nacks", number(extent.nacks)),
        figure("redeliveries", number(extent.redeliveries)),
        figure("arrivals", number(extent.arrivals)),
        figure("errors", number(extent.errors), is_bad=extent.errors > 0),
        figure("dead letters", number(extent.dead_letters), is_bad=extent.dead_letters > 0),
    ]
    plots = [lines(f"Events in each {span(extent.step_ms)}", series)]
    reasons = traces.where("event = 'nack'").groupBy("reason").count().orderBy(sf.desc("count"), "reason")
    top = [(row.reason or "(no reason given)", row["count"]) for row in reasons.limit(_MAX_REASONS).collect()]
    plots.append(bars("Reasons of nacks", top))
    when = "No events" if extent.first_ms is None else f"{moment(extent.first_ms)} to {moment(extent.last_ms or 0)} UTC"
    return Section("overview", "Overview", f"{when}.", figures, plots)


def _lateness(traces: DataFrame, extent: Row) -> tuple[Sequence[str], Sequence[str]]:
    """Return figures and plots of the lateness of arrivals, or of redelivery requests if no arrival is traced."""
    event = "arrive" if extent.arrivals else "redeliver"
    timed = traces.where(
        (sf.col("event") == event) & sf.col("deadline_ms").isNotNull() & sf.col("actual_ms").isNotNull()
    )
    timed = timed.select("time_ms", (sf.col("actual_ms") - sf.col("deadline_ms")).alias("late_ms"))
    shares = sf.percentile("late_ms", list(_SHARES))
    (whole,) = timed.agg(shares.alias("p"), sf.count("*").alias("n"), sf.min("late_ms").alias("low")).collect()
    if not whole.n:
        return [figure("messages that came back", "0")], []
    figures = [
        figure("median lateness", span(whole.p[0])),
        figure("99 of 100 within", span(whole.p[1]), is_bad=whole.p[1] > _BAD_LATE_MS),
        figure("latest", span(whole.p[2]), is_bad=whole.p[2] > _BAD_LATE_MS),
        figure("earliest", span(whole.low), is_bad=whole.low < -_BAD_LATE_MS),
    ]
    over_time = timed.groupBy(_step(extent)).agg(shares.alias("p")).orderBy("at").collect()
    names = ("median", "99 of 100", "latest")
    series = {name: [(row.at, row.p[index]) for row in over_time] for index, name in enumerate(names)}
    counted = {row.bin: row["count"] for row in timed.groupBy(_bin().alias("bin")).count().collect()}
    histogram = [(_bin_name(index), counted.get(index, 0)) for index in range(min(counted), max(counted) + 1)]
    word = "Lateness of arrivals" if event == "arrive" else "Lateness of requests for redelivery"
    return figures, [lines(f"{word} in each {span(extent.step_ms)}", series, y=span), bars(word, histogram)]


def _attempts(traces: DataFrame) -> str:
    """Return a plot of how often messages were nacked."""
    per_message = traces.where("event = 'nack'").groupBy(*IDENTITY).count()
    shown = sf.least("count", sf.lit(_MAX_ATTEMPTS))
    rows = per_message.groupBy(shown.alias("nacks")).count().orderBy("nacks").collect()
    named = [(_times(row.nacks), row["count"]) for row in rows]
    return bars("Messages by how often they were nacked", named)


def _step(extent: Row) -> Column:
    """Return the begin of the time step of an event."""
    step_ms: int = extent.step_ms
    return (sf.floor(sf.col("time_ms") / step_ms) * step_ms).alias("at")


def _events(name: str) -> Column:
    return sf.count_if(sf.col("event") == name)


def _bin() -> Column:
    """Return the number of edges that a lateness reaches."""
    late = sf.col("late_ms")
    parts = [sf.when(late >= edge, 1).otherwise(0) for edge in _EDGES_MS]
    return sum(parts[1:], parts[0])


def _bin_name(index: int) -> str:
    if index == 0:
        return f"early by more than {span(-_EDGES_MS[0])}"
    if index == len(_EDGES_MS):
        return f"{span(_EDGES_MS[-1])} late and more"
    return f"{span(_EDGES_MS[index - 1])} to {span(_EDGES_MS[index])}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times{' or more' if count == _MAX_ATTEMPTS else ''}"


# --- holes ------------------------------------------------------------------------------------------------------------


def _holes(holes: DataFrame, limit: int) -> Section:
    latest = holes.where("is_latest").orderBy(sf.desc("bytes"), "topic", "subscription").cache()
    try:
        count, risky = latest.count(), latest.where(sf.col("risk").isin(*_RISKS)).count()
        rows = latest.select(*HOLES_SHOWN).limit(_MAX_ROWS).collect()
    finally:
        latest.unpersist()
    figures = [
        figure("subscriptions", f"{count:,}"),
        figure("near the gate, or beyond", f"{risky:,}", is_bad=risky > 0),
    ]
    named = [(f"{row.subscription} of {row.topic}", row.bytes) for row in rows[:20]]
    plots = [bars("Persisted size of the acknowledgement state", named, value=size)]
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows[:_MAX_SERIES]:
        same = holes.where((sf.col("topic") == row.topic) & (sf.col("subscription") == row.subscription))
        points = [(each.at_ms, each.bytes) for each in same.where("at_ms is not null").orderBy("at_ms").collect()]
        if len(points) > 1:
            series[f"{row.subscription} of {row.topic}"] = points
    if series:
        top = max(value for points in series.values() for _, value in points)
        mark = limit if limit > 0 and top > limit / 4 else None
        plots.append(lines("Bytes over time", series, y=size, mark=mark))
    plots.append(table("Subscriptions, largest first", HOLES_SHOWN, rows, count - len(rows)))
    text = "Unacknowledged ranges between acknowledged ones. The gate holds new messages back at 7/8 of the limit."
    return Section("holes", "Holes", text, figures, plots)
