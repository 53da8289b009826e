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
    """The command makes the folder and prints what is in it; a folder that exists and invalid rows are refused."""
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


def test_plan(metadata: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints the size of each width, and the best one."""
    code, said, _ = run(capsys, "plan", metadata, "--delayed", "--max-bits", "6", "--json")
    assert code == 0
    found = json.loads(said)
    assert [(row["bits"], row["pending"]) for row in found["plan"]] == [(bits, 100) for bits in range(7)]
    assert [row["topic"] for row in found["best"]] == ["t"]
