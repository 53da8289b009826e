"""The example of a local topic, run as users run it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes import run_python

EXAMPLE = Path(__file__).parents[2] / "examples" / "local_topic.py"


@pytest.mark.slow
def test_example() -> None:
    """Each job is done once, after as many attempts as it fails, though a worker is killed."""
    pytest.importorskip("google.protobuf")
    done = run_python(EXAMPLE)
    assert (done.returncode, done.stderr) == (0, "")
    assert "send the invoice: done at attempt 1" in done.stdout
    assert "killed" in done.stdout
    assert "nothing is left" in done.stdout
