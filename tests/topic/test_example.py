"""The example of a local topic, run as its users run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "local_topic.py"


def test_example() -> None:
    """Each job is done once, after as many attempts as it fails, though a worker is killed."""
    pytest.importorskip("google.protobuf")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE)], capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "send the invoice: done at attempt 1" in done.stdout
    assert "killed" in done.stdout
    assert "nothing is left" in done.stdout
