"""Tests of a handler without a broker and without waiting; pytest or any other runner can run them.

pip install pulsar-nack
python -m pytest examples/testing_a_handler.py
python examples/testing_a_handler.py
"""

from __future__ import annotations

import asyncio
import json

from pulsar_nack import Consumer, DeadLetterPolicy, Message
from pulsar_nack.consumer import DeadLetter, Retry
from pulsar_nack.testing import FakePort, FakePublisher, virtual_time


async def handle(message: Message) -> None:
    """The handler to be tested."""
    try:
        order = json.loads(message.data)
    except ValueError as error:
        raise DeadLetter("no JSON") from error
    if order["in stock"] > message.attempt:
        raise Retry(delay=3600)


@virtual_time
async def test_an_order_that_is_not_in_stock_comes_back_each_hour() -> None:
    """Three attempts take two hours of virtual time, and a moment of yours."""
    port = FakePort()
    order = port.topic.publish(b'{"in stock": 3}')
    async with Consumer(port) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await asyncio.sleep(2.5 * 3600)
        assert port.subscription.is_acked(order)
        assert consumer.statistics().nacked == 2
        await consumer.drain()
        await running


@virtual_time
async def test_what_is_no_json_becomes_a_dead_letter() -> None:
    """It is published there with the reason, and acknowledged here."""
    port, dead = FakePort(), FakePublisher()
    port.topic.publish(b"<xml/>")
    async with Consumer(port, dead_letter=DeadLetterPolicy(3, publisher=dead)) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await asyncio.sleep(1)
        await consumer.drain()
        await running
    (letter,) = dead.letters
    assert (letter.data, letter.properties["PULSAR_NACK_REASON"]) == (b"<xml/>", "no JSON")
    assert port.subscription.backlog == 0


if __name__ == "__main__":
    test_an_order_that_is_not_in_stock_comes_back_each_hour()
    test_what_is_no_json_becomes_a_dead_letter()
    print("both pass")
