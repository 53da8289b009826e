"""A subscription at random: kinds of trackers, faults and crashes one after another, compared with a model."""

from __future__ import annotations

import asyncio
import random

from pulsar_nack import BucketDelayedDeliveryTracker, DelayedDeliveryTracker
from pulsar_nack.delayed import DisabledDelayedDeliveryTracker
from tests.for_each import for_each
from tests.tiers import sample

from .factories import NAMES, Subscription

KINDS = ("bucket", "bucket", "memory", "none")
CALLS = ("start", "create", "metadata", "segment", "delete", "list")


class Scenario(Subscription):
    """A subscription whose messages have random times, and whose runs end in any state."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.times: dict[int, int] = {}

    async def live(self, kind: str, steps: int) -> None:
        """Run with a kind of tracker, under faults, and end in the middle of any operation."""
        self.trouble()
        factory = self.factory_of(kind, recovery_timeout=0.01)
        await factory.start()
        tracker = await factory.new_tracker(self.cursor, **NAMES)
        self.offer(tracker, sorted(self.unacked))
        for _ in range(steps):
            self.publish_some(tracker)
            for _ in range(self.random.randrange(60)):
                await asyncio.sleep(0)
            self.take(tracker)
            self.clock.advance(self.random.randrange(40))
        self.memory.faults.heal()  # closing waits for calls that are blocked
        self.properties.faults.heal()
        await factory.aclose()

    def trouble(self) -> None:
        """Make some calls fail, or hang."""
        for faults, calls in ((self.memory.faults, CALLS), (self.properties.faults, ("put", "remove"))):
            faults.heal()
            for call in calls:
                if self.random.random() < 0.2:
                    faults.fail[call] = self.random.choice((1, 3, -1))
                elif self.random.random() < 0.1:
                    faults.hold(call)
                elif self.random.random() < 0.1:
                    faults.fail_after[call] = 1

    def publish_some(self, tracker: DelayedDeliveryTracker) -> None:
        """Publish a few messages and read them."""
        first = len(self.times)
        numbers = list(range(first, first + self.random.randrange(12)))
        self.times |= {number: self.clock.now_ms() + self.random.randrange(400) for number in numbers}
        self.unacked |= set(numbers)
        self.offer(tracker, numbers)

    def offer(self, tracker: DelayedDeliveryTracker, numbers: list[int]) -> None:
        """Read messages: dispatch those that the tracker refuses."""
        for number in numbers:
            if not tracker.add_message(1 + number // 20, number, self.times[number]):
                self.deliver_one(tracker, number)
            elif isinstance(tracker, BucketDelayedDeliveryTracker):
                assert tracker.contains_message(1 + number // 20, number)

    def take(self, tracker: DelayedDeliveryTracker) -> None:
        """Dispatch messages of the tracker."""
        for position in tracker.get_scheduled_messages(self.random.choice((3, 100))):
            if position.entry in self.unacked:  # a dispatcher leaves out what is acknowledged
                self.deliver_one(tracker, position.entry)

    def deliver_one(self, tracker: DelayedDeliveryTracker, number: int) -> None:
        """Dispatch and acknowledge a message: not before its time, unless nothing is delayed."""
        is_free = isinstance(tracker, DisabledDelayedDeliveryTracker)
        assert is_free or self.times[number] <= self.clock.now_ms()
        self.unacked.remove(number)
        self.dispatched.append(number)


@for_each("seed", sample(range(40)))
async def test_lives(seed: int) -> None:
    """D34: with any faults and any sequence, each message is dispatched once, in time; the end is clean."""
    scenario = Scenario(seed)
    for _ in range(scenario.random.randrange(2, 7)):
        await scenario.live(scenario.random.choice(KINDS), scenario.random.randrange(1, 12))
    async with scenario.factory_of("memory") as factory:
        tracker = await factory.new_tracker(scenario.cursor, **NAMES)
        scenario.offer(tracker, sorted(scenario.unacked))
        assert tracker.number_of_delayed_messages == len(scenario.unacked)
        scenario.clock.advance(1_000)
        while scenario.unacked:
            scenario.take(tracker)
        await factory.wait_until_clean()
    assert sorted(scenario.dispatched) == sorted(scenario.times)
    assert scenario.memory.snapshots == {}
    assert scenario.properties.held == {"other": "1"}
