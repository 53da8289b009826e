"""The example of a cursor, run as users run it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.processes import run_python

EXAMPLE = Path(__file__).parents[2] / "examples" / "acknowledgements.py"


@pytest.mark.slow
def test_example() -> None:
    """No job is reported twice though the worker is killed twice, and in the end none is left."""
    pytest.importorskip("google.protobuf")
    done = run_python(EXAMPLE)
    assert (done.returncode, done.stderr) == (0, "")
    left = [int(count) for count in re.findall(r"^done up to .*; (\d+) jobs are left$", done.stdout, re.MULTILINE)]
    assert left[0] == 24
    assert left == sorted(left, reverse=True)
    assert "all done: 0 jobs are left" in done.stdout
    assert ", and beyond it (1:2, " in done.stdout
    (reported,) = re.findall(r"^(\d+) jobs, none of them twice$", done.stdout, re.MULTILINE)
    assert 18 < int(reported) <= 24
