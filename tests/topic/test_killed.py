"""A real process with a topic on real files that is killed, again and again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pulsar_nack import open_local

from .victim import CONFIG

ROOT = Path(__file__).parents[2]
Said = dict[str, set[int]]


def run_and_kill(path: Path, said: Said, first: int, lines: int) -> None:
    """Start a process, kill it after so many lines, and hear all that it said."""
    command = [sys.executable, "-m", "tests.topic.victim", str(path), str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
        assert process.stdout is not None
        heard = [process.stdout.readline() for _ in range(lines)]
        process.kill()
        heard += process.stdout.readlines()
    for line in heard:
        what, _, number = line.partition(" ")
        if number.endswith("\n"):
            said[what].add(int(number))


@pytest.mark.parametrize("kills", [pytest.param(1, marks=pytest.mark.smoke), pytest.param(12, marks=pytest.mark.slow)])
async def test_killed_again_and_again(tmp_path: Path, kills: int) -> None:
    """What was published and not acknowledged comes after each kill, what was flushed as acknowledged does not."""
    pytest.importorskip("google.protobuf")
    said: Said = {"published": set(), "acking": set(), "acked": set()}
    for kill in range(kills):
        run_and_kill(tmp_path, said, kill * 1_000_000, 150 + 17 * kill)
    assert len(said["published"]) > 20 * kills
    assert said["acked"]
    async with open_local(tmp_path, CONFIG) as topic:
        port = await topic.subscribe("s")
        received = [int((await port.receive()).data) for _ in range(topic.backlog("s"))]
    assert len(received) == len(set(received))
    assert not said["acked"] & set(received)
    assert said["published"] - said["acking"] <= set(received)
