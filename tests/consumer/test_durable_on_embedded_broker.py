"""Durable nacks on the embedded broker: consumers that are killed with signal 9 and restarted."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_nack.testing import EmbeddedBroker
from tests.consumer.durable_worker import working
from tests.consumer.official import (
    Stopwatch,
    nothing_comes,
    numbered,
    official_client,
    payloads,
    send,
    subscribed,
    take,
)

pytestmark = [
    pytest.mark.skipif(not EmbeddedBroker.available(), reason="pulsar-lite does not run here"),
    pytest.mark.usefixtures("transport"),
]


@pytest.mark.slow
@pytest.mark.parametrize("redelivery", ["local", "broker"])
async def test_deadlines_outlive_a_kill(url: str, topic: str, tmp_path: Path, redelivery: str) -> None:
    """U9: killed while it holds nacks, a consumer delivers them at their old deadlines, once."""
    folder = tmp_path / "state"
    async with working(url, topic, folder, "nack:5") as worker:
        async with official_client(url) as client:
            await send(client, topic, numbered(4))
        watch = Stopwatch()
        assert sorted(await worker.said(4)) == [f"{number} 1" for number in range(4)]
        nacked_by = watch.seconds
        worker.process.kill()
    async with subscribed(url, topic, durable=folder, redelivery=redelivery) as (_, consumer):
        again = [await consumer.receive(timeout=10)]
        assert 4.8 <= watch.seconds <= nacked_by + 6.0
        again += await take(consumer, 3)
        assert payloads(again) == numbered(4)
        for message in again:
            assert message.attempt == 2
            await message.ack()
        assert await nothing_comes(consumer)


@pytest.mark.slow
async def test_kills_inside_the_handler_count(url: str, topic: str, tmp_path: Path) -> None:
    """U8: a message that kills its process twice is delivered with attempts 1, 2, then 3."""
    folder = tmp_path / "state"
    async with subscribed(url, topic):
        pass  # creates the subscription; an open consumer would prefetch the message, which counts here
    async with official_client(url) as client:
        await send(client, topic, [b"poison"])
    for attempt in (1, 2):
        async with working(url, topic, folder, "die") as worker:
            await worker.died()
            assert worker.lines()[1:] == [f"poison {attempt}"]
    async with subscribed(url, topic, durable=folder) as (_, consumer):
        message = await consumer.receive(timeout=10)
        assert message.attempt == 3
        await message.ack()
