"""``pulsar-nack pipeline watch``: its sinks, what it refuses, and functions as sinks of the data source."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pulsar_nack import pipeline
from tests.conftest import QUICK_JAVA
from tests.patience import patience

from . import test_cli
from .test_watch import BUSY, Folder, back, finish, folder, line, nack

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["folder"]

BROKEN = '{"v": 1, "ev'


def fill(folder: Folder) -> None:
    """Write nacks of messages that come in time, too late, and never, a broken line, and an event that moves time."""
    folder.add(nack(1_000, 1, 2_000), nack(1_000, 2, 2_000), nack(1_000, 3, 2_000), BROKEN)
    folder.add(back(2_050, 1), back(2_300, 2))
    folder.add(nack(20_000, 6, 90_000))


def watched(folder: Folder, *options: str) -> list[str]:
    """Return the arguments of the command, for all present files."""
    checkpoint = folder.root / "checkpoint"
    return ["watch", str(folder.root / "traces"), "--checkpoint", str(checkpoint), "--once", *options]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run the command; once more if the machine was too busy for Spark, which then continues from the checkpoint."""
    while True:
        try:
            return test_cli.run(capsys, *arguments)
        except Exception as error:
            if BUSY not in str(error):
                raise
            capsys.readouterr()


def test_parquet(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    """Alerts are in one folder and refused lines beside it, each once, also when the command is called again.

    A request for redelivery ends waiting, unless options say otherwise.
    """
    fill(folder)
    folder.add(nack(20_000, 9, 21_000), line("redeliver", 21_000, 9, deadline_ms=21_000, actual_ms=21_000))
    out = folder.root / "alerts"
    options = ("--bound", "0.1", "--lateness", "1", "--sink", "parquet", "--out", str(out))
    assert run(capsys, *watched(folder, *options)) == (0, "", "")
    folder.add(nack(80_000, 7, 99_000), line("naq", 80_000, 8))
    assert run(capsys, *watched(folder, *options))[0] == 0
    found = sorted((row.entry, row.kind, row.due_ms, row.actual_ms) for row in folder.alerts().collect())
    assert found == [(2, "late", 2_100, 2_300), (3, "missing", 2_100, None)]
    refused = folder.spark.read.parquet(f"{out}-refused").collect()
    assert sorted((Path(row.file).name, row.reason) for row in refused) == [
        ("trace-0000000000001-ab-1.jsonl", "not a JSON object of this schema"),
        ("trace-0000000000005-ab-5.jsonl", "unknown event naq"),
    ]


def test_options_reach_the_rules(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    """Until arrival, a request for redelivery does not end waiting; with a wide limit nothing is late."""
    folder.add(nack(1_000, 1, 2_000), line("redeliver", 2_000, 1, deadline_ms=2_000, actual_ms=2_000))
    folder.add(nack(50_000, 6, 90_000))
    for number, (options, expected) in enumerate(
        [(("--until", "arrive"), [1]), (("--until", "arrive", "--bound", "60"), [])]
    ):
        out = folder.root / f"alerts{number}"
        command = [*watched(folder, *options, "--lateness", "1", "--sink", "parquet", "--out", str(out))]
        command[3] = str(folder.root / f"checkpoint{number}")
        assert run(capsys, *command)[0] == 0
        assert [row.entry for row in folder.alerts(out.name).collect()] == expected


def test_rates(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    """With ``--rates`` windows are reported, not alerts."""
    fill(folder)
    out = folder.root / "rates"
    options = ("--rates", "--window", "5", "--lateness", "1", "--sink", "parquet", "--out", str(out))
    assert run(capsys, *watched(folder, *options))[0] == 0
    (row,) = folder.spark.read.parquet(str(out)).collect()
    assert (row.start_ms, row.end_ms, row.nacks, row.arrivals, row.nacks_per_s) == (0, 5_000, 3, 2, 0.6)


SECONDS = "seconds as a finite number from 0 to a year, or a timedelta of at most a century"
WRONG = {
    ("--sink", "parquet"): "sink: expected console, or parquet with --out, got 'parquet'",
    ("--out", "x"): "sink: expected console, or parquet with --out, got 'console'",
    ("--sink", "kafka"): "sink: expected console, or parquet with --out, got 'kafka'",
    ("--until", "ack"): "until: expected one of redeliver, arrive, got 'ack'",
    ("--clock", "sun"): "clock: expected one of event, wall, got 'sun'",
    ("--bound", "-1"): f"bound: expected {SECONDS}, got -1.0",
    ("--lateness", "nan"): f"lateness: expected {SECONDS}, got nan",
    ("--every", "-2"): f"every: expected {SECONDS}, got -2.0",
    ("--rates", "--window", "0"): "window: expected more than 0 seconds, or None, got 0.0",
}


def test_wrong_options(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong option is one line that names it; a missing folder is an error before a query starts."""
    for options, message in WRONG.items():
        code, out, err = run(capsys, *watched(folder, *options))
        assert (code, out) == (2, "")
        assert message in err
        assert not (folder.root / "checkpoint").exists()
    code, _, err = run(capsys, "watch", str(folder.root / "none"), "--checkpoint", str(folder.root / "c"), "--once")
    assert code == 2
    assert "folder: expected a folder that exists" in err


def test_console(folder: Folder) -> None:
    """In a separate process the command prints alerts and refused lines as tables, and ends with code 0."""
    fill(folder)
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root), "JDK_JAVA_OPTIONS": QUICK_JAVA}
    options = watched(folder, "--bound", "0.1", "--lateness", "1", "--master", "local[1]")
    command = [sys.executable, "-m", "pulsar_nack.cli", "pipeline", *options]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=patience(60), env=environment, cwd=root, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    cells = [[cell.strip() for cell in row.split("|")] for row in done.stdout.splitlines() if row.startswith("|")]
    kinds = {row[7]: row[5] for row in cells if len(row) > 7 and row[7] in {"late", "missing"}}
    assert kinds == {"late": "2", "missing": "3"}
    assert any(BROKEN in row and "not a JSON object of this schema" in row for row in cells)


@pytest.mark.parametrize("wrapper", ["true", "false"])
def test_ends_with_what_time_brought(folder: Folder, wrapper: str) -> None:
    """A run with ``--once`` reports messages that are due by the newest event, in a session with any settings."""
    name = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
    before = folder.spark.conf.get(name)
    folder.spark.conf.set(name, wrapper)
    fill(folder)
    try:
        stream = folder.spark.readStream.format("pulsar_nack_trace").load(str(folder.root / "traces"))
        alerts = pipeline.watch(pipeline.split_source(stream).traces, bound_ms=100, lateness_ms=1_000)
        root = folder.root
        finish(lambda: pipeline.start_watch(alerts, root / "alerts", root / "checkpoint", once=True))
    finally:
        folder.spark.conf.set(name, str(before))
    assert sorted(row.entry for row in folder.alerts().collect()) == [2, 3]


def test_functions_as_sinks(folder: Folder) -> None:
    """A function gets the alerts of each batch of the data source, and may pass them on to several places."""
    fill(folder)
    pipeline.register_source(folder.spark)
    read = pipeline.split_source(folder.spark.readStream.format("pulsar_nack_trace").load(str(folder.root / "traces")))
    paged: list[int] = []

    def page(batch: DataFrame, number: int) -> None:
        batch.persist()
        try:
            paged.extend(row.entry for row in batch.where("kind = 'missing'").collect())
            batch.write.mode("overwrite").parquet(str(folder.root / "batches" / f"number={number}"))
        finally:
            batch.unpersist()

    def start(name: str, df: DataFrame, sink: Any) -> None:
        finish(lambda: pipeline.start_watch(df, sink, folder.root / f"{name}.checkpoint", once=True))

    alerts = pipeline.watch(read.traces, bound_ms=100, lateness_ms=1_000)
    start("page", alerts, page)
    assert paged == [3]
    written = folder.spark.read.parquet(str(folder.root / "batches"))
    assert sorted(row.entry for row in written.collect()) == [2, 3]
    refused: list[str] = []
    start("refused", read.quarantine, lambda batch, _: refused.extend(row.line for row in batch.collect()))
    assert refused == [BROKEN]
    paged.clear()
    start("page", alerts, page)  # again, with the same checkpoint: nothing new
    assert paged == []
    shutil.rmtree(folder.root / "page.checkpoint")
    start("page", alerts, page)
    assert paged == [3]
