"""A consumer of a pattern on a scripted broker, while topics come and go."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from pulsar_nack import BrokerError, MessageId
from pulsar_nack.testing import virtual_time
from pulsar_nack.wire import Client
from tests.wire.fake_broker import Call, FakeBroker, as_usual, refuse

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


class Deletable:
    """A broker of which topics can be deleted, and a client of it."""

    def __init__(self) -> None:
        self.broker = FakeBroker()
        self.deleted: set[str] = set()
        for number, name in enumerate(NAMES):
            self.broker.topic(name).ledger = 50 + number
            for _ in range(4):
                self.broker.topic(name).publish(name.encode())
        self.broker.always("SUBSCRIBE", self._subscribe)
        self.broker.always("GET_TOPICS_OF_NAMESPACE", self._topics)
        self.client = Client(self.broker.url, dial=self.broker.dial)

    def _subscribe(self, call: Call) -> None:
        answer = refuse("TopicNotFound") if call.body.topic in self.deleted else as_usual
        answer(call)

    def _topics(self, call: Call) -> None:
        call.reply("GET_TOPICS_OF_NAMESPACE_RESPONSE", topics=[name for name in NAMES if name not in self.deleted])

    def delete(self, name: str) -> None:
        """Delete a topic; its consumers are closed."""
        self.deleted.add(name)
        for link in self.broker.links:
            link.close_users_of(self.broker.topic(name))

    def subscribe(self, **settings: Any) -> Any:
        """Consume both."""
        told = {"initial_position": "earliest", "discovery_interval": 5, "redelivery": "broker", **settings}
        return self.client.subscribe(re.compile("[ab]"), "s", **told)


@virtual_time
async def test_messages_of_a_topic_that_was_deleted_can_be_settled() -> None:
    """Acknowledged or nacked, also before it is known that the topic is gone, they are done with; others go on."""
    deletable = Deletable()
    async with deletable.client, deletable.subscribe() as consumer:
        messages = [await consumer.receive(timeout=60) for _ in range(8)]
        gone = [message for message in messages if message.topic == NAMES[0]]
        (left, *others) = [message for message in messages if message.topic == NAMES[1]]
        deletable.delete(NAMES[0])
        await asyncio.wait_for(gone[0].ack(), 4)
        await asyncio.sleep(6)
        await asyncio.wait_for(gone[1].ack(), 1)
        gone[2].ack_soon()
        await gone[3].nack(1)
        await left.nack(1)
        assert (await consumer.receive(timeout=60)).data == NAMES[1].encode()
        for message in others:
            await message.ack()
        assert consumer.statistics().acked == 6
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout=600)
        figures = consumer.statistics()
        assert (figures.held, figures.requested, figures.requested_again) == (0, 0, 0)
        with pytest.raises(BrokerError, match="no topic of this consumer"):
            await consumer.acknowledge(MessageId(1, 1, topic="persistent://public/default/c"))


@virtual_time
async def test_acknowledgements_under_way_are_done_when_their_topic_is_deleted() -> None:
    """What the broker has not answered to, and will not, ends as done with the topic, not as an error."""
    deletable = Deletable()
    deletable.broker.always("ACK", lambda _: None)
    async with deletable.client, deletable.subscribe(discovery_interval=1) as consumer:
        message = await consumer.receive(timeout=60)
        acknowledging = asyncio.create_task(message.ack())
        await asyncio.sleep(0.1)
        deletable.deleted.add(message.topic)  # its consumer is not closed by the broker
        await asyncio.wait_for(acknowledging, 20)
