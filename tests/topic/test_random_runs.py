"""A topic with random operations and restarts, on virtual time: nothing is lost, repeated for good, or early."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

import pytest

from pulsar_nack import BrokerError, BucketConfig, ClosedError, DelayedDeliveryConfig, Delivery
from pulsar_nack.config import CursorConfig, TopicConfig
from pulsar_nack.testing import FaultyPort, LocalBroker, virtual_time
from pulsar_nack.topic import LocalTopic
from tests.tiers import seeds, size
from tests.topic.test_delayed import IN_BUCKETS, IN_MEMORY, SHARED_INDEX

SUBSCRIPTIONS: Final = {"a": "shared", "b": "key_shared", "c": "failover"}


@dataclass
class Model:
    """What is known of one subscription."""

    acking: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)
    for_good: set[int] = field(default_factory=set)
    """Acknowledged, and flushed before the last restart."""


class RandomRuns:
    """A broker that is started again and again, with random producers and consumers."""

    def __init__(self, seed: int, delayed: DelayedDeliveryConfig) -> None:
        self.random = random = Random(seed)
        config = TopicConfig(
            max_entries_per_ledger=random.choice([3, 10, 50]),
            cache_bytes=random.choice([0, 500, 1 << 20]),
            cursor=CursorConfig(
                flush_interval=random.choice([0.01, 1, 10]),
                max_individual_ack_cache_bytes_per_cursor=random.choice([0, 1 << 20]),
                rollover_bytes=2_000,
            ),
        )
        self.broker = LocalBroker(config, delayed=delayed, seed=seed)
        self.begun = 0
        self.published: set[int] = set()
        self.due: dict[int, int] = {}
        self.models = {name: Model() for name in SUBSCRIPTIONS}
        self.queues: dict[str, int] = {}
        self.is_down = False

    # -- between two restarts ------------------------------------------------------------------------------------------

    async def produce(self, topic: LocalTopic) -> None:
        """Publish single messages and batches, now and later."""
        random = self.random
        for _ in range(25):
            await asyncio.sleep(random.random())
            numbers = range(self.begun, self.begun + random.randint(1, 4))
            self.begun = numbers.stop
            at = None
            if random.random() < 0.4:
                at = self.broker._clock.now_ms() + random.randint(0, 20_000)
                self.due.update(dict.fromkeys(numbers, at))
            key, is_batch = f"key-{random.randrange(4)}", random.random() < 0.4
            await topic.publish([b"%d" % number for number in numbers], key=key, deliver_at=at, batch=is_batch)
            if not self.is_down:
                self.published.update(numbers)

    async def consume(self, name: str, patience: float = 5) -> None:
        """Consume for a while, and acknowledge most messages."""
        random, model = self.random, self.models[name]
        port: FaultyPort = await self.broker.subscribe(
            name,
            SUBSCRIPTIONS[name],
            receiver_queue_size=random.choice([1, 5, 100]),
            unacked_limit=random.choice([None, 7]),
        )
        self.queues[port.name] = port.traits.receiver_queue_size
        held: list[Delivery] = []
        for _ in range(random.randint(5, 40)):
            try:
                delivery = await asyncio.wait_for(port.receive(), patience)
            except TimeoutError:
                break
            self.check(name, delivery)
            held.append(delivery)
            await asyncio.sleep(random.random() / 4)
            self.check_figures(self.topic)
            if random.random() < 0.2:
                await port.redeliver([each.id for each in held])
                held.clear()
            elif random.random() < 0.7:
                await self.acknowledge(port, model, held)
        await port.close()

    async def acknowledge(self, port: FaultyPort, model: Model, held: list[Delivery]) -> None:
        """Acknowledge messages in flight, in some order."""
        self.random.shuffle(held)
        numbers = {int(each.data) for each in held}
        model.acking |= numbers
        await port.acknowledge([each.id for each in held])
        held.clear()
        if not self.is_down:
            model.acked |= numbers

    async def flush(self, topic: LocalTopic) -> None:
        """Flush now and then."""
        while True:
            await asyncio.sleep(self.random.random() * 5)
            acked = {name: set(model.acked) for name, model in self.models.items()}
            await topic.flush()
            if not self.is_down:
                for name, model in self.models.items():
                    model.for_good |= acked[name]

    def check(self, name: str, delivery: Delivery) -> None:
        """Assert that a message may come now."""
        number = int(delivery.data)
        assert number not in self.shown_never[name], f"{number} was acknowledged for good"
        if SUBSCRIPTIONS[name] != "failover" and not delivery.redelivery_count:
            assert self.broker._clock.now_ms() >= self.due.get(number, 0), f"{number} is early"

    def check_figures(self, topic: LocalTopic) -> None:
        """Assert that each consumer's free queue and unacknowledged messages agree with its queue and entries."""
        for subscription in topic._subscriptions.used.values():
            dispatcher = subscription._dispatcher
            assert set(dispatcher._consumers) == set(subscription._inboxes)
            for number, inbox in subscription._inboxes.items():
                member = dispatcher._consumers[number]
                if member.name in self.queues:
                    assert member.room + len(inbox) == self.queues[member.name]
                held = [each for each in dispatcher.in_flight.values() if each.consumer == number]
                assert member.unacked == sum(each.messages for each in held)
                assert all(each.consumer == number and each.left for each in held)

    # -- runs ----------------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Run until the broker goes down, in some way."""
        self.is_down = False
        self.queues.clear()
        self.shown_never = {name: set(model.for_good) for name, model in self.models.items()}
        topic = self.topic = await self.broker.topic()
        for name in SUBSCRIPTIONS:
            await topic.create_subscription(name, initial_position="earliest")

        async def keep(consume: Callable[[str], Awaitable[None]], name: str) -> None:
            while True:
                await consume(name)

        work = [self.produce(topic), self.flush(topic)]
        work += [keep(self.consume, name) for name in SUBSCRIPTIONS for _ in range(2)]
        tasks = [asyncio.create_task(each) for each in work]
        await asyncio.sleep(self.random.uniform(5, 40))
        for task in tasks:
            if task.done() and task.exception() is not None:
                task.result()
        self.is_down = True
        how = self.random.choice([{}, {"kill": True}, {"power_cut": True}])
        await self.broker.restart(**how)
        if not how:
            for model in self.models.values():
                model.for_good = set(model.acked)
        for task in tasks:
            task.cancel()
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(error, Exception) and not isinstance(error, ClosedError | BrokerError):
                raise error

    async def end(self) -> None:
        """Receive and acknowledge all remaining messages."""
        self.is_down = False
        topic = await self.broker.topic()
        for name, kind in SUBSCRIPTIONS.items():
            self.shown_never[name] = set(self.models[name].for_good)
            left: set[int] = set()
            port: FaultyPort = await self.broker.subscribe(name, kind)
            while topic.backlog(name):
                delivery = await asyncio.wait_for(port.receive(), 100)
                self.check(name, delivery)
                left.add(int(delivery.data))
                await port.acknowledge([delivery.id])
            assert self.published - self.models[name].acking <= left
            statistics = topic.statistics().subscriptions[name]
            assert (statistics.in_flight, statistics.waiting) == (0, 0)
            await port.close()


@pytest.mark.parametrize("delayed", [IN_MEMORY, IN_BUCKETS, SHARED_INDEX], ids=["memory", "buckets", "shared index"])
@pytest.mark.parametrize("seed", seeds(range(30)))
@virtual_time
async def test_random_runs(seed: int, delayed: BucketConfig) -> None:
    """Over some restarts published messages come, none early, and none that is acknowledged for good."""
    runs = RandomRuns(seed, delayed)
    async with runs.broker:
        for _ in range(size(5, fast=1)):
            await runs.live()
        await runs.end()
