"""Builds traces from rows with only the relevant columns, and turns tables back into rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Tables = dict[str, list[Any]]
"""The rows of each table that a job returns."""

PLAIN: Final[dict[str, Any]] = {
    "v": 1, "event": "nack", "time_ms": 0, "mono_ns": 0, "topic": "t", "partition": -1, "subscription": "s",
    "consumer": "c", "ledger": 3, "entry": 0, "batch_index": -1, "attempt": 0, "delay_ms": None, "deadline_ms": None,
    "actual_ms": None, "reason": None,
}  # fmt: skip


def events(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    """Return a trace; a missing column has the value of a plain message."""
    from pulsar_nack.pipeline.schemas import TRACE

    wrong = {name for row in rows for name in row} - PLAIN.keys()
    assert not wrong, wrong
    return spark.createDataFrame([tuple((PLAIN | row).values()) for row in rows], TRACE)


def collected(found: Any) -> Tables:
    """Return the rows of all tables that a job returns."""
    return {name: table.collect() for name, table in found._asdict().items()}


def of_topics(rows: Iterable[Any], *topics: str, columns: str = "") -> list[tuple[Any, ...]]:
    """Return the rows of some topics in order; some columns of them, or all."""
    chosen = [row for row in rows if row.topic in topics]
    found = [tuple(row[name] for name in columns.split()) if columns else tuple(row) for row in chosen]
    return sorted(found, key=repr)


def check_rows(df: DataFrame, expected: Iterable[tuple[Any, ...]], columns: str | None = None) -> None:
    """Compare a table with rows in any order, and its columns with their names and types."""
    if columns is not None:
        assert ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in df.schema.fields) == columns
    assert sorted(map(tuple, df.collect()), key=repr) == sorted(expected, key=repr)
