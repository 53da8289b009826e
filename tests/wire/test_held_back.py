"""A consumer to which the broker sends nothing more, on a scripted broker: reported then, and only then."""

from __future__ import annotations

import asyncio

import pytest

from pulsar_nack import Consumer, Message
from pulsar_nack.testing import virtual_time
from tests.wire.fake_broker import Answer, FakeBroker, cut, refuse, silence
from tests.wire.using import TOPIC, broker_with, numbers, publish, subscribed


async def all_that_comes(consumer: Consumer, seconds: float) -> list[Message]:
    """Receive until nothing has come for a number of seconds."""
    messages = []
    while True:
        try:
            messages.append(await consumer.receive(timeout=seconds))
        except TimeoutError:
            return messages


@pytest.mark.parametrize("consumer_type", ["shared", "key_shared"])
@virtual_time
async def test_a_limit_of_the_broker_below_ours_is_reported_once(
    consumer_type: str, caplog: pytest.LogCaptureFixture
) -> None:
    """O20: nothing comes while the broker's limit is held: one log line, and statistics until it continues."""
    broker = broker_with(*numbers(60))
    async with subscribed(broker, consumer_type=consumer_type, receiver_queue_size=10) as consumer:
        broker.topic(TOPIC).subscriptions["s"].max_unacked = 50
        messages = await all_that_comes(consumer, 1)
        assert len(messages) == 50
        for message in messages:
            await message.nack(3600)
        assert await all_that_comes(consumer, 100) == []
        assert consumer.statistics().is_held_back
        told = "the broker allows this consumer of persistent://public/default/t no more than 50 unacknowledged"
        (line,) = caplog.messages
        assert line.startswith(f"nothing comes while 50 messages are unacknowledged here, of at most 50000: {told}")
        for message in messages[:5]:
            await message.ack()
        assert len(await all_that_comes(consumer, 1)) == 5
        assert not consumer.statistics().is_held_back
        await all_that_comes(consumer, 100)
        assert len(caplog.messages) == 1


@virtual_time
async def test_a_large_backlog_of_which_nothing_comes_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """O20: a broker that limits the whole subscription does not say so: the backlog is larger than what is here."""
    broker = FakeBroker()
    async with subscribed(broker) as consumer:
        for _ in range(2):
            broker.topic(TOPIC).publish(b"x")
            await (await consumer.receive(timeout=1)).nack(3600)
        broker.topic(TOPIC).subscriptions["s"].is_paused = True
        for _ in range(103):
            broker.topic(TOPIC).publish(b"x")
        assert await all_that_comes(consumer, 30) == []
        assert "persistent://public/default/t has a backlog of 105 of which 2 are here" in caplog.text


@virtual_time
async def test_nothing_is_reported_or_requested_where_all_is_well(caplog: pytest.LogCaptureFixture) -> None:
    """O20: waiting nacks alone, an idle topic, messages of other consumers, and no waiting call are not reported."""
    broker = broker_with(*numbers(3))
    async with subscribed(broker) as consumer:
        (first, *others) = await all_that_comes(consumer, 100)
        for message in others:
            await message.ack()
        assert broker.commands("CONSUMER_STATS") != []
        await first.nack(1_000)
        await all_that_comes(consumer, 100)
        await asyncio.sleep(50)
        asked = len(broker.commands("CONSUMER_STATS"))
        assert asked < 25
        await asyncio.sleep(100)
        assert len(broker.commands("CONSUMER_STATS")) == asked
        await first.ack()
        await all_that_comes(consumer, 100)
        assert len(broker.commands("CONSUMER_STATS")) == asked
        assert not consumer.statistics().is_held_back
    assert caplog.messages == []


@pytest.mark.parametrize("answer", [refuse("UnknownError"), silence, cut])
@virtual_time
async def test_a_broker_that_does_not_answer_is_asked_no_more(answer: Answer, caplog: pytest.LogCaptureFixture) -> None:
    """O20: it is asked three times at most, and nothing is reported."""
    broker = FakeBroker()
    broker.always("CONSUMER_STATS", answer)
    publish(broker, *numbers(1))
    async with subscribed(broker) as consumer:
        await (await consumer.receive(timeout=1)).nack(10_000)
        await all_that_comes(consumer, 500)
        assert len(broker.commands("CONSUMER_STATS")) == 3
        assert "nothing comes" not in caplog.text
