"""A topic's consumer under random faults on virtual time: nothing is lost, nothing unacked is acknowledged."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, Final

import pytest

from pulsar_nack.consumer import Delivery
from pulsar_nack.errors import BrokerError
from pulsar_nack.ids import MessageId
from pulsar_nack.testing import virtual_time
from tests.tiers import seeds
from tests.wire.consuming import Consuming, consuming
from tests.wire.fake_broker import URL, Answer, carried_out_then_cut, cut, half, later, refuse, silence
from tests.wire.test_chunks import publish

FAULTS: Final[tuple[tuple[str, Answer], ...]] = (
    ("ACK", cut),
    ("ACK", carried_out_then_cut),
    ("ACK", half()),
    ("ACK", refuse("MetadataError")),
    ("ACK", silence),
    ("ACK", later(0.3)),
    ("FLOW", cut),
    ("FLOW", later(0.05)),
    ("SUBSCRIBE", cut),
    ("SUBSCRIBE", half()),
    ("SUBSCRIBE", refuse("ServiceNotReady")),
    ("SUBSCRIBE", later(0.2)),
    ("LOOKUP", cut),
    ("REDELIVER_UNACKNOWLEDGED_MESSAGES", cut),
    ("REDELIVER_UNACKNOWLEDGED_MESSAGES", carried_out_then_cut),
)


class Work:
    """Takes messages, acknowledges some of them, and requests the others again, as a Consumer does."""

    def __init__(self, made: Consuming, chance: random.Random, *, keeps_indexes: bool) -> None:
        self.made = made
        self.chance = chance
        self.keeps_indexes = keeps_indexes
        self.asked: set[MessageId] = set()
        """Messages whose acknowledgement was begun; the broker may have it."""
        self.confirmed: set[MessageId] = set()
        self.seen: set[MessageId] = set()
        self._calls: set[asyncio.Task[None]] = set()

    async def run(self, consumer: Any, until: Callable[[], bool]) -> None:
        """Work until a condition holds."""
        async with asyncio.timeout(3_600):
            while not until():
                arrived = self.made.arrived.take_nowait(self.chance.randint(1, 20))
                for delivery in arrived:
                    self._begin(consumer, delivery)
                await asyncio.sleep(self.chance.choice((0, 0, 0.0005, 0.003, 0.05)) if arrived else 0.05)
        while self._calls:
            await asyncio.wait(self._calls)

    def _begin(self, consumer: Any, delivery: Delivery) -> None:
        self.seen.add(delivery.id)
        is_acked = delivery.id in self.confirmed or self.chance.random() < 0.6
        task = asyncio.create_task(self._ack(consumer, delivery.id) if is_acked else self._nack(consumer, delivery.id))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _ack(self, consumer: Any, message_id: MessageId) -> None:
        self.asked.add(message_id)
        try:
            if self.chance.random() < 0.1:
                async with asyncio.timeout(self.chance.choice((0, 0.001))):
                    await consumer.acknowledge([message_id])
            else:
                await consumer.acknowledge([message_id])
        except (BrokerError, TimeoutError):
            await self._nack(consumer, message_id)
        else:
            self.confirmed.add(message_id)

    async def _nack(self, consumer: Any, message_id: MessageId) -> None:
        while True:
            await asyncio.sleep(self.chance.random() / 10)
            consumer.redeliver_nowait([message_id])
            await asyncio.sleep(5)  # requested again after a while if it does not come, as a Consumer does
            if message_id in self.asked or self.chance.random() < 0.9:
                return

    def check(self) -> None:
        """Compare with the broker's state: an entry is acknowledged only if all of it was."""
        subscription = self.made.subscription
        for message_id in self.confirmed:
            left = subscription.unacked_indexes.get(message_id.position)
            is_acked = message_id.position in subscription.acked
            if message_id.batch_index < 0 or self.keeps_indexes:
                is_left = left is not None and bool(left[0] >> max(message_id.batch_index, 0) & 1)
                assert is_acked or (left is not None and not is_left), message_id
        asked = {each.position for each in self.asked if each.batch_index < 0} | {
            part for each in self.asked for part in each.parts if each.is_chunked
        }
        for position in subscription.acked - asked:
            members = {each.batch_index for each in self.asked if each.position == position}
            (entry,) = [entry for entry in self.made.topic.entries if entry.place == position]
            assert len(members) == entry.messages, position


def disturb(made: Consuming, chance: random.Random) -> None:
    """Cause one random fault."""
    kind = chance.random()
    if kind < 0.2:
        made.broker.cut()
    elif kind < 0.3:
        made.broker.move(made.topic.name, chance.choice((URL, "pulsar://other:6650")), tell_where=chance.random() < 0.5)
    elif kind < 0.35:
        node = made.broker.node(made.topic.owner)
        node.kill()
        asyncio.get_running_loop().call_later(chance.random(), node.start)
    else:
        made.broker.next(*chance.choice(FAULTS))


@pytest.mark.parametrize("seed", seeds(range(8), fast=2))
@virtual_time
async def test_nothing_is_lost(seed: int) -> None:
    """Through cuts, moves, refusals and lost answers every message is delivered and acknowledged, and no other."""
    chance = random.Random(seed)
    keeps_indexes = seed % 2 == 0
    async with consuming(request_timeout=2) as made:
        kind = "exclusive" if seed % 4 == 3 else "shared"
        consumer = await made.open(type=kind, batch_index_ack=keeps_indexes, receiver_queue_size=chance.randint(1, 40))
        work = Work(made, chance, keeps_indexes=keeps_indexes)

        async def trouble() -> None:
            for number in range(60):
                if number < 40:
                    made.topic.publish(b"lone")
                    made.topic.publish_batch([b"member"] * chance.randint(2, 5))
                    if number % 8 == 0:
                        publish(made, b"0123456789", 3, uuid=f"u{number}")
                disturb(made, chance)
                await asyncio.sleep(chance.random() / 2)
                work.check()

        def is_done() -> bool:
            return troubled.done() and len(made.topic.entries) <= len(made.subscription.acked)

        troubled = asyncio.create_task(trouble())
        await work.run(consumer, is_done)
        await troubled
        work.check()
        assert {entry.place for entry in made.topic.entries} == made.subscription.acked
        assert sum(message_id.is_chunked for message_id in work.seen) == 5
        assert len(made.topic.entries) == 40 * 2 + 5 * 4
        await asyncio.sleep(10)
        copies = made.arrived.take_nowait()  # requested before the acknowledgement that ended it all
        assert {delivery.id for delivery in copies} <= work.asked
