"""Events as rows, told by what matters of them."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from pulsar_nack.pipeline.schemas import TRACE

PLAIN: Final[dict[str, Any]] = {
    "v": 1, "event": "nack", "time_ms": 0, "mono_ns": 0, "topic": "t", "partition": -1, "subscription": "s",
    "consumer": "c", "ledger": 3, "entry": 0, "batch_index": -1, "attempt": 0, "delay_ms": None, "deadline_ms": None,
    "actual_ms": None, "reason": None,
}  # fmt: skip


def events(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    """Return a trace; what a row does not tell is that of a plain message."""
    wrong = {name for row in rows for name in row} - PLAIN.keys()
    assert not wrong, wrong
    return spark.createDataFrame([tuple((PLAIN | row).values()) for row in rows], TRACE)
