"""Consumers with a retry topic and random faults: no message is lost, and attempts never decrease."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from pulsar_nack import AlreadySettledError, BrokerError, ClosedError, Consumer, DeadLetterPolicy
from pulsar_nack.consumer import RetryTopicPolicy
from pulsar_nack.testing import virtual_time
from tests.tiers import seeds, size
from tests.wire.fake_broker import FakeBroker, carried_out_then_cut, cut, refuse
from tests.wire.letters import DEAD, RETRY, TOPIC, consuming, stored, unacked

FAULTS = {
    "SEND": [cut, carried_out_then_cut, refuse("NotAllowedError"), refuse("UnknownError")],
    "ACK": [cut, carried_out_then_cut, refuse("UnknownError")],
    "PRODUCER": [cut, refuse("ServiceNotReady")],
}


class Scenario:
    """Workers that settle messages at random, while the broker fails at random."""

    def __init__(self, seed: int, messages: int) -> None:
        self.random = Random(seed)
        self.broker = FakeBroker()
        self.broker.topic(DEAD).ledger = 9
        self.messages = messages
        self.acked: set[bytes] = set()
        self.attempts: dict[bytes, int] = {}

    async def run(self) -> None:
        """Run until each message is acknowledged or a dead letter."""
        for number in range(self.messages):
            self.broker.topic(TOPIC).publish(b"%d" % number)
        while not self.is_done():
            policy = RetryTopicPolicy(spill_after=30)
            settings = {"retry_topic": policy, "dead_letter": DeadLetterPolicy(4), "unacked_limit": 1_010}
            async with consuming(self.broker, **settings) as consumer:
                workers = [asyncio.create_task(self.work(consumer)) for _ in range(3)]
                await asyncio.sleep(self.random.uniform(5, 200))
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)

    def is_done(self) -> bool:
        """Return whether both topics are done."""
        topics = self.broker.topics
        return RETRY in topics and not unacked(self.broker, TOPIC) and not unacked(self.broker, RETRY)

    async def work(self, consumer: Consumer) -> None:
        """Settle each message in a random way."""
        while True:
            message = await consumer.receive()
            random, data = self.random, message.data
            self.attempts[data] = max(self.attempts.get(data, 0), message.attempt)
            assert 1 <= message.attempt <= 5
            if random.random() < 0.3:
                kind = random.choice(list(FAULTS))
                self.broker.next(kind, random.choice(FAULTS[kind]))
            if random.random() < 0.05:
                self.broker.cut()
            verb = random.choice(["ack", "ack", "nack", "long", "later", "later", "dead", "nothing"])
            try:
                if verb == "ack":
                    self.acked.add(data)  # one that fails, or is cancelled, may have been carried out
                    await message.ack()
                elif verb == "nack":
                    await message.nack(random.uniform(0, 20))
                elif verb == "long":
                    await message.nack(random.uniform(31, 100))
                elif verb == "later":
                    await message.reconsume_later(random.uniform(0, 50))
                elif verb == "dead":
                    await message.dead_letter("bad")
                else:
                    await message.nack(5)
            except (AlreadySettledError, BrokerError):
                continue
            except ClosedError:
                return


@pytest.mark.parametrize("seed", seeds(range(12), fast=2))
@virtual_time
async def test_nothing_is_lost(seed: int) -> None:
    """U15, U45: each message that leaves was to be acknowledged or is a dead letter, whatever was cut in between."""
    scenario = Scenario(seed, size(60, fast=20))
    async with asyncio.timeout(100_000):
        await scenario.run()
    dead = {payload for _, payload in stored(scenario.broker, DEAD)}
    everything = {b"%d" % number for number in range(scenario.messages)}
    assert scenario.acked | dead == everything
    assert scenario.attempts.keys() == everything
