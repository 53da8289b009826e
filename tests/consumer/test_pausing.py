"""Paused consumers, on each kind of port, and calls that a port may not support."""

from __future__ import annotations

import asyncio

import pytest

from pulsar_nack import ClosedError, Consumer
from pulsar_nack.consumer import SupportsPause
from pulsar_nack.errors import NotOpenError
from pulsar_nack.testing import FakePort, virtual_time
from tests.consumer.consuming import EXACT, publish

from .ports import Ports


@virtual_time
async def test_nothing_is_delivered_until_the_resume(ports: Ports, caplog: pytest.LogCaptureFixture) -> None:
    """O17, U41: messages can be settled meanwhile and deadlines pass; a port that keeps its messages warns once."""
    port = ports.port()
    publish(port.topic, b"a", b"b", b"c")
    async with Consumer(port, config=EXACT, redelivery="local") as consumer:
        a, b = [await consumer.receive(timeout=1) for _ in range(2)]
        for _ in range(2):
            consumer.pause()
        waiting = asyncio.create_task(consumer.receive())
        await a.ack()
        await b.nack(delay=1)
        port.topic.publish(b"d")
        await asyncio.sleep(10)
        assert not waiting.done()
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout=1)
        consumer.resume()
        messages = [await waiting, *[await consumer.receive(timeout=1) for _ in range(2)]]
        assert sorted((message.data, message.attempt) for message in messages) == [(b"b", 2), (b"c", 1), (b"d", 1)]
        for message in messages:
            await message.ack()
        consumer.pause()
        consumer.resume()
        consumer.resume()
        assert not consumer.is_paused
    warnings = [record for record in caplog.records if "cannot give prefetched messages back" in record.message]
    assert len(warnings) == (0 if isinstance(port, SupportsPause) else 1)


@virtual_time
async def test_closing_while_paused() -> None:
    """Waiting calls raise; before opening and after closing there is nothing to pause."""
    consumer = Consumer(FakePort())
    for call in (consumer.pause, consumer.resume):
        with pytest.raises(NotOpenError):
            call()
    async with consumer:
        consumer.pause()
        waiting = asyncio.create_task(consumer.receive())
        await asyncio.sleep(1)
    with pytest.raises(ClosedError):
        await waiting
    for call in (consumer.pause, consumer.resume):
        with pytest.raises(ClosedError):
            call()


@virtual_time
async def test_a_port_that_cannot_unsubscribe() -> None:
    """The error says so, and the consumer continues."""
    async with Consumer(FakePort()) as consumer:
        with pytest.raises(NotImplementedError, match="FakePort cannot unsubscribe"):
            await consumer.unsubscribe()
        assert not consumer.is_paused
