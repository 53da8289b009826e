"""The data source: tables and streams over trace folders."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pulsar_nack import pipeline
from tests.patience import patience

from .rows import PLAIN, check_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BROKEN = ("{", "", json.dumps(PLAIN | {"v": 2}), json.dumps(PLAIN | {"entry": -1}))


def write(folder: Path, writer: str, number: int, entries: range, *more: str, suffix: str = "") -> Path:
    """Write a trace file with a nack for each of these entries, and more lines."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"trace-{1_000 + number}-{writer}-{number}.jsonl{suffix}"
    lines = [*(json.dumps(PLAIN | {"entry": entry}) for entry in entries), *more]
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def test_a_folder_is_a_table(spark: SparkSession, tmp_path: Path) -> None:
    """The source gives the same events and the same quarantine as the reader, however files are split."""
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
    """Files are read once they are closed; restarts from the checkpoint neither repeat nor omit a line."""
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
def test_files_are_split_for_tasks(tmp_path: Path) -> None:
    """Small files share a task, large ones are split, and every byte is in exactly one split."""
    from pulsar_nack.pipeline._read import assign_splits, trace_files

    for number in range(5):
        write(tmp_path, "aa", number, range(2))
    large = write(tmp_path, "bb", 0, range(100))
    files = trace_files([str(tmp_path)])
    tasks = assign_splits(files, 2_000)
    sizes = [sum(stop - start for _, start, stop in task) for task in tasks]
    assert sum(sizes) == sum(file.size for file in files)
    assert max(sizes) <= 2_000
    assert len(tasks) < len(files) + large.stat().st_size // 2_000
    assert assign_splits([], 10) == []


@pytest.mark.slow  # it imports PySpark
def test_late_files_are_read_once(tmp_path: Path) -> None:
    """S12: a writer's second file comes before its first, and a copy of one comes last: both are read, once."""
    from pulsar_nack.pipeline._source import TraceSource

    source = TraceSource({"path": str(tmp_path)})
    stream: Any = source.streamReader(source.schema())

    def read(start: dict[str, str]) -> tuple[dict[str, str], list[str]]:
        end = stream.latestOffset(start)
        return end, [Path(path).name for task in stream.partitions(start, end) for path, *_ in task.value]

    assert stream.initialOffset() == {}
    second = write(tmp_path, "ab", 1, range(1))
    offset, names = read({})
    assert (offset, names) == ({"ab": "1"}, ["trace-1001-ab-1.jsonl"])
    write(tmp_path, "ab", 0, range(1))
    write(tmp_path, "ab", 5, range(1))
    offset, names = read(offset)
    assert (offset, names) == ({"ab": "0-1,5"}, ["trace-1000-ab-0.jsonl", "trace-1005-ab-5.jsonl"])
    write(tmp_path / "copies", "ab", 1, range(1))
    second.unlink()  # its place is kept
    (tmp_path / "by hand.jsonl").write_text("{}\n")
    offset, names = read(offset)
    assert (offset, names) == ({"ab": "0-1,5", "by hand.jsonl": "0"}, ["by hand.jsonl"])
    assert read(offset) == (offset, [])


def test_a_stream_goes_on_after_what_is_broken(spark: SparkSession, tmp_path: Path) -> None:
    """S10: half of a surrogate pair, a truncated packed file and an invalid Parquet file never end a stream."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    traces = tmp_path / "traces"
    write(traces, "aa", 0, range(2), json.dumps(PLAIN | {"entry": 7, "reason": "\ud800"}))
    packed = gzip.compress("".join(f"{json.dumps(PLAIN | {'entry': entry})}\n" for entry in range(10, 13)).encode())
    (traces / "trace-1-bb-0.jsonl.gz").write_bytes(packed)
    (traces / "trace-1-bb-1.jsonl.gz").write_bytes(packed[:-8])
    (traces / "trace-1-bb-2.parquet").write_bytes(b"PAR1")
    pq.write_table(pa.table({"v": [1], "event": ["x"]}), traces / "other.parquet")
    found: list[tuple[int | None, str | None]] = []

    def keep(batch: DataFrame, _: int) -> None:
        found.extend((row.entry, row.fault) for row in batch.collect())

    stream = spark.readStream.format("pulsar_nack_trace").load(str(traces)).writeStream.foreachBatch(keep)
    query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(int(patience(50)))
    assert sorted(entry for entry, fault in found if fault is None and entry is not None) == [
        0,
        1,
        10,
        10,
        11,
        11,
        12,
        12,
    ]
    faults = sorted(fault for _, fault in found if fault is not None)
    assert [fault.split(":")[0] for fault in faults] == [
        "df",
        "not Unicode text",
        "the file is broken",
        "the file is broken",
    ]


def test_a_stream_has_no_open_files(spark: SparkSession, tmp_path: Path) -> None:
    """Files that still change are for tables only."""
    write(tmp_path, "aa", 0, range(2))
    write(tmp_path, "aa", 1, range(2, 4), suffix=".open")
    source = spark.read.format("pulsar_nack_trace").option("includeOpen", "true")
    assert sorted(row.entry for row in source.load(str(tmp_path)).collect()) == [0, 1, 2, 3]
    stream = spark.readStream.format("pulsar_nack_trace").option("includeOpen", "true").load(str(tmp_path))
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(Exception, match="includeOpen: expected false for a stream"):
        query.awaitTermination(int(patience(50)))


def test_wrong_options_are_named(spark: SparkSession, tmp_path: Path) -> None:
    """An option out of range is refused by its name."""
    wrong: list[dict[str, Any]] = [{"path": "/nowhere/at/all"}, {"partitionBytes": "0"}, {"includeOpen": "perhaps"}]
    for options in wrong:
        with pytest.raises(Exception, match=f"{next(iter(options))}: expected"):
            spark.read.format("pulsar_nack_trace").options(**{"path": str(tmp_path)} | options).load().collect()
