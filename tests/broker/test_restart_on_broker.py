"""A broker that dies and comes back under a consumer."""

from __future__ import annotations

import asyncio

import pytest

from tests.broker.standalone import Standalone
from tests.consumer import scenarios
from tests.consumer.official import is_over_wire, nothing_comes, numbered, payloads, send, subscribed, take
from tests.patience import patience

pytestmark = pytest.mark.usefixtures("transport")


@pytest.mark.timeout(180)
@pytest.mark.parametrize("redelivery", ["local", "broker"])
async def test_a_broker_restart_loses_nothing(own_broker: Standalone, own_topic: str, redelivery: str) -> None:
    """U22, O5: the broker is killed and restarted: messages in flight are not delivered again, held ones once."""
    url, topic = own_broker.service_url, own_topic
    async with subscribed(url, topic, redelivery=redelivery) as (client, consumer):
        await send(client, topic, numbered(9))
        messages = sorted(await take(consumer, 9), key=lambda message: message.data)
        for message in messages[:3]:
            await message.ack()
        await asyncio.sleep(patience(0.5))  # the broker writes acknowledgements each second
        receiving = asyncio.create_task(consumer.receive(timeout=120))
        await asyncio.to_thread(own_broker.kill)
        under_way = messages[8:] if is_over_wire() else []  # the official client may lose an acknowledgement
        acknowledging = asyncio.gather(*(message.ack() for message in under_way))
        await asyncio.to_thread(own_broker.start)
        for message in messages[3:6]:
            await message.nack(delay=5)
        again = [await receiving, *await take(consumer, 2, timeout=60)]
        assert payloads(again) == numbered(3, first=3)
        for message in [*again, *messages[6 : 9 - len(under_way)]]:
            await message.ack()
        await asyncio.wait_for(acknowledging, patience(5))
        assert await nothing_comes(consumer, 3)
        assert scenarios.all_given_back(consumer)
    async with subscribed(url, topic) as (_, second):
        assert await nothing_comes(second, 2)
