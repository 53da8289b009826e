"""D27: a real process on real files that is killed repeatedly."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_nack import BucketDelayedDeliveryTracker, Position
from pulsar_nack.testing import ManualClock
from tests.victims import victims

from .stage import config_of


class Told:
    """What the killed processes reported, all of them together."""

    def __init__(self) -> None:
        self.times: dict[Position, int] = {}
        self.taken: set[Position] = set()
        self.sealed: set[Position] = set()
        self.marks = {"marking": Position(0, -1), "marked": Position(0, -1)}
        self.now = 0

    def hear(self, line: str) -> None:
        """Note a line."""
        what, *words = line.split()
        numbers = [int(word) for word in words]
        match what:
            case "published":
                self.times[Position(*numbers[:2])] = numbers[2]
            case "took":
                assert Position(*numbers) not in self.taken
                assert self.times[Position(*numbers)] <= self.now
                self.taken.add(Position(*numbers))
            case "sealed":
                self.sealed.add(Position(*numbers))
            case "now":
                self.now = numbers[0]
            case _:
                self.marks[what] = Position(*numbers)

    @property
    def last_ledger(self) -> int:
        """Return the last ledger that was begun."""
        return max((each.ledger for each in self.times), default=0)


async def check(path: Path, told: Told) -> None:
    """Open what was left, and compare it with the reports."""
    config = config_of(least=3, step=40, most_indexes=4, most_buckets=4, prefetch=0.05)
    async with await BucketDelayedDeliveryTracker.open_local(path, config, clock=ManualClock(told.now)) as tracker:
        mark = tracker.cursor.mark_delete_position
        assert told.marks["marked"] <= mark <= told.marks["marking"]
        held = {Position(*each) for each in tracker._index.pending}
        assert {each for each in told.sealed if told.times[each] > told.now and each > mark} <= held
        assert all(told.times[each] > told.now and each > mark and each not in told.taken for each in held)
        assert tracker.number_of_delayed_messages == len(held)
        await tracker.wait_until_idle()
        ids = {bucket.named.snapshot_id for bucket in tracker._index.buckets}
        assert set(map(int, tracker.cursor.properties().values())) == ids
        assert {int(each.stem.rpartition("-")[2]) for each in path.glob("snapshot-*.log")} == ids
        told.marks = dict.fromkeys(told.marks, mark)


@pytest.mark.parametrize("kills", [pytest.param(1, marks=pytest.mark.smoke), pytest.param(15, marks=pytest.mark.slow)])
async def test_killed_again_and_again(tmp_path: Path, kills: int) -> None:
    """D27: after each kill reported seals are there or due, nothing is early or twice, no orphan stays."""
    told = Told()
    with victims("tests.delayed.bucket.victim") as those:
        for seed in range(kills):
            for line in those.kill_after(60 + 53 * seed % 200, str(tmp_path), seed, told.last_ledger, told.now):
                told.hear(line)
            await check(tmp_path, told)
    assert len(told.times) > 10 * kills
    assert len(told.sealed) > 5 * kills
    assert len(told.taken) > kills
