"""The benchmarks run: each in a process of its own, with few ids; their figures are not looked at."""

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
    """Run a benchmark to its end, with programs found in ``path`` only; return what it printed.

    :param is_quiet: nothing may come to the error stream
    """
    environment = {**os.environ, "PATH": os.environ["PATH"] if path is None else path}
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(300), env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (is_quiet and done.stderr)
    return done.stdout


def test_time_buckets() -> None:
    """Every table of the time-bucket benchmark comes out, and it says that there is no Java to compare with."""
    said = run("timebucket", "--quick", path=str(PYTHON))
    titles = [line for line in said.splitlines() if line.startswith("## ")]
    assert len(titles) == 9
    assert "no Java peer" in said
    assert said.count("| scattered over an hour") == 8
    assert "scattered over an hour, 16 bits" in said


def test_day() -> None:
    """Every mix of the simulated day ends with all messages taken out, with three loads each."""
    said = run("day", "--quick")
    assert said.count("## ") == 5
    assert said.count("| 0.2 M ") == 5


def test_nack() -> None:
    """Every table of the benchmark of negative acknowledgements comes out."""
    said = run("nack", "--quick")
    assert said.count("## ") == 4


def test_trace() -> None:
    """Both tables of the benchmark of traces come out, and nothing was dropped."""
    said = run("trace", "--quick")
    assert said.count("## ") == 2
    assert "| while the thread writes" in said


def test_ledger() -> None:
    """Every table of the benchmark of logs comes out."""
    said = run("ledger", "--quick")
    assert said.count("## ") == 3
    assert said.count("| 256 ") == 2


def test_durable() -> None:
    """Every table of the benchmark of durable nacks comes out, and all nacks are held again."""
    said = run("durable_nacks", "--quick")
    assert said.count("## ") == 4
    assert said.count("| nack ") == 3
    assert said.count(" 5,001 ") == 2


@pytest.mark.xdist_group("spark")
def test_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every table of the benchmark of the pipeline comes out."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", QUICK_JAVA)
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java 17 or later, and there is none here")
    said = run("pipeline", "--quick", is_quiet=False)
    assert said.count("## ") >= 3
    assert said.count("| build_index ") == 2
    assert said.count("| one process") >= 4


def test_buckets() -> None:
    """Every table of the benchmark of the bucket tracker comes out, and everything that was stored is held again."""
    said = run("buckets", "--quick")
    assert said.count("## ") == 5
    assert said.count("| 600,000 in order") == 5
    assert "550,000" in said


def test_wire_without_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a broker, and without what starts one, the benchmark of the wire says what it needs."""
    for name in ("PULSAR_SERVICE_URL", "PULSAR_ADMIN_URL"):
        monkeypatch.delenv(name, raising=False)
    assert "no broker" in run("wire", "--quick", path=str(PYTHON))


def test_import_time() -> None:
    """Each import is measured."""
    assert "pulsar_nack.testing" in run("import_time", "--runs", "1")


def test_wire_codec() -> None:
    """Every table of the benchmark of the native wire's codec comes out."""
    said = run("wire_codec", "--quick")
    assert said.count("## ") == 3


def test_house() -> None:
    """The figures of the house come out, with the places that count."""
    said = run("house", "--list")
    assert "| files " in said
    assert "long files:" in said


def test_calls() -> None:
    """The calls of each operation are counted."""
    said = run("calls", "--quick")
    assert said.count("| nack until it is back |") == 1
