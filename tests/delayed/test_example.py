"""The examples of delayed delivery, in this process and on virtual time: the machine's speed does not matter."""

from __future__ import annotations

import asyncio
import runpy
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_nack.testing import run as run_on_virtual_time

EXAMPLES = Path(__file__).parents[2] / "examples"
EPOCH_S = 1_700_000_000


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[str], list[str]]:
    """Run an example; return the lines that it printed."""

    def run(example: str) -> list[str]:
        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "run", run_on_virtual_time)
            patch.setattr(time, "time", lambda: EPOCH_S + asyncio.get_running_loop().time())
            patch.setattr(time, "time_ns", lambda: round(time.time() * 1e9))
            runpy.run_path(str(EXAMPLES / example), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run


def test_reminders_come_in_order_of_their_times(run: Callable[[str], list[str]]) -> None:
    """The example sends all its reminders, the one without delay first and the others in order of time."""
    lines = run("delayed.py")
    assert lines[1] == "4 reminders wait"
    sent = [line.partition(",")[0].strip("'") for line in lines if "off by" in line]
    assert sent == ["hello", "stand up", "call back", "tea is ready", "water the plants"]
    assert lines[-1] == "sent 5 reminders"


def test_a_restarted_dispatcher_goes_on(run: Callable[[str], list[str]]) -> None:
    """Over two runs each early reminder is sent once, and the others are known again at once."""
    lines = run("delayed_buckets.py")
    assert lines[0].startswith("0 reminders were on disk")
    (restarted,) = [place for place, line in enumerate(lines) if line == "restarted"]
    assert int(lines[restarted + 1].split()[0]) > 29_900
    sent = [line.partition(",")[0].strip("'") for line in lines if "off by" in line]
    assert sent == ["stand up", "call back", "tea is ready", "water the plants"]
    assert lines[-2].startswith("30000 reminders wait: ")
    assert lines[-1] == "sent 4 reminders"
