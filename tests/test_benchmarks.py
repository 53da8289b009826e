"""The benchmarks run, each in a separate process, with few ids; their figures are not checked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import QUICK_JAVA
from tests.patience import patience

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
PYTHON = Path(sys.executable).parent

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.xdist_group("heavy")]


def run(name: str, *options: str, path: str | None = None, is_quiet: bool = True) -> str:
    """Run a benchmark with programs found in ``path`` only; return what it printed.

    :param is_quiet: nothing may come to the error stream
    """
    environment = {**os.environ, "PATH": os.environ["PATH"] if path is None else path}
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(300), env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (is_quiet and done.stderr)
    return done.stdout


def test_time_buckets() -> None:
    """Every table of the time-bucket benchmark is printed, and it says that there is no Java to compare with."""
    said = run("timebucket", "--quick", path=str(PYTHON))
    titles = [line for line in said.splitlines() if line.startswith("## ")]
    assert len(titles) == 9
    assert "no Java peer" in said
    assert said.count("| scattered over an hour") == 8
    assert "scattered over an hour, 16 bits" in said


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("day", {"## ": 5, "| 0.2 M ": 5}),  # every mix ends with all messages taken out
        ("nack", {"## ": 4}),
        ("trace", {"## ": 2, "| while the thread writes": 1}),  # nothing was dropped
        ("ledger", {"## ": 3, "| 256 ": 2}),
        ("durable_nacks", {"## ": 4, "| nack ": 3, " 5,001 ": 2}),  # all nacks are held again
        ("buckets", {"## ": 5, "| 600,000 in order": 5, "550,000": 2}),  # all stored messages are held again
        ("wire_codec", {"## ": 3}),
        ("calls", {"| nack until it is back |": 1}),
    ],
)
def test_every_table_comes_out(name: str, counts: dict[str, int]) -> None:
    """Every table of a benchmark is printed, with its rows."""
    said = run(name, "--quick")
    assert {text: said.count(text) for text in counts} == counts


@pytest.mark.xdist_group("spark")
def test_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every table of the pipeline's benchmark is printed."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", QUICK_JAVA)
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java 17 or later, and there is none here")
    said = run("pipeline", "--quick", is_quiet=False)
    assert said.count("## ") >= 3
    assert said.count("| build_index ") == 2
    assert said.count("| one process") >= 4


def test_wire_without_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a broker, and without the means to start one, the wire benchmark says what it needs."""
    for name in ("PULSAR_SERVICE_URL", "PULSAR_ADMIN_URL"):
        monkeypatch.delenv(name, raising=False)
    assert "no broker" in run("wire", "--quick", path=str(PYTHON))


def test_import_time() -> None:
    """Each import is measured."""
    assert "pulsar_nack.testing" in run("import_time", "--runs", "1")


def test_house() -> None:
    """The figures of the code are printed, with the places that count."""
    said = run("house", "--list")
    assert "| files " in said
    assert "long files:" in said
