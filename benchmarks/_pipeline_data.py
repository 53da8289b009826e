"""Traces, metadata and holes that Spark generates, in any number and the same each time."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from pulsar_nack.pipeline.schemas import HOLES, TRACE

START_MS = 1_700_000_000_000
PARTS = 16
IN_LEDGER = 50_000
EVENTS = ("nack", "redeliver", "arrive", "ack")
DELAYS_MS = (1_000, 10_000, 60_000, 600_000)


def metadata(spark: SparkSession, rows: int) -> DataFrame:
    """Return messages in order of position, 50 000 per ledger, with times scattered over an hour."""
    number = f.col("id")
    return spark.range(0, rows, 1, PARTS).select(
        f.floor(number / IN_LEDGER).cast("long").alias("ledger_id"),
        (number % IN_LEDGER).alias("entry_id"),
        (START_MS + f.pmod(f.xxhash64("id"), f.lit(3_600_000))).alias("deliver_at"),
    )


def trace(spark: SparkSession, events: int) -> DataFrame:
    """Return a trace of 10 000 messages a second on 8 topics, each nacked, requested, redelivered and acknowledged.

    One in a hundred is nacked repeatedly, at the same position (it has the number of another message).
    """
    number = f.floor(f.col("id") / len(EVENTS)).cast("long")
    kind = (f.col("id") % len(EVENTS)).cast("int")
    message = f.when(number % 100 == 0, number - number % 1_000).otherwise(number)
    chance = f.pmod(f.xxhash64(number), f.lit(1_000))
    delay = f.element_at(f.array(*map(f.lit, DELAYS_MS)), (1 + message % len(DELAYS_MS)).cast("int")).cast("long")
    nacked = START_MS + f.floor(number / 10).cast("long")
    late = f.when(chance < 10, 50 * chance).otherwise(chance / 40).cast("long")
    is_nack, is_ack, comes = kind == 0, kind == 3, kind.isin(1, 2)
    actual = nacked + delay + late + f.when(kind == 2, 3).otherwise(0)
    time = f.when(is_nack, nacked).when(is_ack, nacked + delay + late + 20).otherwise(actual)
    attempt = f.when(number % 100 == 0, (number % 1_000) / 100).otherwise(0) + f.when(is_nack, 0).otherwise(1)
    columns: dict[str, Column] = {
        "v": f.lit(1),
        "event": f.element_at(f.array(*map(f.lit, EVENTS)), kind + 1),
        "time_ms": time,
        "mono_ns": time * 1_000_000,
        "topic": f.concat(f.lit("persistent://public/default/topic-"), message % 8),
        "partition": f.lit(-1),
        "subscription": f.lit("worker"),
        "consumer": f.concat(f.lit("c"), message % 3),
        "ledger": f.floor(message / IN_LEDGER).cast("long"),
        "entry": message % IN_LEDGER,
        "batch_index": f.lit(-1),
        "attempt": attempt.cast("int"),
        "delay_ms": f.when(is_nack, delay),
        "deadline_ms": f.when(is_nack | comes, nacked + delay),
        "actual_ms": f.when(comes, actual),
        "reason": f.when(is_nack, "TimeoutError").when(is_ack, f.when(chance < 5, "dead-letter").otherwise("ack")),
    }
    made = spark.range(0, events, 1, PARTS)
    return made.select(*(columns[each.name].cast(each.dataType).alias(each.name) for each in TRACE.fields))


def holes(spark: SparkSession, rows: int) -> DataFrame:
    """Return acknowledged ranges of 1 000 subscriptions: one or two entries in every four."""
    number = f.col("id")
    in_ledger = IN_LEDGER // 4
    columns: dict[str, Column] = {
        "topic": f.concat(f.lit("persistent://public/default/topic-"), f.floor(number / in_ledger) % 100),
        "subscription": f.concat(f.lit("s"), f.floor(number / in_ledger) % 1_000),
        "ledger": f.floor(number / in_ledger),
        "first": 4 * (number % in_ledger),
        "last": 4 * (number % in_ledger) + number % 2,
        "at_ms": f.lit(START_MS),
        "kind": f.lit("acked"),
    }
    made = spark.range(0, rows, 1, PARTS)
    found = [columns.get(each.name, f.lit(None)).cast(each.dataType).alias(each.name) for each in HOLES.fields]
    return made.select(*found)
