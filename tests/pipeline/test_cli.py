"""``pulsar-nack pipeline``: what its commands print, write and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pulsar_nack.cli import main
from pulsar_nack.pipeline.schemas import TRACE

from .rows import PLAIN


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int | str | None, str, str]:
    """Run a job; return its exit code and what it printed."""
    with pytest.raises(SystemExit) as done:
        main(["pipeline", *arguments])
    out, err = capsys.readouterr()
    return done.value.code, out, err


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Return a folder with a trace of a nack, its arrival, and a line that is broken."""
    rows = [
        PLAIN | {"event": "nack", "time_ms": 1_000, "delay_ms": 500, "deadline_ms": 1_500},
        PLAIN | {"event": "arrive", "time_ms": 1_520, "deadline_ms": 1_500, "actual_ms": 1_520, "attempt": 1},
    ]
    folder = tmp_path / "traces"
    folder.mkdir()
    assert list(rows[0]) == TRACE.fieldNames()
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "trace-1000-aa-0.jsonl").write_text(text + '{"v": 1, "ev\n', encoding="utf-8")
    return str(folder)


def test_accuracy_prints_json(spark: SparkSession, capsys: pytest.CaptureFixture[str], trace: str) -> None:
    """``--json`` prints the tables and nothing else; what was left out is told on stderr."""
    code, out, err = run(capsys, "accuracy", trace, "--json", "--late", "0.01")
    assert code == 0
    found = json.loads(out)
    assert list(found) == ["lateness", "starvation", "beyond"]
    (row,) = found["lateness"]
    assert (row["delay_class"], row["late"], row["max_ms"]) == ("0-1 s", 1, 20)
    assert "left out 1 lines: not a JSON object of this schema" in err


def test_retries_writes_parquet(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], trace: str, tmp_path: Path
) -> None:
    """``--out`` writes a folder for each table; one that exists is refused unless told."""
    out = tmp_path / "out"
    assert run(capsys, "retries", trace, "--out", str(out))[0] == 0
    assert [row.nacks for row in spark.read.parquet(str(out / "chains")).collect()] == [1]
    code, _, err = run(capsys, "retries", trace, "--out", str(out))
    assert code == 2
    assert "out: expected a folder that does not exist yet (or --overwrite)" in err
    assert run(capsys, "retries", trace, "--out", str(out), "--overwrite")[0] == 0


@pytest.mark.parametrize("job", ["accuracy", "retries", "plan"])
def test_what_is_refused_is_written_too(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], trace: str, tmp_path: Path, job: str
) -> None:
    """Refused lines are counted on stderr, and with ``--out`` they are a table; an older one is replaced."""
    out = tmp_path / "out"
    options = ("--max-bits", "2") if job == "plan" else ()
    for _ in range(2):
        code, _, err = run(capsys, job, trace, *options, "--out", str(out), "--overwrite")
        assert (code, err) == (0, "left out 1 lines: not a JSON object of this schema\n")
    (row,) = spark.read.parquet(str(out / "quarantine")).collect()
    assert (Path(row.file).name, row.line) == ("trace-1000-aa-0.jsonl", '{"v": 1, "ev')
    code, _, err = run(capsys, job, trace, *options)
    assert (code, err) == (0, "left out 1 lines: not a JSON object of this schema\n")


def test_wrong_argument_leaves_nothing(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], trace: str, tmp_path: Path
) -> None:
    """An argument out of range is found before anything is written."""
    for job, option in (("accuracy", "--early"), ("retries", "--poison-at"), ("plan", "--max-bits")):
        code, _, err = run(capsys, job, trace, "--out", str(tmp_path / "out"), option, "-1")
        assert code == 2, err
        assert option.strip("-").replace("-", "_") in err
    assert not (tmp_path / "out").exists()


def test_accuracy_prints_tables(spark: SparkSession, capsys: pytest.CaptureFixture[str], trace: str) -> None:
    """Without options there is a table for people."""
    code, out, _ = run(capsys, "accuracy", trace)
    assert code == 0
    assert any(line.split()[:4] == ["t", "s", "0-1", "s"] for line in out.splitlines())


def test_a_missing_folder_is_one_line(spark: SparkSession, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """What is not there is an error of one line."""
    code, out, err = run(capsys, "accuracy", str(tmp_path / "missing"))
    assert (code, out) == (2, "")
    assert "paths: expected files or folders that exist" in err
