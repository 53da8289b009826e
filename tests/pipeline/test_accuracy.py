"""Accuracy of redelivery: rows in, rows out."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from pulsar_nack.errors import InvalidArgumentError
from pulsar_nack.pipeline import accuracy

from .rows import events


def arrived(entry: int, nacked: int, delay: int, actual: int, **more: Any) -> list[dict[str, Any]]:
    """Return a nack of an entry and its arrival."""
    where = {"entry": entry, **more}
    deadline = nacked + delay
    return [
        {"event": "nack", "time_ms": nacked, "delay_ms": delay, "deadline_ms": deadline, "attempt": 0, **where},
        {"event": "arrive", "time_ms": actual, "deadline_ms": deadline, "actual_ms": actual, "attempt": 1, **where},
    ]


def test_lateness_by_group(spark: SparkSession) -> None:
    """Lateness is told for each topic, subscription, class of delays and attempt; first deliveries are not arrivals."""
    df = events(
        spark,
        {"event": "arrive", "time_ms": 0, "entry": 0, "actual_ms": 0},
        *arrived(0, 100, 1_000, 1_100),
        *arrived(1, 100, 1_000, 1_110),
        *arrived(2, 100, 1_000, 90),
        *arrived(3, 100, 1_001, 5_000),
        *arrived(4, 100, 500, 600, topic="u", batch_index=2),
        {"event": "arrive", "time_ms": 70, "entry": 5, "deadline_ms": 60, "actual_ms": 70, "attempt": 3},
        {"event": "arrive", "time_ms": 70, "entry": 6, "deadline_ms": -7, "actual_ms": 70, "attempt": 3},
    )
    found = accuracy(df, percentiles=[0.5, 1], early=0.5).lateness
    assertDataFrameEqual(
        found,
        spark.createDataFrame(
            [
                ("t", "s", "0-1 s", 1, 2, 0, 0, 0, 0, 5.0, 5.0, 10.0, 10),
                ("t", "s", "unknown", 1, 1, 0, 1, 0, -1_010, -1_010.0, -1_010.0, -1_010.0, -1_010),
                ("t", "s", "1-10 s", 1, 1, 0, 0, 1, 3_899, 3_899.0, 3_899.0, 3_899.0, 3_899),
                ("t", "s", "unknown", 3, 2, 1, 0, 0, 10, 10.0, 10.0, 10.0, 10),
                ("u", "s", "0-1 s", 1, 1, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0),
            ],
            "topic string, subscription string, delay_class string, attempt int, arrivals long, invalid long, "
            "early long, late long, min_ms long, mean_ms double, p50_ms double, p100_ms double, max_ms long",
        ),
    )


def test_arrivals_beyond_the_bounds(spark: SparkSession) -> None:
    """Arrivals that are too early or too late are listed, those at the bound are not."""
    df = events(
        spark, *arrived(1, 0, 500, 600), *arrived(2, 0, 500, 601), *arrived(3, 0, 500, 450), *arrived(4, 0, 500, 449)
    )
    found = accuracy(df, early=0.05, late=0.1).beyond.select("ledger", "entry", "consumer", "lateness_ms")
    expected = spark.createDataFrame([(3, 2, "c", 101), (3, 4, "c", -51)], found.schema)
    assertDataFrameEqual(found, expected)


def starved(df: DataFrame, seconds: float) -> list[tuple[Any, ...]]:
    """Return the spans that are found, without topic and subscription."""
    rows = accuracy(df, starvation=seconds).starvation.orderBy("topic", "from_ms").collect()
    return [tuple(row)[2:] for row in rows]


def test_starvation_while_nacks_keep_coming(spark: SparkSession) -> None:
    """A timer that each nack starts anew: the first was due at 2 s, and all came at 15.2 s."""
    late = [each for k in range(10) for each in arrived(k, 1_000 + 200 * k, 1_000, 15_200 + k)]
    assert starved(events(spark, *late), 1.0) == [(2_000, 15_200, 13_200, 10, True)]
    assert starved(events(spark, *late), 14.0) == []


def test_no_starvation_while_messages_come(spark: SparkSession) -> None:
    """Nothing is reported while redeliveries go on, nothing is due, or what was due was acknowledged before."""
    steady = [each for k in range(20) for each in arrived(k, 400 * k, 1_000, 1_000 + 400 * k + 50)]
    quiet = arrived(90, 60_000, 30_000, 90_010)
    taken = [
        {"event": "nack", "time_ms": 20_000, "entry": 91, "delay_ms": 1_000, "deadline_ms": 21_000},
        {"event": "cancel", "time_ms": 20_500, "entry": 91, "reason": "ack"},
    ]
    assert starved(events(spark, *steady, *quiet, *taken), 1.0) == []


def test_starvation_up_to_the_end(spark: SparkSession) -> None:
    """What was due and never came is a span up to the last event of the subscription; what is not due yet is none."""
    df = events(
        spark,
        {"event": "nack", "time_ms": 1_000, "entry": 1, "delay_ms": 1_000, "deadline_ms": 2_000},
        {"event": "nack", "time_ms": 9_000, "entry": 2, "delay_ms": 60_000, "deadline_ms": 69_000},
        {"event": "nack", "time_ms": 9_000, "entry": 3, "delay_ms": 1, "deadline_ms": 9_001, "topic": "u"},
    )
    assert starved(df, 1.0) == [(2_000, 9_000, 7_000, 1, False)]


def test_requests_stand_for_arrivals(spark: SparkSession) -> None:
    """In traces without arrivals the lateness is that of the requests, not of those that are made again."""
    df = events(
        spark,
        {"event": "nack", "time_ms": 0, "entry": 1, "delay_ms": 100, "deadline_ms": 100},
        {"event": "redeliver", "time_ms": 103, "entry": 1, "deadline_ms": 100, "actual_ms": 103, "attempt": 1},
        {"event": "redeliver", "time_ms": 9_000, "entry": 1, "deadline_ms": 100, "actual_ms": 9_000, "attempt": 1,
         "reason": "asked again"},
    )  # fmt: skip
    found = accuracy(df, event="redeliver")
    (row,) = found.lateness.collect()
    assert (row.arrivals, row.delay_class, row.max_ms) == (1, "0-1 s", 3)
    assert found.beyond.count() == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"early": -1}, {"late": float("nan")}, {"starvation": 0}, {"delay_classes": []}, {"delay_classes": [10, 1]},
        {"percentiles": [50]}, {"percentiles": []}, {"event": "ack"}, {"late": 1e11},
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(spark: SparkSession, wrong: dict[str, Any]) -> None:
    """An argument out of range is refused by its name, before any work."""
    (name,) = wrong
    with pytest.raises(InvalidArgumentError, match=f"^{name}: "):
        accuracy(events(spark), **wrong)


def test_missing_columns_are_named(spark: SparkSession) -> None:
    """A DataFrame that is no trace is refused with the columns."""
    with pytest.raises(
        InvalidArgumentError, match=r"missing or of another type: event, time_ms.*got the columns id bigint"
    ):
        accuracy(spark.range(1))
