"""Reading traces: sound lines come out with the schema, all others in quarantine with the reason."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pulsar_nack import pipeline
from pulsar_nack.errors import InvalidArgumentError

from .rows import check_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NACK = {
    "v": 1, "event": "nack", "time_ms": 1_000, "mono_ns": 5, "topic": "t", "partition": -1, "subscription": "s",
    "consumer": "c", "ledger": 3, "entry": 4, "batch_index": -1, "attempt": 0, "delay_ms": 500, "deadline_ms": 1_500,
    "actual_ms": None, "reason": None,
}  # fmt: skip
ROW = (1, "nack", 1_000, 5, "t", -1, "s", "c", 3, 4, -1, 0, 500, 1_500, None, None)


def write(path: Path, *lines: dict[str, Any] | str) -> Path:
    """Write a trace file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in lines), "utf-8")
    return path


def test_sound_lines_come_out(spark: SparkSession, tmp_path: Path) -> None:
    """Lines of version 1 come out column for column, with keys that are not known left aside."""
    from pulsar_nack.pipeline.schemas import TRACE

    write(tmp_path / "a" / "trace-1-aa-0.jsonl", NACK, NACK | {"event": "ack", "later": [1]})
    read = pipeline.read_traces(spark, tmp_path)
    check_rows(read.traces, [ROW, (1, "ack", *ROW[2:])])
    assert [(f.name, f.dataType) for f in read.traces.schema] == [(f.name, f.dataType) for f in TRACE]
    assert read.refused() == {}


REFUSED: list[tuple[dict[str, Any] | str, str]] = [
    ("{", "not a JSON object of this schema"),
    ("", "not a JSON object of this schema"),
    ("[1, 2]", "not a JSON object of this schema"),
    (NACK | {"ledger": "three"}, "not a JSON object of this schema"),
    (NACK | {"time_ms": 2**63}, "not a JSON object of this schema"),
    (NACK | {"v": 2, "event": "new"}, "unknown version 2"),
    (NACK | {"v": None}, "v is missing"),
    ({key: value for key, value in NACK.items() if key != "topic"}, "topic is missing"),
    (NACK | {"event": "naq"}, "unknown event naq"),
    (NACK | {"time_ms": -1}, "time_ms is negative or beyond the year 9999"),
    (NACK | {"deadline_ms": 253_402_300_800_000}, "deadline_ms is negative or beyond the year 9999"),
    (NACK | {"delay_ms": -1}, "delay_ms is negative"),
]


def test_others_go_to_quarantine(spark: SparkSession, tmp_path: Path) -> None:
    """What is broken or of another version is kept as it is, with its file and the reason, and counted."""
    path = write(tmp_path / "trace-1-aa-0.jsonl", NACK, *(line for line, _ in REFUSED))
    read = pipeline.read_traces(spark, path)
    rows = [(f"file:{path}", line if isinstance(line, str) else json.dumps(line), why) for line, why in REFUSED]
    check_rows(read.quarantine, rows, "file string, line string, reason string")
    assert read.traces.count() == 1
    assert read.refused() == Counter(reason for _, reason in REFUSED)


def test_open_files_are_left_out(spark: SparkSession, tmp_path: Path) -> None:
    """A file that is still being written is read when asked for only."""
    write(tmp_path / "trace-1-aa-0.jsonl", NACK)
    write(tmp_path / "trace-1-aa-1.jsonl.open", NACK | {"entry": 9})
    assert [row.entry for row in pipeline.read_traces(spark, tmp_path).traces.collect()] == [4]
    both = pipeline.read_traces(spark, tmp_path, include_open=True)
    assert sorted(row.entry for row in both.traces.collect()) == [4, 9]


def test_parquet_is_read_beside_lines(spark: SparkSession, tmp_path: Path) -> None:
    """Parquet goes through the same checks, and a folder may hold both."""
    from pulsar_nack.pipeline.schemas import TRACE

    write(tmp_path / "trace-1-aa-0.jsonl", NACK)
    rows = [(1, "ack", *ROW[2:]), (7, "ack", *ROW[2:])]
    spark.createDataFrame(rows, TRACE).coalesce(1).write.parquet(str(tmp_path / "old.parquet"))
    read = pipeline.read_traces(spark, tmp_path)
    assert sorted(row.event for row in read.traces.collect()) == ["ack", "nack"]
    (refused,) = read.quarantine.collect()
    assert refused.reason == "unknown version 7"
    assert json.loads(refused.line) == NACK | {"v": 7, "event": "ack"}


def test_parquet_of_something_else_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Parquet without the columns of a trace is refused before any row is read, with the columns named."""
    spark.createDataFrame([(1, "x")], "v int, event string").write.parquet(str(tmp_path / "other.parquet"))
    with pytest.raises(
        InvalidArgumentError, match=r"columns v int, event string, time_ms bigint.*got .*v int, event string$"
    ):
        pipeline.read_traces(spark, tmp_path)


def test_nothing_to_read_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    """No path, one that is not there, and a folder without a trace are refused."""
    paths: list[list[str] | str] = [[], [str(tmp_path / "missing")], str(tmp_path)]
    for where in paths:
        with pytest.raises(InvalidArgumentError, match="paths"):
            pipeline.read_traces(spark, where)


def test_missing_columns_are_named(spark: SparkSession) -> None:
    """Missing columns and those of another type are named, with what is wanted and found; others are let be."""
    from pulsar_nack.pipeline.schemas import METADATA

    df = spark.createDataFrame([(1, 2, 3)], "ledger_id long, entry_id int, more long")
    with pytest.raises(InvalidArgumentError) as refused:
        pipeline.require_columns(df, METADATA, ["ledger_id", "entry_id", "deliver_at"])
    assert str(refused.value) == (
        "df: expected the columns ledger_id bigint, entry_id bigint, deliver_at bigint "
        "(missing or of another type: entry_id, deliver_at), "
        "got the columns ledger_id bigint, entry_id int, more bigint"
    )
    pipeline.require_columns(df, METADATA, ["ledger_id"])
    with pytest.raises(InvalidArgumentError, match="time_ms"):
        pipeline.check_traces(df)
