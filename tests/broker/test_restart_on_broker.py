"""A broker that dies and comes back under a consumer."""

from __future__ import annotations

import asyncio

import pytest

from tests.broker.standalone import Standalone
from tests.consumer import scenarios
from tests.consumer.official import nothing_comes, numbered, payloads, send, subscribed, take

pytestmark = pytest.mark.usefixtures("transport")


@pytest.mark.timeout(180)
@pytest.mark.parametrize("redelivery", ["local", "broker"])
async def test_a_broker_restart_loses_nothing(own_broker: Standalone, own_topic: str, redelivery: str) -> None:
    """U22: the broker is killed and restarted: what is in work is not shown anew, what is held comes back once."""
    url, topic = own_broker.service_url, own_topic
    async with subscribed(url, topic, redelivery=redelivery) as (client, consumer):
        await send(client, topic, numbered(9))
        messages = sorted(await take(consumer, 9), key=lambda message: message.data)
        for message in messages[:3]:
            await message.ack()
        await asyncio.sleep(2)
        receiving = asyncio.create_task(consumer.receive(timeout=120))
        await asyncio.to_thread(own_broker.kill)
        await asyncio.to_thread(own_broker.start)
        for message in messages[3:6]:
            await message.nack(delay=5)
        again = [await receiving, *await take(consumer, 2, timeout=60)]
        assert payloads(again) == numbered(3, first=3)
        for message in [*again, *messages[6:]]:
            await message.ack()
        assert await nothing_comes(consumer, 3)
        assert scenarios.all_given_back(consumer)
    async with subscribed(url, topic) as (_, second):
        assert await nothing_comes(second, 2)
