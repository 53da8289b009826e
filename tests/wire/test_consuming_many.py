"""A consumer of a pattern on a scripted broker, while topics come and go."""

from __future__ import annotations

import asyncio
import re

from pulsar_nack.testing import virtual_time
from pulsar_nack.wire import Client
from tests.wire.fake_broker import FakeBroker

NAMES = ["persistent://public/default/a", "persistent://public/default/b"]


@virtual_time
async def test_a_topic_that_is_gone_keeps_no_other_from_redelivery() -> None:
    """Messages of both come due together; that of the topic which is left comes, whatever became of the other."""
    broker = FakeBroker()
    for number, name in enumerate(NAMES):
        broker.topic(name).ledger = 50 + number
        broker.topic(name).publish(name.encode())
    async with (
        Client(broker.url, dial=broker.dial) as client,
        client.subscribe(
            re.compile("[ab]"), "s", initial_position="earliest", discovery_interval=1, redelivery="broker"
        ) as consumer,
    ):
        for message in [await consumer.receive(timeout=60) for _ in NAMES]:
            await message.nack(5)
        left = {"topics": NAMES[1:]}
        broker.always("GET_TOPICS_OF_NAMESPACE", lambda call: call.reply("GET_TOPICS_OF_NAMESPACE_RESPONSE", **left))
        await asyncio.sleep(3)
        assert consumer.statistics().held == 1  # what is held of the topic that is gone is forgotten
        assert (await consumer.receive(timeout=60)).data == NAMES[1].encode()
