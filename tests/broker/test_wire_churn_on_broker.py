"""Hundreds of consumers, producers and clients opened and closed on a real broker: neither end keeps anything."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys

import pytest

from pulsar_nack.wire import Client
from tests.broker._admin import Admin
from tests.broker._native import no_task_left


async def have_one_of_each(client: Client, topic: str) -> None:
    """Send a message, receive one, and close the consumer and the producer."""
    async with (
        client.producer(topic) as producer,
        client.subscribe(topic, "sub", initial_position="earliest") as consumer,
    ):
        await producer.send(b"x")
        message = await consumer.receive(timeout=10)
        await message.nack(3600)


async def test_hundreds_on_one_client(
    service_url: str, admin: Admin, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """300 consumers and producers, 30 at a time: no memory, task or log line remains, and the broker has none left."""
    caplog.set_level(logging.WARNING, "pulsar_nack")
    with no_task_left():
        async with Client(service_url) as client:
            for round_number in range(12):
                await asyncio.gather(*(have_one_of_each(client, topic) for _ in range(30)))
                if round_number == 1:
                    gc.collect()
                    before = len(gc.get_objects()), sys.getallocatedblocks()
            gc.collect()
            grown = len(gc.get_objects()) - before[0], sys.getallocatedblocks() - before[1]
            print(f"\n{grown[0]:+} objects, {grown[1]:+} blocks")
            assert grown[0] < 200
            assert grown[1] < 600
            stats = await asyncio.to_thread(admin.stats, topic)
            assert stats["publishers"] == []
            assert stats["subscriptions"]["sub"]["consumers"] == []
    assert caplog.messages == []


async def test_a_hundred_clients(service_url: str, admin: Admin, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    """100 clients, ten at a time, closed with what is open of them."""
    caplog.set_level(logging.WARNING, "pulsar_nack")

    async def one() -> None:
        client = Client(service_url)
        producer = await client.producer(topic)
        consumer = await client.subscribe(topic, "sub")
        await producer.send(b"x")
        await client.aclose()
        assert "closed" in repr(consumer)

    with no_task_left():
        for _ in range(10):
            await asyncio.gather(*(one() for _ in range(10)))
    stats = await asyncio.to_thread(admin.stats, topic)
    assert stats["publishers"] == []
    assert stats["subscriptions"]["sub"]["consumers"] == []
    assert caplog.messages == []
