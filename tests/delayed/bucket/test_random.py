"""Random runs of the bucket tracker, with failing storage, trims and restarts, beside a model."""

from __future__ import annotations

import random

import pytest

from pulsar_nack import Position
from tests.tiers import size

from .stage import Stage


class Model:
    """What a dispatcher does: it reads the topic in order, and again after a restart, and acks what it delivered."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.times: dict[Position, int] = {}
        self.held: set[Position] = set()
        self.delivered: dict[Position, int] = {}
        self.ledger = 1

    def publish(self, now: int) -> Position:
        """Write a message with some delay."""
        if self.random.random() < 0.2:
            self.ledger += 1
        position = Position(self.ledger, sum(each.ledger == self.ledger for each in self.times))
        self.times[position] = now + self.random.choice([0, 3, 20, 50, 51, 400, 5_000])
        return position

    def offer(self, stage: Stage, position: Position) -> None:
        """Offer a message to the tracker, or deliver it."""
        now = stage.clock.now_ms()
        if stage.add(*position, self.times[position]):
            assert self.times[position] > now
            self.held.add(position)
        else:
            assert self.times[position] <= now
            self.held.discard(position)
            self.delivered.setdefault(position, now)

    def take(self, stage: Stage, limit: int) -> None:
        """Deliver what comes out: held, due, and each once."""
        for position in stage.get(limit):
            assert self.times[position] <= stage.clock.now_ms()
            assert position in self.held
            self.held.discard(position)
            assert position not in self.delivered
            self.delivered[position] = stage.clock.now_ms()


async def play(stage: Stage, model: Model, steps: int, *, faulty: bool) -> None:
    """Perform random operations while one tracker is open."""
    chance = model.random
    for _ in range(steps):
        match chance.choice(["publish", "publish", "publish", "wait", "take", "idle", "fault", "trim"]):
            case "publish":
                model.offer(stage, model.publish(stage.clock.now_ms()))
            case "wait":
                stage.clock.advance(chance.choice([0, 1, 10, 200]))
            case "take":
                model.take(stage, chance.choice([1, 3, 100]))
            case "idle":
                await stage.idle()
            case "fault" if faulty:
                home = chance.choice([stage.storage.faults, stage.cursor.faults])
                name = chance.choice(["create", "segment", "metadata", "delete", "put", "remove", "list"])
                chance.choice([home.fail, home.fail_after])[name] = chance.choice([1, 2])
            case "trim":
                acked = [each for each in sorted(model.times) if each not in model.delivered]
                passed = [each for each in sorted(model.times) if not acked or each < acked[0]]
                if passed:
                    await stage.mark_delete(*passed[-1])
                    assert stage.tracker.trim() == 0
        assert stage.count == len(model.held)
        stage.check()


RUNS = [(seed, faulty) for seed in range(16) for faulty in (False, True)]
PARAMETERS = [pytest.param("memory", *run, marks=[pytest.mark.slow] * (at >= 12)) for at, run in enumerate(RUNS)]
PARAMETERS += [pytest.param("local", *run, marks=[pytest.mark.slow] * (at >= 4)) for at, run in enumerate(RUNS)]


@pytest.mark.parametrize(("home", "seed", "faulty"), PARAMETERS, indirect=["home"])
async def test_random_runs(home: str, seed: int, faulty: bool) -> None:
    """Nothing is lost, early or twice, over restarts, merges, trims and faults; in the end storage is empty."""
    model = Model(seed)
    chance = model.random
    stage = Stage(
        least=chance.choice([1, 4, 9]),
        step=chance.choice([1, 30, 10_000]),
        most_indexes=chance.choice([-1, 1, 3]),
        most_buckets=chance.choice([-1, 1, 3]),
        prefetch=chance.choice([0, 0.1, 100]),
        max_indexes_per_bucket=chance.choice([None, 20]),
    )
    for _ in range(4):
        async with stage.run():
            model.held = {Position(*each) for each in stage.tracker._index.pending}
            for position in [each for each in sorted(model.times) if each not in model.delivered]:
                model.offer(stage, position)
            assert stage.count == len(model.held)
            await play(stage, model, size(120, fast=40), faulty=faulty)
    for each in (stage.storage.faults, stage.cursor.faults):
        each.fail.clear()
        each.fail_after.clear()
    async with stage.run():
        model.held = {Position(*each) for each in stage.tracker._index.pending}
        for position in [each for each in sorted(model.times) if each not in model.delivered]:
            model.offer(stage, position)
        for _ in range(200):
            stage.clock.advance(100)
            await stage.idle()
            model.take(stage, 1_000)
        await stage.idle()
        assert set(model.delivered) == set(model.times)
        assert stage.count == 0
        stage.clock.advance(100_000)
        await stage.idle()
    assert stage.stored == []
