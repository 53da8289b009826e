"""The commands that build an index and plan, run in this process on the session of the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .test_cli import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def metadata(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a folder with the metadata of 100 delayed messages, and of one that is not delayed."""
    from pulsar_nack.pipeline.schemas import METADATA

    rows = [("t", 0, 3, entry, -1, 1_000 + entry, 61_000 + entry, 0) for entry in range(100)]
    rows.append(("t", 0, 3, 100, -1, 1_100, -1, 0))
    path = str(tmp_path_factory.mktemp("build") / "metadata")
    spark.createDataFrame(rows, METADATA).write.parquet(path)
    return path


def test_build_index(metadata: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command creates the folder and prints its contents; an existing folder and invalid rows are refused."""
    out = str(tmp_path / "index")
    code, _, err = run(capsys, "build-index", metadata, "--out", out)
    assert code == 2
    assert "ledger_id 3, entry_id 100, got -1" in err
    assert not Path(out).exists()
    code, said, _ = run(
        capsys, "build-index", metadata, "--out", out, "--delayed-only", "--min-indexes", "30", "--json"
    )
    assert code == 0
    built = json.loads(said)
    assert (built["path"], built["rows"], built["buckets"]) == (out, 100, 2)
    code, _, err = run(capsys, "build-index", metadata, "--out", out, "--delayed-only")
    assert code == 2
    assert "overwrite" in err
    code, said, _ = run(capsys, "build-index", metadata, "--out", out, "--delayed-only", "--overwrite")
    assert (code, said.partition(" in ")[0]) == (0, "100 messages")


WRONG = {
    ("--min-indexes", "0"): "min_indexes: expected greater than or equal to 1, got 0",
    ("--max-indexes", "-3"): "max_indexes: expected greater than or equal to 1, got -3",
    ("--segment", "0"): "segment: expected at least 1, or -1 for no bound, got 0",
    ("--segment-seconds", "nan"): "segment_seconds: expected less than or equal to 86400, got nan",
}


def test_wrong_options(spark: SparkSession, metadata: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong option, and missing metadata, is one line that names it; nothing is created."""
    out = str(tmp_path / "index")
    for options, message in WRONG.items():
        assert run(capsys, "build-index", metadata, "--out", out, *options) == (2, "", f"pulsar-nack: {message}\n")
    (tmp_path / "empty").mkdir()
    for name in ("none", "empty"):
        for command in (("build-index", "--out", out), ("plan", "--delayed")):
            code, said, err = run(capsys, *command, str(tmp_path / name))
            assert (code, said) == (2, "")
            assert err.startswith("pulsar-nack: paths: expected Parquet files that exist, or folders of them")
            assert err.count("\n") == 1
    assert not Path(out).exists()


def test_plan(metadata: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints the size of each width, and the best one."""
    code, said, _ = run(capsys, "plan", metadata, "--delayed", "--max-bits", "6", "--json")
    assert code == 0
    found = json.loads(said)
    assert [(row["bits"], row["pending"]) for row in found["plan"]] == [(bits, 100) for bits in range(7)]
    assert [row["topic"] for row in found["best"]] == ["t"]
