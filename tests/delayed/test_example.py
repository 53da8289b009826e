"""The example runs as its users run it: in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "delayed.py"


def test_reminders_come_in_order_of_their_times() -> None:
    """The example sends all its reminders, the one without delay first and the others in order of time."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE)], capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[1] == "4 reminders wait"
    sent = [line.partition(",")[0].strip("'") for line in lines if "off by" in line]
    assert sent == ["hello", "stand up", "call back", "tea is ready", "water the plants"]
    assert lines[-1] == "sent 5 reminders"
