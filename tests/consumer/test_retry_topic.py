"""Messages that are consumed later, over each kind of port; ``test_letters`` has the steps and failures."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pulsar_nack.consumer import _letters
from pulsar_nack.testing import virtual_time
from tests.consumer.consuming import backlog, consuming, is_quiet, received
from tests.consumer.ports import Ports


@virtual_time
async def test_what_is_published(ports: Ports) -> None:
    """U15: a message with its own properties and those of the call; that is neither an acknowledgement nor a nack."""
    async with consuming(ports.port()) as (port, consumer, publisher):
        port.topic.publish(b"order", key="k", properties={"colour": "red"})
        await (await consumer.receive(timeout=1)).reconsume_later(5, properties={"step": "1"})
        (found,) = publisher.letters
        assert (found.topic, found.data, found.key) == ("again", b"order", "k")
        assert found.deliver_at_ms is not None
        assert found.properties["colour"] == "red"
        assert (found.properties["step"], found.properties["DELAY_TIME"]) == ("1", "5000")
        assert await is_quiet(consumer)
        assert backlog(port) == 0
        statistics = consumer.statistics()
        assert (statistics.retried, statistics.acked, statistics.nacked, statistics.unacked) == (1, 0, 0, 0)


@pytest.mark.parametrize("verb", ["reconsume_later", "nack"])
@virtual_time
async def test_a_lease_does_not_end_it(ports: Ports, verb: str) -> None:
    """U44, U45: while a message is on its way to the retry topic its lease does not end."""
    async with received(ports.port(), lease=1.0) as (_, consumer, publisher, message):
        publisher.hold()
        call = asyncio.create_task(getattr(message, verb)(3600))
        assert await is_quiet(consumer, 20)
        publisher.release()
        await call
        await asyncio.sleep(1)
        statistics = consumer.statistics()
        assert (statistics.retried, statistics.leases_expired, statistics.unacked) == (1, 0, 0)
        assert publisher.letters[0].properties["RECONSUMETIMES"] == "1"


@virtual_time
async def test_full_long_nacks_wait_here(ports: Ports, monkeypatch: pytest.MonkeyPatch) -> None:
    """U17, U45: at the limit of messages on their way, a long nack is held here and does not wait for its turn."""
    monkeypatch.setattr(_letters, "_MOST", 1)
    async with consuming(ports.port()) as (port, consumer, publisher):
        for _ in range(2):
            port.topic.publish(b"order")
        first, second = [await consumer.receive(timeout=1) for _ in range(2)]
        publisher.hold()
        call = asyncio.create_task(first.reconsume_later(5))
        await asyncio.sleep(0.1)
        async with asyncio.timeout(0.1):
            await second.nack(3600)
        assert (consumer.statistics().held, consumer.statistics().retries_waiting) == (1, 1)
        publisher.release()
        await call
        assert (await consumer.receive(timeout=4000)).attempt == 2


@virtual_time
async def test_durably_acknowledged(ports: Ports, tmp_path: Path) -> None:
    """U10, U15: on a durable consumer the original is settled once the call returns, though the broker forgets it."""
    topic = ports.topic()
    forgetful = ports.forgetful(topic)
    async with consuming(forgetful, durable=tmp_path) as (_, consumer, publisher):
        topic.publish(b"order")
        await (await consumer.receive(timeout=1)).reconsume_later(5)
        assert len(publisher.letters) == 1
        assert forgetful.lost == 1
    async with consuming(ports.port(topic), durable=tmp_path) as (_, consumer, publisher):
        assert await is_quiet(consumer)
        assert not publisher.letters


@virtual_time
async def test_events_and_trace(ports: Ports) -> None:
    """U50: a long nack is a nack and a retry; consumed later is only a retry; neither is an acknowledgement."""
    events: list[Any] = []
    async with consuming(ports.port(), hooks=[events.append]) as (port, consumer, _):
        for _ in range(2):
            port.topic.publish(b"order")
        await (await consumer.receive(timeout=1)).nack(3600, reason="busy")
        await (await consumer.receive(timeout=1)).reconsume_later(5)
        await asyncio.sleep(1)
    names = [type(event).__name__ for event in events]
    assert (names.count("MessageNacked"), names.count("MessageRetried")) == (1, 2)
    assert "MessageAcknowledged" not in names
    retried = [event for event in events if type(event).__name__ == "MessageRetried"]
    assert [(event.topic, event.delay_ms) for event in retried] == [("again", 3_600_000), ("again", 5_000)]


@virtual_time
async def test_deferred_it_is_the_same_attempt(ports: Ports) -> None:
    """U12, U45: a message deferred for long waits in the retry topic, and no attempt is counted for it."""
    async with consuming(ports.port(), most=1) as (port, consumer, publisher):
        port.topic.publish(b"order")
        await (await consumer.receive(timeout=1)).nack(1)
        message = await consumer.receive(timeout=5)
        assert message.attempt == 2  # the last
        await message.defer(3600)
        await asyncio.sleep(1)
        assert publisher.letters[0].properties["RECONSUMETIMES"] == "1"
        statistics = consumer.statistics()
        assert (statistics.nacked, statistics.deferred, statistics.retried) == (1, 1, 1)
        assert (statistics.dead_lettered, statistics.unacked) == (0, 0)


@virtual_time
async def test_deferred_where_it_cannot_be_published(ports: Ports) -> None:
    """U12, U45: a long deferral that the retry topic refuses waits here, as the same attempt."""
    async with consuming(ports.port()) as (port, consumer, publisher):
        port.topic.publish(b"order")
        publisher.fail_next()
        await (await consumer.receive(timeout=1)).defer(3600)
        began_at = asyncio.get_running_loop().time()
        message = await consumer.receive(timeout=4000)
        assert asyncio.get_running_loop().time() - began_at == pytest.approx(3600, abs=0.01)
        assert message.attempt == 1
        await message.ack()
        assert backlog(port) == 0
