"""The data source: tables and streams over trace folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pulsar_nack import pipeline
from tests.patience import patience

from .rows import PLAIN, check_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BROKEN = ("{", "", "[1]", json.dumps(PLAIN | {"v": 2}), json.dumps(PLAIN | {"entry": "x"}), json.dumps({"v": 1}),
          json.dumps(PLAIN | {"time_ms": -1}), json.dumps(PLAIN | {"partition": 2**31}),
          json.dumps(PLAIN | {"event": "naq"}), json.dumps(PLAIN | {"delay_ms": -5}))  # fmt: skip


def write(folder: Path, writer: str, number: int, entries: range, *more: str, suffix: str = "") -> Path:
    """Write a trace file with a nack for each of these entries, and more lines."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"trace-{1_000 + number}-{writer}-{number}.jsonl{suffix}"
    lines = [*(json.dumps(PLAIN | {"entry": entry}) for entry in entries), *more]
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def test_a_folder_is_a_table(spark: SparkSession, tmp_path: Path) -> None:
    """The source gives the same events and the same quarantine as the reader, however files are cut into pieces."""
    write(tmp_path, "aa", 0, range(50), *BROKEN)
    write(tmp_path / "more", "bb", 3, range(50, 60))
    write(tmp_path, "aa", 1, range(100, 200), suffix=".open")
    source = spark.read.format("pulsar_nack_trace").option("partitionBytes", "1000").load(str(tmp_path))
    found, expected = pipeline.split_source(source), pipeline.read_traces(spark, tmp_path)
    assert source.rdd.getNumPartitions() > 10
    for one, other in zip(found, expected, strict=True):
        assert [(each.name, each.dataType) for each in one.schema] == [
            (each.name, each.dataType) for each in other.schema
        ]
        check_rows(one, map(tuple, other.collect()))


def test_a_stream_gives_each_line_once(spark: SparkSession, tmp_path: Path) -> None:
    """Files are read once they are closed; restarts from the checkpoint neither repeat nor leave out a line."""
    traces, seen = tmp_path / "traces", tmp_path / "seen"

    def run() -> list[int]:
        stream = pipeline.split_source(spark.readStream.format("pulsar_nack_trace").load(str(traces))).traces
        writer = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.option("path", str(seen)).trigger(availableNow=True).start()
        assert query.awaitTermination(int(patience(50)))
        return sorted(row.entry for row in spark.read.schema("entry long").parquet(str(seen)).collect())

    write(traces, "aa", 0, range(3))
    path = write(traces, "bb", 0, range(10, 12), suffix=".open")
    assert run() == [0, 1, 2]
    path.rename(path.with_suffix(""))
    write(traces, "aa", 1, range(3, 5))
    write(traces, "cc", 7, range(20, 21))
    assert run() == [0, 1, 2, 3, 4, 10, 11, 20]
    assert run() == [0, 1, 2, 3, 4, 10, 11, 20]


@pytest.mark.slow  # it imports PySpark
def test_pieces_are_dealt_out(tmp_path: Path) -> None:
    """Small files share a task, large ones are cut, and every byte is in just one piece."""
    from pulsar_nack.pipeline._source import closed_files, deal

    for number in range(5):
        write(tmp_path, "aa", number, range(2))
    large = write(tmp_path, "bb", 0, range(100))
    files = closed_files(str(tmp_path))
    tasks = deal(files, 2_000)
    sizes = [sum(piece.stop - piece.start for piece in task.pieces) for task in tasks]
    assert sum(sizes) == sum(file.size for file in files)
    assert max(sizes) <= 2_000
    assert len(tasks) < len(files) + large.stat().st_size // 2_000
    assert deal([], 10) == []


def test_wrong_options_are_named(spark: SparkSession, tmp_path: Path) -> None:
    """An option out of range is refused by its name."""
    wrong: list[dict[str, Any]] = [{"path": "/nowhere/at/all"}, {"partitionBytes": "0"}]
    for options in wrong:
        with pytest.raises(Exception, match=f"{next(iter(options))}: expected"):
            spark.read.format("pulsar_nack_trace").options(**{"path": str(tmp_path)} | options).load().collect()
