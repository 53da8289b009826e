"""A report on traces, and on acknowledgement holes and a plan where there are some: one HTML file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from ..cursor._gate import DEFAULT_LIMIT
from ..errors import InvalidArgumentError
from ._accuracy import accuracy
from ._checks import require_columns
from ._plots import bars, lines, size
from ._report_page import Fact, Page, Section, Table, render
from ._report_traces import attempts, extent_of, lateness, overview
from ._retries import retries
from .schemas import TRACE

_MOST_ROWS: Final = 50
_MOST_SERIES: Final = 6
_LEFT_OUT: Final = {"chains"}
"""One row for each message."""
_RISKS: Final = ("over", "paused", "near")
_HOLES: Final = (
    *("topic", "subscription", "risk", "limit_share", "bytes", "bytes_per_s", "ranges", "holes", "unacked_below"),
    *("backlog", "oldest_ledger", "oldest_entry", "pinned_ledgers", "pinned_bytes", "ranges_lost"),
)


def report(
    traces: DataFrame,
    *,
    holes: DataFrame | None = None,
    plan: DataFrame | None = None,
    title: str = "pulsar-nack report",
    limit: int = DEFAULT_LIMIT,
) -> str:
    """Return a report as HTML that needs no other file, no script and no network.

    The traces are read several times: cache them where that is dear. What is collected is small however many there are.

    :param traces: rows of :data:`~pulsar_nack.pipeline.schemas.TRACE`
    :param holes: what :func:`~pulsar_nack.pipeline.holes` returns
    :param plan: what :func:`~pulsar_nack.pipeline.plan` returns
    :param limit: that of ``holes``, to draw it
    :raises InvalidArgumentError: the traces lack a column
    """
    require_columns(traces, TRACE)
    extent = extent_of(traces)
    sections = [overview(traces, extent)]
    facts, plots = lateness(traces, extent)
    text = "How far from its deadline each message came back; negative: early."
    sections.append(Section("accuracy", "Accuracy", text, facts, plots, list(_tables(accuracy(traces)))))
    text = "How often messages were refused, which never succeed, and when there were more than usual."
    sections.append(Section("retries", "Retries", text, (), attempts(traces), list(_tables(retries(traces)))))
    if holes is not None:
        sections.append(_holes(holes, limit))
    if plan is not None:
        text = "Memory for pending nacks by the width of buckets."
        sections.append(Section("plan", "Plan", text, tables=list(_tables(plan))))
    return render(Page(title, "Times are UTC.", sections))


def write_report(html: str, path: str | PathLike[str], *, overwrite: bool = False) -> None:
    """Write a report; the file is there as a whole, or not at all.

    :raises InvalidArgumentError: it exists and is not to be overwritten, or cannot be written
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


def _holes(holes: DataFrame, limit: int) -> Section:
    latest = holes.where("is_latest").orderBy(F.desc("bytes"), "topic", "subscription").cache()
    try:
        count, risky = latest.count(), latest.where(F.col("risk").isin(*_RISKS)).count()
        rows = latest.select(*_HOLES).limit(_MOST_ROWS).collect()
    finally:
        latest.unpersist()
    facts = [
        Fact("subscriptions", f"{count:,}"),
        Fact("near the gate, or beyond", f"{risky:,}", is_bad=risky > 0),
    ]
    named = [(f"{row.subscription} of {row.topic}", row.bytes) for row in rows[:20]]
    plots = [bars("Bytes that persisting the acknowledgement state takes", named, value=size)]
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows[:_MOST_SERIES]:
        same = holes.where((F.col("topic") == row.topic) & (F.col("subscription") == row.subscription))
        points = [(each.at_ms, each.bytes) for each in same.where("at_ms is not null").orderBy("at_ms").collect()]
        if len(points) > 1:
            series[f"{row.subscription} of {row.topic}"] = points
    if series:
        top = max(value for points in series.values() for _, value in points)
        mark = limit if limit > 0 and top > limit / 4 else None
        plots.append(lines("Bytes over time", series, y=size, mark=mark))
    table = Table("Subscriptions, largest first", _HOLES, [tuple(row) for row in rows], count - len(rows))
    text = "What acknowledgements out of order leave behind. The gate holds new messages back at 7/8 of the limit."
    return Section("holes", "Holes", text, facts, plots, [table])


def _tables(result: Any) -> Iterator[Table]:
    """Return a table for each DataFrame of a job's result."""
    for name, frame in _frames(result):
        rows = frame.limit(_MOST_ROWS + 1).collect()
        more = frame.count() - _MOST_ROWS if len(rows) > _MOST_ROWS else 0
        yield Table(name, frame.columns, [tuple(row) for row in rows[:_MOST_ROWS]], more)


def _frames(result: Any) -> Iterator[tuple[str, DataFrame]]:
    if isinstance(result, DataFrame):
        yield "", result
        return
    named: Mapping[str, Any] = result._asdict()
    for name, each in named.items():
        if name not in _LEFT_OUT:
            yield name.replace("_", " ").capitalize(), each
