"""Durable consumers on one subscription at random, beside a model of each message."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from pulsar_nack import Consumer, Message
from pulsar_nack.testing import virtual_time
from tests.consumer.consuming import now
from tests.consumer.durable import Machine
from tests.consumer.ports import Ports
from tests.for_each import named
from tests.tiers import sample, seeds

pytestmark = pytest.mark.not_on("nowait", reason="durable consumers use no calls that need no task")

COUNT = 12


@dataclass
class Known:
    """What is known of one message: its deliveries, when it may come again, and whether it is acknowledged."""

    shown: int = 0
    due_at: float = 0.0
    is_acked: bool = False


async def live(consumer: Consumer, random: Random, known: dict[bytes, Known], until: float) -> None:
    """Until this time receive, and acknowledge, nack, or stay in the handler."""
    hand: list[Message] = []
    while now() < until:
        try:
            message = await consumer.receive(timeout=random.choice([0.5, 3.0]))
        except TimeoutError:
            if hand and random.random() < 0.5:
                await settle(hand.pop(random.randrange(len(hand))), random, known)
            continue
        state = known[message.data]
        assert not state.is_acked
        assert message.attempt == state.shown + 1
        assert now() >= state.due_at - 1e-3
        state.shown += 1
        if random.random() < 0.3:
            hand.append(message)
        else:
            await settle(message, random, known)


async def settle(message: Message, random: Random, known: dict[bytes, Known]) -> None:
    """Acknowledge or nack."""
    if random.random() < 0.25:
        await message.ack()
        known[message.data].is_acked = True
    else:
        delay = random.choice([0.0, 0.3, 5.0, 40.0])
        known[message.data].due_at = now() + delay
        await message.nack(delay)


@pytest.mark.not_on("wire", reason="the scripted broker has one ledger for each topic")
@pytest.mark.parametrize("tenth", seeds(range(10)))
def test_random_runs(ports: Ports, tenth: int) -> None:
    """U7: over kills and closes attempts continue without a gap, nothing comes early, twice or never."""
    for seed in sample(range(tenth, 100, 10)):
        with named(seed=seed):
            lives(ports, seed)


@virtual_time
async def lives(ports: Ports, seed: int) -> None:
    """Open and close consumers until everything is acknowledged."""
    random = Random(seed)
    options: dict[str, Any] = {"subscription_type": random.choice(["shared", "exclusive"])}
    machine = Machine(ports, ports.topic(entries_per_ledger=4), seed, latency=random.choice([0.0, 0.05]), **options)
    known = {bytes([number]): Known() for number in range(COUNT)}
    for number in range(0, COUNT, 3):
        machine.topic.publish(bytes([number]))
        machine.topic.publish_batch([bytes([number + 1]), bytes([number + 2])])
    redelivery: Any = random.choice(
        ["auto", "local", "broker"] if options["subscription_type"] == "shared" else ["auto"]
    )
    count = 0
    while not all(state.is_acked for state in known.values()):
        count += 1
        assert count < 300, "a message does not come"
        async with machine.consuming(killed=random.random() < 0.6, redelivery=redelivery) as consumer:
            await live(consumer, random, known, now() + random.choice([0.0, 1.0, 20.0, 60.0]))
        await asyncio.sleep(random.choice([0.0, 0.1, 30.0]))
    async with machine.consuming(redelivery=redelivery) as consumer:  # acks what was redelivered with its batch
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout=50)
    assert machine.topic.subscription("fake").backlog == 0
