"""A real process on real files that is killed, again and again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pulsar_nack import Position
from pulsar_nack.cursor import Cursor

from .crashes import ALL, BATCH, LEDGERS, Messages, Model

ROOT = Path(__file__).parents[2]


def hear(model: Model, line: str) -> None:
    """Take in what the process said."""
    what, *words = line.split()
    numbers = [int(word) for word in words]
    if what == "flushed":
        model.is_flushed(numbers[0])
        return
    position = Position(*numbers[:2])
    if what == "ack":
        model.acknowledge(frozenset((position, index) for index in range(BATCH)))
    elif what == "part":
        model.acknowledge(frozenset([(position, numbers[2])]))
    elif what == "cumulative":
        model.acknowledge(frozenset(each for each in ALL if each[0] <= position))
    else:
        model.reset(position)


def run_and_kill(path: Path, model: Model, seed: int, lines: int) -> None:
    """Start a process, kill it after so many lines, and hear all that it said."""
    command = [sys.executable, "-m", "tests.cursor.victim", str(path), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(lines)]
        process.kill()
        said += process.stdout.readlines()
    assert all(said[:lines])
    for line in said:
        if line.endswith("\n"):
            hear(model, line)


async def found_in(path: Path) -> Messages:
    """Return what a new process finds acknowledged."""
    async with await Cursor.open_local(path, LEDGERS, start=(3, -1)) as cursor:
        return frozenset([each for each in ALL if await cursor.is_acked(*each)])


@pytest.mark.parametrize("kills", [pytest.param(1, marks=pytest.mark.smoke), pytest.param(15, marks=pytest.mark.slow)])
async def test_killed_again_and_again(tmp_path: Path, kills: int) -> None:
    """K20, K24: after each kill what was said to be durable is there, and nothing that was never acknowledged."""
    model, reported = Model(0), 0
    for seed in range(kills):
        run_and_kill(tmp_path, model, seed, 60 + 53 * seed % 200)
        reported += model.durable
        model.check(await found_in(tmp_path))
    assert reported > 20 * kills
