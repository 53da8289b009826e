"""The stored trace of a run on a real broker, through the reader and each job.

The figures were counted once from its lines with plain dicts and lists, without any code of the library.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pulsar_nack import pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SAMPLE = Path(__file__).parent / "data" / "trace-sample"
ORDERS, INVOICES = (f"persistent://public/default/{name}" for name in ("orders", "invoices"))


@pytest.fixture(scope="module")
def traces(spark: SparkSession) -> DataFrame:
    """Return the sample, of which no line is refused."""
    read = pipeline.read_traces(spark, SAMPLE)
    assert read.refused() == {}
    return read.traces.cache()


def rows_of(df: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """Return some columns of a table, in order, numbers with a fraction to 2 digits."""
    rows = sorted(tuple(row) for row in df.select(*columns).collect())
    return [tuple(round(each, 2) if isinstance(each, float) else each for each in row) for row in rows]


def test_events(traces: DataFrame) -> None:
    """Each kind of event is there as often as in the files."""
    found = traces.groupBy("topic", "event").count()
    assert rows_of(found, "topic", "event", "count") == [
        (INVOICES, "ack", 40),
        (INVOICES, "arrive", 67),
        (INVOICES, "cancel", 2),
        (INVOICES, "hold", 8),
        (INVOICES, "nack", 28),
        (INVOICES, "redeliver", 26),
        (ORDERS, "ack", 40),
        (ORDERS, "arrive", 70),
        (ORDERS, "cancel", 3),
        (ORDERS, "nack", 32),
        (ORDERS, "redeliver", 29),
    ]


def test_accuracy(traces: DataFrame) -> None:
    """How early and late the 55 redelivered messages came, by class of delay and attempt."""
    found = pipeline.accuracy(traces, early=0.1, late=0.1)
    columns = ("topic", "delay_class", "attempt", "arrivals", "invalid", "early", "late")
    figures = ("min_ms", "mean_ms", "p50_ms", "p90_ms", "p99_ms", "max_ms")
    assert rows_of(found.lateness, *columns, *figures) == [
        (INVOICES, "0-1 s", 1, 18, 0, 0, 0, -22, -14.06, -17.5, -3.7, 0.32, 1),
        (INVOICES, "1-10 s", 1, 5, 0, 0, 0, -64, -63.2, -63.0, -63.0, -63.0, -63),
        (INVOICES, "1-10 s", 2, 2, 0, 0, 0, -50, -26.5, -26.5, -7.7, -3.47, -3),
        (INVOICES, "1-10 s", 3, 1, 0, 0, 0, -90, -90.0, -90.0, -90.0, -90.0, -90),
        (ORDERS, "0-1 s", 1, 11, 0, 0, 3, -4, 51.73, 20.0, 153.0, 153.9, 154),
        (ORDERS, "0-1 s", 2, 5, 0, 0, 0, -20, -0.4, 0.0, 15.8, 24.08, 25),
        (ORDERS, "0-1 s", 3, 1, 0, 0, 0, -15, -15.0, -15.0, -15.0, -15.0, -15),
        (ORDERS, "1-10 s", 1, 10, 0, 0, 0, -86, -70.8, -68.5, -64.6, -61.36, -61),
        (ORDERS, "1-10 s", 2, 2, 0, 1, 0, -112, -106.0, -106.0, -101.2, -100.12, -100),
    ]
    beyond = rows_of(found.beyond, "topic", "attempt", "lateness_ms")
    assert (beyond[-1], len(beyond)) == ((ORDERS, 2, -112), 4)
    assert found.starvation.collect() == []


def test_retries(traces: DataFrame) -> None:
    """The outcomes of the 49 nacked messages, two of which were left when the consumers closed."""
    found = pipeline.retries(traces)
    columns = ("topic", "outcome", "nacks", "messages", "span_ms")
    assert rows_of(found.attempts, *columns) == [
        (INVOICES, "acked", 1, 22, 625.09),
        (INVOICES, "acked", 2, 1, 1_693.0),
        (INVOICES, "acked", 3, 1, 3_353.0),
        (INVOICES, "open", 1, 1, 1.0),
        (ORDERS, "acked", 1, 16, 648.88),
        (ORDERS, "acked", 2, 6, 1_922.0),
        (ORDERS, "acked", 3, 1, 1_829.0),
        (ORDERS, "open", 1, 1, 0.0),
    ]
    waste = rows_of(found.waste, "topic", "arrivals", "acked", "nacked", "held", "after_ack", "wasted")
    assert waste == [(INVOICES, 67, 40, 28, 0, 0, 0.4), (ORDERS, 70, 40, 32, 0, 0, 0.43)]
    total = found.chains.groupBy("topic").sum("redeliveries", "asked_again", "asked_ms")
    assert rows_of(total, *total.columns) == [(INVOICES, 26, 0, 79_700), (ORDERS, 29, 0, 85_800)]
    for empty in (found.poison, found.storms, found.dead_letters):
        assert empty.collect() == []


def test_plan(traces: DataFrame) -> None:
    """When most waited, how many, and in how many buckets: those of wide ones stay an eighth of the delay."""
    found = pipeline.plan(traces, max_bits=8)
    columns = ("topic", "bits", "at_ms", "pending", "delay_ms", "buckets", "early_ms")
    wanted = found.where("bits in (0, 4, 5, 6, 8)")
    assert rows_of(wanted, *columns) == [
        (INVOICES, 0, 1_795_869_016_155, 24, 633.33, 15, 0.0),
        (INVOICES, 4, 1_795_869_016_155, 24, 633.33, 4, 9.33),
        (INVOICES, 5, 1_795_869_016_155, 24, 633.33, 4, 12.67),
        (INVOICES, 6, 1_795_869_016_155, 24, 633.33, 4, 12.67),
        (INVOICES, 8, 1_795_869_016_155, 24, 633.33, 4, 12.67),
        (ORDERS, 0, 1_795_869_010_360, 23, 926.09, 12, 0.0),
        (ORDERS, 4, 1_795_869_010_360, 23, 926.09, 6 + 1, 8.39),  # one is in two parts, and counts as two
        (ORDERS, 5, 1_795_869_010_360, 23, 926.09, 5 + 1, 9.78),
        (ORDERS, 6, 1_795_869_010_360, 23, 926.09, 4 + 1, 12.57),
        (ORDERS, 8, 1_795_869_010_360, 23, 926.09, 4 + 1, 12.57),
    ]
    assert sorted(row.topic for row in found.where("is_recommended").collect()) == [INVOICES, ORDERS]
