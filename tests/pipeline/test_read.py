"""Reading traces: valid lines come out with the schema, all others in quarantine with the reason."""

from __future__ import annotations

import gzip
import itertools
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
    """Lines of version 1 come out column for column, without unknown keys."""
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
    """Broken lines and those of another version are kept as they are, with file and reason, and counted."""
    path = write(tmp_path / "trace-1-aa-0.jsonl", NACK, *(line for line, _ in REFUSED))
    read = pipeline.read_traces(spark, path)
    rows = [(f"file:{path}", line if isinstance(line, str) else json.dumps(line), why) for line, why in REFUSED]
    check_rows(read.quarantine, rows, "file string, line string, reason string")
    assert read.traces.count() == 1
    assert read.refused() == Counter(reason for _, reason in REFUSED)


BROKEN = "not a JSON object of this schema"
TEXT = json.dumps(NACK | {"reason": "QQ"}).encode()
HUGE = 2**63 - 1
KINDS: list[tuple[bytes | dict[str, Any], str | None]] = [
    # valid
    (TEXT, None),
    (b" \t" + TEXT + b" \r", None),
    (NACK | {"later": [1, {"a": None}]}, None),
    ({key: value for key, value in NACK.items() if value is not None}, None),
    (TEXT[:-1] + b', "event": "ack"}', None),
    (TEXT.replace(b"QQ", b"a\\u0000\xe2\x80\xa8\\ud83d\\ude00"), None),
    (NACK | {"ledger": None, "entry": None}, None),
    (NACK | {"ledger": HUGE, "delay_ms": 3_162_240_000_000}, None),
    (TEXT.replace(b'"time_ms": 1000', b'"time_ms": -0'), None),
    # no object, or more than that
    (TEXT + TEXT, BROKEN),
    (TEXT + b" // x", BROKEN),
    (TEXT.replace(b'"', b"'"), BROKEN),
    (b"\xef\xbb\xbf" + TEXT, BROKEN),
    (TEXT[:-1] + b",}", BROKEN),
    (TEXT[:50], BROKEN),
    (b"   ", BROKEN),
    (b"null", BROKEN),
    (b"[" * 50_000, BROKEN),
    (TEXT.replace(b"QQ", b"a\rb"), BROKEN),
    (TEXT[:-1] + b', "later": NaN}', BROKEN),
    # other types
    (NACK | {"topic": 5}, BROKEN),
    (NACK | {"reason": {"a": 1}}, BROKEN),
    (NACK | {"v": True}, BROKEN),
    (NACK | {"v": 1.0}, BROKEN),
    (NACK | {"time_ms": "1000"}, BROKEN),
    (TEXT.replace(b'"time_ms": 1000', b'"time_ms": 1e3'), BROKEN),
    (TEXT.replace(b'"time_ms": 1000', b'"time_ms": 01000'), BROKEN),
    (NACK | {"partition": 2**31}, BROKEN),
    (NACK | {"ledger": 2**63}, BROKEN),
    (TEXT.replace(b'"ledger": 3', b'"ledger": ' + b"9" * 6_000), BROKEN),
    # no text
    (TEXT.replace(b"QQ", b"\xff\xfe"), "not Unicode text"),
    (TEXT.replace(b"QQ", b"\\ud800"), "not Unicode text"),
]
SENSELESS: list[tuple[dict[str, Any], str]] = [
    (NACK | {"delay_ms": HUGE}, "delay_ms is longer than 36600 days"),
    (NACK | {"ledger": -5}, "ledger is negative"),
    (NACK | {"entry": -7}, "entry is negative"),
    (NACK | {"attempt": -1}, "attempt is negative"),
    (NACK | {"partition": -2}, "partition is below -1"),
    (NACK | {"batch_index": -9}, "batch_index is below -1"),
    (NACK | {"entry": None}, "entry is missing"),
    (NACK | {"ledger": None}, "ledger is missing"),
    (NACK | {"deadline_ms": 999}, "deadline_ms of a nack is before its time_ms"),
]


def both(spark: SparkSession, folder: Path) -> list[pipeline.Read]:
    """Return the results of both readers for a folder."""
    source = spark.read.format("pulsar_nack_trace").load(str(folder))
    return [pipeline.read_traces(spark, folder), pipeline.split_source(source)]


def test_each_kind_of_line(spark: SparkSession, tmp_path: Path) -> None:
    """S8, S10: a line is one object in UTF-8 with the right types, or each reader refuses it with the reason."""
    for number, (line, _) in enumerate(KINDS):
        data = line if isinstance(line, bytes) else json.dumps(line).encode()
        (tmp_path / f"trace-1-{number:02x}-0.jsonl").write_bytes(data + b"\n")
    expected = Counter(
        (f"file:{tmp_path}/trace-1-{number:02x}-0.jsonl", why) for number, (_, why) in enumerate(KINDS) if why
    )
    for read in both(spark, tmp_path):
        refused = read.quarantine.collect()
        assert Counter((row.file, row.reason) for row in refused) == expected
        assert (TEXT + TEXT).decode() in {row.line for row in refused}
        assert sorted(row.event for row in read.traces.collect()) == ["ack", *["nack"] * 8]


def test_lines_without_sense(spark: SparkSession, tmp_path: Path) -> None:
    """S7: impossible values are refused by each reader, also from Parquet; with the largest no job overflows."""
    from pulsar_nack.pipeline.schemas import TRACE

    most = 253_402_300_799_999
    largest = [
        NACK | {"time_ms": most - each, "delay_ms": 3_162_240_000_000, "deadline_ms": most, "entry": 7}
        for each in (1, 0)
    ]
    write(tmp_path / "trace-1-aa-0.jsonl", *largest, *(line for line, _ in SENSELESS))
    expected = Counter(why for _, why in SENSELESS)
    for read in both(spark, tmp_path):
        assert {json.loads(row.line)["v"] for row in read.quarantine.collect()} == {1}
        assert read.refused() == expected
        assert read.traces.count() == 2
    rows = [tuple(line.values()) for line, _ in SENSELESS] + [tuple(line.values()) for line in largest]
    checked = pipeline.check_traces(spark.createDataFrame(rows, TRACE))
    assert checked.refused() == expected
    assert [row.asked_ms for row in pipeline.retries(checked.traces).chains.collect()] == [2 * 3_162_240_000_000]
    assert pipeline.accuracy(checked.traces).starvation.collect() == []
    planned = pipeline.plan(checked.traces, max_bits=2).collect()
    assert {(row.pending, row.delay_ms) for row in planned} == {(1, 3_162_240_000_000.0)}


def test_what_nobody_checked_ends_no_job(spark: SparkSession) -> None:
    """S7: jobs on unchecked events do not overflow: such values are left out, or cut."""
    from pulsar_nack.pipeline.schemas import TRACE

    changes: list[dict[str, Any]] = [
        {},
        {"attempt": 1},
        {"time_ms": HUGE, "entry": 5},
        {"deadline_ms": HUGE, "entry": 6},
    ]
    huge = [NACK | {"delay_ms": HUGE} | each for each in changes]
    df = spark.createDataFrame([tuple(each.values()) for each in huge], TRACE)
    found = pipeline.retries(df)
    assert sorted((row.entry, row.asked_ms) for row in found.chains.collect()) == [(4, HUGE), (6, HUGE)]
    for table in (*found, *pipeline.accuracy(df), pipeline.plan(df, max_bits=1)):
        table.collect()


def test_which_files_are_read(spark: SparkSession, tmp_path: Path) -> None:
    """S11: both readers read closed lines, packed lines and Parquet, not names that begin with a dot or underscore."""
    from pulsar_nack.pipeline.schemas import TRACE

    names = ("a.jsonl", "b/c.d/trace-1-ab-0.jsonl", "n.txt", "o.jsonl.open", "_u.jsonl", ".h.jsonl", ".hidden/x.jsonl",
             "_temporary/x.jsonl", "folder.jsonl/x.jsonl", "empty.jsonl", "trace.json")  # fmt: skip
    for entry, name in enumerate(names):
        write(tmp_path / name, *[NACK | {"entry": entry}] * (name != "empty.jsonl"))
    (tmp_path / "p.jsonl.gz").write_bytes(gzip.compress(json.dumps(NACK | {"entry": 20}).encode()))
    spark.createDataFrame([(*ROW[:9], 21, *ROW[10:])], TRACE).coalesce(1).write.parquet(str(tmp_path / "q.parquet"))
    for read in both(spark, tmp_path):
        assert read.refused() == {}
        assert sorted(row.entry for row in read.traces.collect()) == [0, 1, 8, 20, 21]
    found = pipeline.read_traces(spark, tmp_path, include_open=True).traces
    assert sorted(row.entry for row in found.collect()) == [0, 1, 3, 8, 20, 21]
    found = pipeline.read_traces(spark, [tmp_path / "_u.jsonl", tmp_path / "o.jsonl.open"]).traces
    assert sorted(row.entry for row in found.collect()) == [3, 4]


def test_a_copy_is_read_once(spark: SparkSession, tmp_path: Path) -> None:
    """S5: a file that is there twice is recognized by writer and number; the complete and closed one is read."""
    name = "trace-1000-ab-3.jsonl"
    text = "".join(json.dumps(NACK | {"entry": entry}) + "\n" for entry in range(5))
    for folder, copy in (("a", text[:-300]), ("b", text), ("c", text)):
        write(tmp_path / folder / name).write_text(copy)
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
    write(tmp_path / f"{name}.open", NACK | {"entry": 9})
    write(tmp_path / "trace-1000-ab-4.jsonl", NACK | {"entry": 10})
    write(tmp_path / "trace-1000-ac-3.jsonl", NACK | {"entry": 11})
    for read in both(spark, tmp_path):
        assert sorted(row.entry for row in read.traces.collect()) == [0, 1, 2, 3, 4, 10, 11]
    twice = pipeline.read_traces(spark, [tmp_path, tmp_path / "b" / name, tmp_path / "a"], include_open=True)
    assert sorted(row.entry for row in twice.traces.collect()) == [0, 1, 2, 3, 4, 10, 11]


def test_names_are_no_patterns(spark: SparkSession, tmp_path: Path) -> None:
    """S13: brackets, braces, stars and signs of URLs in a path have no special meaning, in each reader."""
    folder = tmp_path / "[a] {b,c}*" / "d%20é ?"
    path = write(folder / "x[1]{y}*%41.jsonl", NACK)
    write(tmp_path / "a b" / "no.jsonl", NACK | {"entry": 9})
    for where in (folder, path):
        for read in both(spark, where):
            assert [row.entry for row in read.traces.collect()] == [4]


def test_what_only_spark_reaches(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S8, S11, S13: files on other storage are found and parsed by the same rules."""
    from pulsar_nack.pipeline import _read
    from pulsar_nack.pipeline.schemas import TRACE

    monkeypatch.setattr(_read, "_local_path", lambda *_: None)
    folder = tmp_path / "[a] {b,c}* é"
    write(
        folder / "trace-1-ab-0.jsonl", NACK, TEXT.decode() * 2, json.dumps(NACK | {"reason": "QQ"}).replace("QQ", "\r")
    )
    write(folder / "more" / "trace-1-ab-0.jsonl", NACK)
    write(folder / "_x.jsonl", NACK | {"entry": 9})
    (folder / "p.jsonl.gz").write_bytes(gzip.compress(json.dumps(NACK | {"entry": 20}).encode()))
    rows = [(*ROW[:9], 21, *ROW[10:]), (*ROW[:9], -1, *ROW[10:])]
    spark.createDataFrame(rows, TRACE).coalesce(1).write.parquet(str(folder / "q.parquet"))
    limit = "spark.sql.execution.arrow.maxBytesPerBatch"
    assert spark.conf.get(limit) == str(2**31 - 1)
    try:
        read = pipeline.read_traces(spark, folder)
        assert spark.conf.get(limit) == "64m"  # Spark sends foreign lines of any length to the workers
    finally:
        spark.conf.set(limit, str(2**31 - 1))
    assert sorted(row.entry for row in read.traces.collect()) == [4, 20, 21]
    assert read.refused() == {BROKEN: 2, "entry is negative": 1}
    assert {"trace-1-ab-0.jsonl" in row.file or "parquet" in row.file for row in read.quarantine.collect()} == {True}
    for path in (tmp_path / "none", tmp_path / "other.txt"):
        (tmp_path / "other.txt").touch()
        with pytest.raises(InvalidArgumentError, match="paths"):
            pipeline.read_traces(spark, path)


@pytest.mark.slow  # it imports PySpark
def test_long_lines_are_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line beyond the limit is refused, whatever its length, and later lines are read, in each split of a file."""
    from pulsar_nack.pipeline import _lines
    from pulsar_nack.pipeline.schemas import TOO_LONG

    monkeypatch.setattr(_lines, "MAX_LINE_BYTES", 400)
    lines = [json.dumps(NACK | {"entry": entry, "reason": "x" * size}) for entry, size in enumerate((0, 2_000, 1, 500))]
    path = write(tmp_path / "a.jsonl", *lines)
    size = path.stat().st_size
    for cuts in ((0, size), (0, 1, 300, 1_000, 1_500, size)):
        splits = [(str(path), start, stop) for start, stop in itertools.pairwise(cuts)]
        found = [row for batch in _lines.read_splits(splits) for row in batch.to_pylist()]
        assert sorted(row["entry"] for row in found if row["fault"] is None) == [0, 2]
        assert [(row["line"][:20], row["fault"]) for row in found if row["fault"]] == 2 * [(lines[0][:20], TOO_LONG)]


def test_parquet_is_read_beside_lines(spark: SparkSession, tmp_path: Path) -> None:
    """Parquet passes the same checks, and a folder may hold both."""
    from pulsar_nack.pipeline.schemas import TRACE

    write(tmp_path / "trace-1-aa-0.jsonl", NACK)
    rows = [(1, "ack", *ROW[2:]), (7, "ack", *ROW[2:])]
    spark.createDataFrame(rows, TRACE).coalesce(1).write.parquet(str(tmp_path / "old.parquet"))
    read = pipeline.read_traces(spark, tmp_path)
    assert sorted(row.event for row in read.traces.collect()) == ["ack", "nack"]
    (refused,) = read.quarantine.collect()
    assert refused.reason == "unknown version 7"
    assert json.loads(refused.line) == NACK | {"v": 7, "event": "ack"}


@pytest.mark.slow  # it imports PySpark
@pytest.mark.parametrize("percent", [1, 50, 99])
def test_damaged_parquet_is_a_row(tmp_path: Path, percent: int) -> None:
    """A Parquet file that is damaged in its first page, in another one or in its footer gives one refused row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from pulsar_nack.pipeline import _lines, _read

    path = tmp_path / "q.parquet"
    pq.write_table(
        pa.Table.from_pylist([NACK | {"entry": entry} for entry in range(1_000)], schema=_lines._EVENT), path
    )
    data = bytearray(path.read_bytes())
    begin = len(data) * percent // 100
    data[begin : begin + 20] = b"\xff" * 20
    path.write_bytes(data)
    _read._check_parquet(str(path))
    (refused,) = [row for batch in _lines.read_splits([(str(path), 0, 1)]) for row in batch.to_pylist()]
    assert refused["fault"].startswith("the file is broken: ")
    path.unlink()
    with pytest.raises(FileNotFoundError):
        list(_lines.read_splits([(str(path), 0, 1)]))


def test_parquet_of_something_else_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Parquet without the columns of a trace is refused before any row is read, with the columns named."""
    spark.createDataFrame([(1, "x")], "v int, event string").write.parquet(str(tmp_path / "other.parquet"))
    with pytest.raises(
        InvalidArgumentError, match=r"columns v int, event string, time_ms bigint.*got .*v int, event string$"
    ):
        pipeline.read_traces(spark, tmp_path)


def test_nothing_to_read_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    """No path, a missing one, and a folder without a trace are refused."""
    paths: list[list[str] | str] = [[], [str(tmp_path / "missing")], str(tmp_path)]
    for where in paths:
        with pytest.raises(InvalidArgumentError, match="paths"):
            pipeline.read_traces(spark, where)


def test_missing_columns_are_named(spark: SparkSession) -> None:
    """Missing columns and those of another type are named, with the wanted and found types; others are ignored."""
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
