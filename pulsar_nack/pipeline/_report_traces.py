"""What a report shows of traces: summaries that Spark makes, small enough for a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from ._plots import bars, lines, moment, number, span
from ._report_page import Fact, Section

_STEPS: Final = 120
_NICE_MS: Final = (
    *(100, 1_000, 5_000, 10_000, 30_000, 60_000, 300_000, 900_000, 3_600_000, 14_400_000, 86_400_000),
    *(604_800_000, 2_592_000_000),
)
_SHARES: Final = (0.5, 0.99, 1.0)
_EDGES_MS: Final = (-10_000, -1_000, -100, -10, 0, 10, 50, 100, 500, 1_000, 10_000, 60_000)
_MOST_REASONS: Final = 15
_MOST_ATTEMPTS: Final = 20
_IDENTITY: Final = ("topic", "partition", "subscription", "ledger", "entry", "batch_index")
_BAD_LATE_MS: Final = 1_000


class Extent(NamedTuple):
    """How many events there are, of which kinds, of how many messages, and from when to when."""

    events: int
    nacks: int
    redeliveries: int
    arrivals: int
    errors: int
    dead_letters: int
    messages: int
    topics: int
    first_ms: int | None
    last_ms: int | None

    @property
    def step_ms(self) -> int:
        """Return the width of a step of time, so that there are some hundred."""
        length = (self.last_ms or 0) - (self.first_ms or 0)
        return next((each for each in _NICE_MS if each * _STEPS >= length), _NICE_MS[-1])


def extent_of(traces: DataFrame) -> Extent:
    """Return the extent of traces."""
    is_dead = (F.col("event") == "ack") & (F.col("reason") == "dead-letter")
    (row,) = traces.agg(
        F.count("*"),
        *(_events(name) for name in ("nack", "redeliver", "arrive", "error")),
        F.count_if(is_dead),
        F.approx_count_distinct(F.struct(*_IDENTITY)),
        F.approx_count_distinct("topic"),
        F.min("time_ms"),
        F.max("time_ms"),
    ).collect()
    return Extent(*row)


def overview(traces: DataFrame, extent: Extent) -> Section:
    """Return what happened, over time, and why messages were refused."""
    step = F.floor(F.col("time_ms") / extent.step_ms) * extent.step_ms
    counted = traces.groupBy(step.alias("at")).agg(*(_events(name).alias(name) for name in _LINES))
    rows = counted.orderBy("at").collect()
    series = {title: [(row.at, row[name]) for row in rows] for name, title in _LINES.items()}
    facts = [
        Fact("events", number(extent.events)),
        Fact("messages, about", number(extent.messages)),
        Fact("topics, about", number(extent.topics)),
        Fact("nacks", number(extent.nacks)),
        Fact("redeliveries", number(extent.redeliveries)),
        Fact("arrivals", number(extent.arrivals)),
        Fact("errors", number(extent.errors), is_bad=extent.errors > 0),
        Fact("dead letters", number(extent.dead_letters), is_bad=extent.dead_letters > 0),
    ]
    plots = [lines(f"Events in each {span(extent.step_ms)}", {name: each for name, each in series.items() if each})]
    reasons = traces.where("event = 'nack'").groupBy("reason").count().orderBy(F.desc("count"), "reason")
    top = [(row.reason or "(no reason given)", row["count"]) for row in reasons.limit(_MOST_REASONS).collect()]
    plots.append(bars("Reasons of nacks", top))
    when = "No events" if extent.first_ms is None else f"{moment(extent.first_ms)} to {moment(extent.last_ms or 0)} UTC"
    return Section("overview", "Overview", f"{when}.", facts, plots)


def lateness(traces: DataFrame, extent: Extent) -> tuple[Sequence[Fact], Sequence[str]]:
    """Return facts and plots of how late messages arrived; where no arrival is traced, how late they were asked for."""
    event = "arrive" if extent.arrivals else "redeliver"
    timed = traces.where((F.col("event") == event) & F.col("deadline_ms").isNotNull() & F.col("actual_ms").isNotNull())
    timed = timed.select("time_ms", (F.col("actual_ms") - F.col("deadline_ms")).alias("late_ms"))
    shares = F.percentile("late_ms", list(_SHARES))
    (whole,) = timed.agg(shares.alias("p"), F.count("*").alias("n"), F.min("late_ms").alias("low")).collect()
    if not whole.n:
        return [Fact("messages that came back", "0")], []
    facts = [
        Fact("median lateness", span(whole.p[0])),
        Fact("99 of 100 within", span(whole.p[1]), is_bad=whole.p[1] > _BAD_LATE_MS),
        Fact("latest", span(whole.p[2]), is_bad=whole.p[2] > _BAD_LATE_MS),
        Fact("earliest", span(whole.low), is_bad=whole.low < -_BAD_LATE_MS),
    ]
    step = F.floor(F.col("time_ms") / extent.step_ms) * extent.step_ms
    over_time = timed.groupBy(step.alias("at")).agg(shares.alias("p")).orderBy("at").collect()
    names = ("median", "99 of 100", "latest")
    series = {name: [(row.at, row.p[index]) for row in over_time] for index, name in enumerate(names)}
    counted = {row.bin: row["count"] for row in timed.groupBy(_bin().alias("bin")).count().collect()}
    histogram = [(_bin_name(index), counted.get(index, 0)) for index in range(min(counted), max(counted) + 1)]
    word = "Lateness of arrivals" if event == "arrive" else "Lateness of requests for redelivery"
    return facts, [lines(f"{word} in each {span(extent.step_ms)}", series, y=span), bars(word, histogram)]


def attempts(traces: DataFrame) -> Sequence[str]:
    """Return a plot of how often messages were refused."""
    per_message = traces.where("event = 'nack'").groupBy(*_IDENTITY).count()
    shown = F.least("count", F.lit(_MOST_ATTEMPTS))
    rows = per_message.groupBy(shown.alias("nacks")).count().orderBy("nacks").collect()
    named = [(_times(row.nacks), row["count"]) for row in rows]
    return [bars("Messages by how often they were nacked", named)]


_LINES: Final = {"nack": "nacks", "redeliver": "redeliveries", "arrive": "arrivals", "error": "errors"}


def _events(name: str) -> Column:
    return F.count_if(F.col("event") == name)


def _bin() -> Column:
    """Return how many edges a lateness is not below."""
    late = F.col("late_ms")
    parts = [F.when(late >= edge, 1).otherwise(0) for edge in _EDGES_MS]
    return sum(parts[1:], parts[0])


def _bin_name(index: int) -> str:
    if index == 0:
        return f"early by more than {span(-_EDGES_MS[0])}"
    if index == len(_EDGES_MS):
        return f"{span(_EDGES_MS[-1])} late and more"
    return f"{span(_EDGES_MS[index - 1])} to {span(_EDGES_MS[index])}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times{' or more' if count == _MOST_ATTEMPTS else ''}"
