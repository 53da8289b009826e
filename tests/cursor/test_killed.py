"""A real process on real files that is killed repeatedly."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_nack import Position
from pulsar_nack.cursor import Cursor
from tests.victims import victims

from .crashes import ALL, BATCH, LEDGERS, Messages, Model


def hear(model: Model, line: str) -> None:
    """Note the process's output."""
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


async def found_in(path: Path) -> Messages:
    """Return what a new process finds acknowledged."""
    async with await Cursor.open_local(path, LEDGERS, start=(3, -1)) as cursor:
        return frozenset([each for each in ALL if await cursor.is_acked(*each)])


@pytest.mark.parametrize("kills", [pytest.param(1, marks=pytest.mark.smoke), pytest.param(15, marks=pytest.mark.slow)])
async def test_killed_again_and_again(tmp_path: Path, kills: int) -> None:
    """K20, K24: after each kill durable changes are there, and nothing that was never acknowledged."""
    model, reported = Model(0), 0
    with victims("tests.cursor.victim") as those:
        for seed in range(kills):
            for line in those.kill_after(60 + 53 * seed % 200, str(tmp_path), seed):
                hear(model, line)
            reported += model.durable
            model.check(await found_in(tmp_path))
    assert reported > 20 * kills
