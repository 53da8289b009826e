"""A local topic is stopped at every operation on files; what was reported is there, and nothing is lost."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from random import Random

import pytest

from pulsar_nack import BucketConfig, LedgerError, MessageId, PulsarNackError
from pulsar_nack.config import CursorConfig, TopicConfig
from pulsar_nack.ledger import _local_store
from pulsar_nack.testing import ManualClock, SimulatedCrash, run
from pulsar_nack.topic import LocalPort, LocalTopic
from tests.delayed.bucket.crash_homes import Inline, LocalCrashHome

CONFIG = TopicConfig(
    max_entries_per_ledger=3,
    cache_bytes=0,
    cursor=CursorConfig(rollover_bytes=600, managed_ledger_cursor_max_entries_per_ledger=20, flush_interval=0.002),
)
IN_BUCKETS = BucketConfig(
    delayed_delivery_tracker_factory_class_name="bucket", delayed_delivery_min_index_count_per_bucket=2
)
LATER_MS = 1_000_000
LEAST = 500
"""Crash points at the least."""


@pytest.fixture(autouse=True)
def _inline(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Let the work on files be done where it is asked for: each run is the same."""
    caplog.set_level(logging.CRITICAL, logger="asyncio")
    monkeypatch.setattr(_local_store, "ThreadPoolExecutor", Inline)


class Model:
    """What was begun, and what was reported to be done."""

    def __init__(self) -> None:
        self.begun: set[bytes] = set()
        self.published: set[bytes] = set()
        self.is_subscribed = False
        self.acked: set[bytes] = set()
        self.flushed: set[bytes] = set()

    def check(self, delivered: Counter[bytes]) -> None:
        """Compare with what comes in all after a crash: once each, all that has to, and nothing that must not."""
        assert set(delivered.values()) <= {1}
        assert set(delivered) <= self.begun
        assert not set(delivered) & self.flushed
        if self.is_subscribed:
            assert self.published - self.acked <= set(delivered)


class Life:
    """A process that publishes, receives, acknowledges and flushes at random, over some restarts."""

    def __init__(self, home: LocalCrashHome, model: Model, seed: int) -> None:
        self.home = home
        self.model = model
        self.random = Random(seed)
        self.clock = ManualClock(1_000)

    async def play(self, restarts: int = 3, steps: int = 10) -> None:
        """Live."""
        for _ in range(restarts):
            store = await self.home.open()
            async with store, await LocalTopic.open(store, CONFIG, delayed=IN_BUCKETS, clock=self.clock) as topic:
                port = await topic.subscribe("s", initial_position="earliest")
                self.model.is_subscribed = True
                for _ in range(steps):
                    await self.step(topic, port)
            self.model.flushed = set(self.model.acked)

    async def step(self, topic: LocalTopic, port: LocalPort) -> None:
        """Do one thing."""
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


async def drain(home: LocalCrashHome, model: Model) -> None:
    """Receive everything that there is, when everything is due, and acknowledge it."""
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


def live(life: Life) -> None:
    """Live until the end, or the crash."""
    try:
        run(life.play())
    except (SimulatedCrash, PulsarNackError, BaseExceptionGroup):
        assert life.home.is_crashed


def crash_at(seed: int, step: int) -> int:
    """Crash lives at each operation that changes something, or some of them; return at how many."""
    life = Life(LocalCrashHome(Random(seed)), Model(), seed)
    live(life)
    assert not life.home.is_crashed
    run(drain(life.home.found(), life.model))
    points = life.home.changes()[seed % step :: step]
    for at in points:
        random = Random(f"{seed} {at}")
        life = Life(LocalCrashHome(random), Model(), seed)
        life.home.crash(at, after=random.random() < 0.5)
        live(life)
        run(drain(life.home.found(), life.model))
    return len(points)


@pytest.mark.parametrize("seed", range(4))
def test_crashed_at_some_operations(seed: int) -> None:
    """Whatever operation is the last one, what was published is there, what was flushed as acknowledged is so."""
    assert crash_at(seed, 6) >= 20


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_crashed_at_every_operation() -> None:
    """The same at each operation of several lives."""
    assert sum(crash_at(seed, 1) for seed in range(4)) >= LEAST


def test_operations_that_fail_lose_nothing() -> None:
    """Where operations on files fail now and then, calls raise, and what was reported is there in the end."""
    for seed in range(25):
        random = Random(seed)
        life = Life(LocalCrashHome(random), Model(), seed)
        life.home.fail(random.randint(20, 300), random.randint(1, 3))
        for _ in range(3):
            try:
                run(life.play(1))
            except LedgerError:
                life.home.heal()
        life.home.heal()
        run(drain(life.home.found(), life.model))
