"""``pulsar-nack pipeline``: what its commands print, write and refuse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.test_app import call
from tests.conftest import TINY_DATA, require_spark
from tests.patience import patience

from .rows import PLAIN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run a job in this process, on the session that runs; return its exit code and what it printed."""
    return call(["pipeline", *arguments], capsys)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Return a folder with a trace of a nack, its arrival, and a line that is broken."""
    rows = [
        PLAIN | {"event": "nack", "time_ms": 1_000, "delay_ms": 500, "deadline_ms": 1_500},
        PLAIN | {"event": "arrive", "time_ms": 1_520, "deadline_ms": 1_500, "actual_ms": 1_520, "attempt": 1},
    ]
    folder = tmp_path / "traces"
    folder.mkdir()
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "trace-1000-aa-0.jsonl").write_text(text + '{"v": 1, "ev\n', encoding="utf-8")
    return str(folder)


LEFT_OUT = "left out 1 lines: not a JSON object of this schema\n"


def test_accuracy_prints_json(spark: SparkSession, capsys: pytest.CaptureFixture[str], trace: str) -> None:
    """``--json`` prints the tables and nothing else; stderr says what was left out; the session goes on."""
    code, out, err = run(capsys, "accuracy", trace, "--json", "--late", "0.01")
    assert (code, err) == (0, LEFT_OUT)
    found = json.loads(out)
    assert list(found) == ["lateness", "starvation", "beyond"]
    (row,) = found["lateness"]
    assert (row["delay_class"], row["late"], row["max_ms"]) == ("0-1 s", 1, 20)
    assert spark.getActiveSession() is spark


def test_accuracy_prints_tables(spark: SparkSession, capsys: pytest.CaptureFixture[str], trace: str) -> None:
    """Without options there is a table for people."""
    code, out, _ = run(capsys, "accuracy", trace)
    assert code == 0
    assert any(line.split()[:4] == ["t", "s", "0-1", "s"] for line in out.splitlines())


@pytest.mark.parametrize("job", ["accuracy", "retries", "plan"])
def test_out_is_written(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], trace: str, tmp_path: Path, job: str
) -> None:
    """``--out`` writes a folder for each table, one of them for refused lines; ``--overwrite`` replaces it."""
    out = tmp_path / "out"
    options = ("--max-bits", "2") if job == "plan" else ()
    assert run(capsys, job, trace, *options, "--out", str(out)) == (0, "", LEFT_OUT)
    code, _, err = run(capsys, job, trace, *options, "--out", str(out))
    assert code == 2
    assert "out: expected a folder that does not exist yet (or --overwrite)" in err
    if job == "retries":
        assert run(capsys, job, trace, "--out", str(out), "--overwrite") == (0, "", LEFT_OUT)
        assert [row.nacks for row in spark.read.parquet(str(out / "chains")).collect()] == [1]
    (row,) = spark.read.parquet(str(out / "quarantine")).collect()
    assert (Path(row.file).name, row.line) == ("trace-1000-aa-0.jsonl", '{"v": 1, "ev')
    if job == "plan":
        assert run(capsys, job, trace, *options)[::2] == (0, LEFT_OUT)


def test_wrong_arguments_leave_nothing(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], trace: str, tmp_path: Path
) -> None:
    """An argument out of range is found before anything is written; a missing folder is an error of one line."""
    for job, option in (("accuracy", "--early"), ("retries", "--poison-at"), ("plan", "--max-bits")):
        code, _, err = run(capsys, job, trace, "--out", str(tmp_path / "out"), option, "-1")
        assert code == 2, err
        assert option.strip("-").replace("-", "_") in err
    assert not (tmp_path / "out").exists()
    code, said, err = run(capsys, "accuracy", str(tmp_path / "missing"))
    assert (code, said) == (2, "")
    assert "paths: expected files or folders that exist" in err


@pytest.mark.xdist_group("spark")
@pytest.mark.slow
def test_spark_submit(trace: str, tmp_path: Path) -> None:
    """``spark-submit`` runs a command from a file of two lines, on the master that it is given."""
    submit = str(require_spark() / "bin" / "spark-submit")
    (tmp_path / "job.py").write_text("from pulsar_nack.cli import main\nmain()\n")
    settings = [f"--conf={name}={value}" for name, value in TINY_DATA.items()]
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [submit, "--master=local[1]", *settings, str(tmp_path / "job.py"), "pipeline", "accuracy", trace, "--json"],
        capture_output=True, text=True, timeout=patience(60), env=environment, cwd=root, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    err, _, text = done.stdout.partition("{")
    assert err == LEFT_OUT  # spark-submit joins what its program writes to stderr to its stdout
    (row,) = json.loads("{" + text)["lateness"]
    assert (row["delay_class"], row["max_ms"]) == ("0-1 s", 20)
