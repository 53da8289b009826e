"""The examples run as their users run them: in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(example: str) -> list[str]:
    """Run an example to its end; return the lines that it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / example)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_reminders_come_in_order_of_their_times() -> None:
    """The example sends all its reminders, the one without delay first and the others in order of time."""
    lines = run("delayed.py")
    assert lines[1] == "4 reminders wait"
    sent = [line.partition(",")[0].strip("'") for line in lines if "off by" in line]
    assert sent == ["hello", "stand up", "call back", "tea is ready", "water the plants"]
    assert lines[-1] == "sent 5 reminders"


def test_a_restarted_dispatcher_goes_on() -> None:
    """Over two runs each reminder that comes soon is sent once, and the others are there again at once."""
    lines = run("delayed_buckets.py")
    assert lines[0].startswith("0 reminders were on disk")
    (restarted,) = [place for place, line in enumerate(lines) if line == "restarted"]
    assert int(lines[restarted + 1].split()[0]) > 29_900
    sent = [line.partition(",")[0].strip("'") for line in lines if "off by" in line]
    assert sent == ["stand up", "call back", "tea is ready", "water the plants"]
    assert lines[-2].startswith("30000 reminders wait: ")
    assert lines[-1] == "sent 4 reminders"
