"""A local topic crashes at every operation on files; what was reported is there, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import pytest

from pulsar_nack import BucketConfig, MessageId
from pulsar_nack.config import CursorConfig, TopicConfig
from pulsar_nack.errors import LedgerError
from pulsar_nack.testing import ManualClock
from pulsar_nack.topic import LocalPort, LocalTopic
from tests.crash_homes import CHANGING, AnyHome, Home, crash_everywhere, play
from tests.tiers import seeds

CONFIG = TopicConfig(
    max_entries_per_ledger=3,
    cache_bytes=0,
    cursor=CursorConfig(rollover_bytes=600, managed_ledger_cursor_max_entries_per_ledger=20, flush_interval=0.002),
)
IN_BUCKETS = BucketConfig(
    delayed_delivery_tracker_factory_class_name="bucket", delayed_delivery_min_index_count_per_bucket=2
)
LATER_MS = 1_000_000
LEAST = 125
"""Crash points of each of four runs, at the least: 500 in all."""


class Model:
    """What was begun, and what was reported as done."""

    def __init__(self) -> None:
        self.begun: set[bytes] = set()
        self.published: set[bytes] = set()
        self.is_subscribed = False
        self.acked: set[bytes] = set()
        self.flushed: set[bytes] = set()

    def fork(self) -> Model:
        """Return a copy."""
        copied = Model()
        copied.begun, copied.published, copied.is_subscribed = set(self.begun), set(self.published), self.is_subscribed
        copied.acked, copied.flushed = set(self.acked), set(self.flushed)
        return copied

    def check(self, delivered: Counter[bytes]) -> None:
        """Compare with all that comes after a crash: once each, everything required, and nothing forbidden."""
        assert set(delivered.values()) <= {1}
        assert set(delivered) <= self.begun
        assert not set(delivered) & self.flushed
        if self.is_subscribed:
            assert self.published - self.acked <= set(delivered)


class Scenario:
    """A process that publishes, receives, acknowledges and flushes at random, over some restarts."""

    def __init__(self, home: AnyHome, model: Model, seed: int) -> None:
        self.home = home
        self.model = model
        self.random = Random(seed)
        self.clock = ManualClock(1_000)

    async def live(self) -> None:
        """Run over some restarts."""
        await self.play(3)

    live_on = live

    async def recover(self, _random: Random) -> None:
        """Receive everything that a crash left."""
        await drain(self.home, self.model)

    async def play(self, restarts: int, steps: int = 10) -> None:
        """Run once."""
        for _ in range(restarts):
            store = await self.home.open()
            async with store, await LocalTopic.open(store, CONFIG, delayed=IN_BUCKETS, clock=self.clock) as topic:
                port = await topic.subscribe("s", initial_position="earliest")
                self.model.is_subscribed = True
                for _ in range(steps):
                    await self.step(topic, port)
            self.model.flushed = set(self.model.acked)

    async def step(self, topic: LocalTopic, port: LocalPort) -> None:
        """Do one random operation."""
        what = self.random.choice(["publish", "publish", "publish later", "work", "work", "flush"])
        if what.startswith("publish"):
            payloads = [b"%d" % (len(self.model.begun) + at) for at in range(self.random.randint(1, 3))]
            self.model.begun.update(payloads)
            at = LATER_MS if what == "publish later" else None
            await topic.publish(payloads, batch=self.random.random() < 0.3, deliver_at=at)
            self.model.published.update(payloads)
        elif what == "work":
            for _ in range(self.random.randint(1, 4)):
                try:
                    delivery = await asyncio.wait_for(port.receive(), 0.01)
                except TimeoutError:
                    return
                if self.random.random() < 0.7:
                    self.model.acked.add(delivery.data)
                    await port.acknowledge([delivery.id])
        else:
            acked = set(self.model.acked)
            await topic.flush()
            self.model.flushed = acked


async def drain(home: AnyHome, model: Model) -> None:
    """Receive all messages once they are due, and acknowledge them."""
    delivered: Counter[bytes] = Counter()
    store = await home.open()
    clock = ManualClock(LATER_MS)
    async with store, await LocalTopic.open(store, CONFIG, delayed=IN_BUCKETS, clock=clock) as topic:
        if model.is_subscribed:
            assert list(topic.subscriptions) == ["s"]
        port = await topic.subscribe("s", initial_position="earliest")
        ids: list[MessageId] = []
        async with asyncio.timeout(20):
            while topic.backlog("s"):
                delivery = await port.receive()
                delivered[delivery.data] += 1
                ids.append(delivery.id)
                await port.acknowledge([delivery.id])
        model.check(delivered)
        last = await topic.publish(b"the end")
        assert (await asyncio.wait_for(port.receive(), 5)).id == last
        assert list(topic.ledgers)[-1] == last.ledger


@pytest.mark.parametrize("seed", seeds((2, 0, 1, 3)))
def test_crash_at_every_change(seed: int) -> None:
    """Whatever operation is the last one, published messages are there, and flushed acknowledgements hold."""
    crash_everywhere(Scenario(Home(Random(seed)), Model(), seed), seed, LEAST)


@pytest.mark.parametrize("seed", seeds(range(25), fast=5))
def test_operations_that_fail_lose_nothing(seed: int) -> None:
    """If operations on files fail now and then, calls raise, and what was reported is there in the end."""
    random = Random(seed)
    scenario = Scenario(Home(random), Model(), seed)
    scenario.home.fail(CHANGING, random.randint(20, 300), random.randint(1, 3))
    for _ in range(3):
        try:
            play(scenario.play(1))
        except LedgerError:
            scenario.home.faults.heal()
    scenario.home.faults.heal()
    play(drain(scenario.home.fork(random), scenario.model))
