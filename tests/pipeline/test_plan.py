"""The plan of bucket widths from recorded nacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pulsar_nack import InvalidArgumentError, MessageId, NackConfig, NackSchedule, pipeline
from pulsar_nack.pipeline._plan import measure_index, plan_rows
from pulsar_nack.planning import Kind

from .rows import events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def nacks(spark: SparkSession, rows: list[tuple[str, str, int, int, int, int]]) -> DataFrame:
    """Return a trace of nacks: topic, subscription, time, delay, ledger, entry; and an event that is not a nack."""
    found: list[dict[str, Any]] = [
        {"topic": topic, "subscription": subscription, "time_ms": time, "delay_ms": delay, "deadline_ms": time + delay}
        | {"partition": 0, "ledger": ledger, "entry": entry}
        for topic, subscription, time, delay, ledger, entry in rows
    ]
    return events(spark, *found, {"event": "ack", "time_ms": 5, "topic": "a", "partition": 0, "reason": "ack"})


def by_stream(df: DataFrame) -> dict[tuple[Any, ...], list[Any]]:
    """Return the rows of each stream, in order of bits."""
    found: dict[tuple[Any, ...], list[Any]] = {}
    for row in df.orderBy("bits").collect():
        found.setdefault((row.topic, row.partition, row.subscription), []).append(row)
    return found


def test_measures_what_the_schedule_takes() -> None:
    """The figures are those of a schedule that holds the same."""
    for bits in (0, 8, 12):
        schedule = NackSchedule(NackConfig(negative_ack_precision_bit_cnt=bits))
        arrivals = [(time, 60_000 + time % 7, time // 500, time % 500, 0, -1) for time in range(10_000)]
        for time, delay, ledger, entry, partition, index in arrivals:
            schedule.add(MessageId(ledger, entry, partition, index), time, delay)
        found = measure_index(Kind.NACK, bits, 10_000, arrivals)
        assert (found.bits, found.pending, found.bytes) == (bits, 10_000, schedule.bytes)
        assert (found.entries, found.ledgers, found.last_ms) == (10_000, 20, 59_999 + 9_999 % 7)
        assert 0 <= found.early_ms < 1 << bits


@pytest.mark.slow
@pytest.mark.parametrize("every", [25, 1])
@pytest.mark.parametrize("kind", list(Kind))
def test_recommends_as_the_formulas_do_for_a_steady_stream(kind: Kind, every: int) -> None:
    """A steady stream in order with one delay gets about the predicted bytes, and one recommendation."""
    measured = []
    for bits in range(15):
        arrivals = ((time, 60_000, time // 5_000, time % 5_000 // every, -1, -1) for time in range(0, 60_000, every))
        measured.append(measure_index(kind, bits, 60_000, arrivals))
    planned = plan_rows(kind, measured)
    assert [each["bits"] for each in planned] == list(range(15))
    (best,) = [each for each in planned if each["is_recommended"]]
    assert best["reason"] is not None
    assert "Set " in best["reason"]
    assert best["width_ms"] * 8 <= 60_000
    for each in planned[6:]:
        assert each["bytes"] == pytest.approx(each["predicted_bytes"], rel=0.5)


def test_moment_with_most_is_found(spark: SparkSession) -> None:
    """For each topic and subscription the moment counts at which most wait; the waiting ids are counted exactly."""
    rows = [("a", "s", 1_000 * each, 16_000, 7, each) for each in range(100)]  # 16 wait at any time
    rows += [("a", "s", 50_500, 16_000, 8, entry) for entry in range(40)]  # and 40 more for 16 s
    rows += [("a", "t", 0, 100, 7, 0), ("b", "s", 0, 5_000, 7, 0), ("b", "s", 0, 0, 7, 1)]
    found = by_stream(pipeline.plan(nacks(spark, rows), max_bits=12))
    assert sorted(found) == [("a", -1, "s"), ("a", -1, "t"), ("b", -1, "s")]
    busy = found["a", -1, "s"]
    assert [row.bits for row in busy] == list(range(13))
    assert {row.pending for row in busy} == {56}
    assert 50_500 < busy[0].at_ms <= 66_500
    assert {row.pending for row in found["a", -1, "t"] + found["b", -1, "s"]} == {1}
    assert [sum(row.is_recommended for row in each) for each in found.values()] == [1, 1, 1]


def test_delayed_messages_are_planned_by_topic_and_partition(spark: SparkSession) -> None:
    """Metadata give a plan of ticks; undelayed messages and negative numbers are left out."""
    from pulsar_nack.pipeline.schemas import METADATA

    rows = [("t", number % 2, 3, number, -1, number, number + 10_000, 0) for number in range(200)]
    rows += [("t", 0, 3, 900, -1, 50, 50, 0), ("t", 0, 3, 901, -1, -10, 2**63 - 1, 0)]
    rows += [("t", 0, -3, 902, -1, 50, 10_050, 0), ("t", 0, 3, -903, -1, 50, 10_050, 0)]
    df = pipeline.plan(spark.createDataFrame(rows, METADATA), max_bits=10)
    assert df.schema == pipeline.PLAN
    found = by_stream(df)
    assert sorted(found) == [("t", 0, ""), ("t", 1, "")]
    assert {row.pending for each in found.values() for row in each} == {100}
    assert {row.kind for each in found.values() for row in each} == {"delayed"}
    (best,) = [row for row in found["t", 0, ""] if row.is_recommended]
    assert "delayedDeliveryTickTimeMillis" in best.reason


def test_nothing_is_planned_for_nothing(spark: SparkSession) -> None:
    """Without a nack there is no row."""
    assert pipeline.plan(nacks(spark, []), max_bits=3).collect() == []


def test_arguments_are_checked(spark: SparkSession) -> None:
    """An invalid width or kind is refused by its name, and missing columns by theirs, before any work."""
    from pulsar_nack.pipeline.schemas import METADATA

    df = nacks(spark, [])
    wrong: list[dict[str, Any]] = [{"max_bits": -1}, {"max_bits": 31}, {"max_bits": 2.0}, {"kind": "other"}]
    for arguments in wrong:
        with pytest.raises(InvalidArgumentError, match=next(iter(arguments))):
            pipeline.plan(df, **arguments)
    with pytest.raises(InvalidArgumentError, match="delay_ms"):
        pipeline.plan(df.drop("delay_ms"))
    with pytest.raises(InvalidArgumentError, match="publish_time"):
        pipeline.plan(spark.createDataFrame([], METADATA).drop("publish_time"))
