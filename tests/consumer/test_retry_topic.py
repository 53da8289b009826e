"""Messages that are consumed later, over each kind of port: published, then acknowledged, whatever happens between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pulsar_nack import AlreadySettledError, ClosedError, Consumer, DeadLetterPolicy, NackConfig
from pulsar_nack.clock import LoopClock
from pulsar_nack.consumer import RetryTopicPolicy, _letters
from pulsar_nack.testing import FakePort, FakePublisher, virtual_time
from tests.consumer.ports import Ports

EXACT = NackConfig(negative_ack_precision_bit_cnt=0)


@asynccontextmanager
async def consuming(port: FakePort, **options: Any) -> AsyncIterator[tuple[Consumer, FakePublisher]]:
    """A consumer on a port, and what gets the messages for its retry topic."""
    publisher = FakePublisher()
    policy = RetryTopicPolicy("again", spill_after=600, publisher=publisher)
    clocks = {"wall_clock": LoopClock()} | options
    async with Consumer(port, config=EXACT, retry_topic=policy, **clocks) as consumer:
        yield consumer, publisher


async def is_quiet(consumer: Consumer, seconds: float = 100.0) -> bool:
    """Return whether nothing more comes."""
    try:
        await consumer.receive(timeout=seconds)
    except TimeoutError:
        return True
    return False


@virtual_time
async def test_published_then_acknowledged(ports: Ports) -> None:
    """U15: while it is not published it stays unacknowledged and its duplicates are dropped; then it is gone."""
    port = ports.port()
    async with consuming(port) as (consumer, publisher):
        port.topic.publish(b"order", key="k", properties={"colour": "red"})
        message = await consumer.receive(timeout=1)
        publisher.hold()
        call = asyncio.create_task(message.reconsume_later(5, properties={"step": "1"}))
        assert await is_quiet(consumer, 1)
        assert (port.subscription.backlog, consumer.statistics().retries_waiting) == (1, 1)
        second = asyncio.create_task(message.reconsume_later(5))
        call.cancel()  # it goes on
        publisher.release()
        await second
        (found,) = publisher.letters
        assert (found.topic, found.data, found.key) == ("again", b"order", "k")
        assert found.deliver_at_ms is not None
        assert found.properties["colour"] == "red"
        assert (found.properties["step"], found.properties["DELAY_TIME"]) == ("1", "5000")
        assert await is_quiet(consumer)
        assert port.subscription.backlog == 0
        statistics = consumer.statistics()
        assert (statistics.retried, statistics.acked, statistics.nacked, statistics.unacked) == (1, 0, 0, 0)


@pytest.mark.parametrize("error", [OSError("no"), asyncio.CancelledError()])
@virtual_time
async def test_each_step_is_repeated(ports: Ports, error: BaseException) -> None:
    """U15: publishing and acknowledging are repeated until they succeed; nothing is published twice for the latter."""
    port = ports.port()
    async with consuming(port) as (consumer, publisher):
        port.topic.publish(b"order")
        message = await consumer.receive(timeout=1)
        publisher.fail_next(3, error=error)
        port.fail_next("acknowledge", times=2)
        await message.reconsume_later(5)
        assert (publisher.attempts, len(publisher.letters)) == (4, 1)
        assert consumer.statistics().retry_failures == 5
        assert port.subscription.backlog == 0


@pytest.mark.parametrize("index_acks", [True, False])
@virtual_time
async def test_one_of_a_batch(ports: Ports, index_acks: bool) -> None:
    """U15: of a batch just this message; the others are handled as before, and the whole is acknowledged."""
    topic = ports.topic(batch_index_ack=index_acks)
    port = ports.port(topic, batch_index_ack=index_acks)
    async with consuming(port) as (consumer, publisher):
        topic.publish_batch([b"0", b"1", b"2"])
        messages = [await consumer.receive(timeout=1) for _ in range(3)]
        await messages[1].reconsume_later(5)
        await messages[0].nack(1)
        again = await consumer.receive(timeout=5)
        assert (again.data, again.attempt) == (b"0", 2)
        await again.ack()
        await messages[2].ack()
        assert [found.data for found in publisher.letters] == [b"1"]
        assert port.subscription.backlog == 0


@virtual_time
async def test_after_a_nack_and_before_an_ack(ports: Ports) -> None:
    """U20: a nack is cancelled by it; afterwards the message is neither acknowledged, nacked nor dead-lettered."""
    port = ports.port()
    async with consuming(port, dead_letter=DeadLetterPolicy(3, "dead", publisher=FakePublisher())) as (consumer, _):
        port.topic.publish(b"order")
        message = await consumer.receive(timeout=1)
        await message.nack(50)
        await asyncio.sleep(1)
        await message.reconsume_later(5)
        assert await is_quiet(consumer)
        for late in (message.ack, message.nack, message.dead_letter):
            with pytest.raises(AlreadySettledError, match="sent to the retry topic"):
                await late()
        assert consumer.statistics().retried == 1


@virtual_time
async def test_closing(ports: Ports) -> None:
    """U18: closing waits for what is under way, and gives back what does not get there in time."""
    for is_stuck in (False, True):
        port = ports.port(subscription=f"s{is_stuck}")
        async with consuming(port) as (consumer, publisher):
            port.topic.publish(b"order")
            message = await consumer.receive(timeout=1)
            publisher.hold()
            call = asyncio.create_task(message.reconsume_later(5))
            await asyncio.sleep(0.1)
            closing = asyncio.create_task(consumer.aclose())
            await asyncio.sleep(1)
            assert not closing.done()
            if not is_stuck:
                publisher.release()
            await closing
            if is_stuck:
                with pytest.raises(ClosedError):
                    await call
            else:
                await call
        assert port.subscription.backlog == is_stuck


@pytest.mark.parametrize("verb", ["reconsume_later", "nack"])
@virtual_time
async def test_a_lease_does_not_end_it(ports: Ports, verb: str) -> None:
    """U44, U45: while a message is on its way to the retry topic its lease does not end."""
    port = ports.port()
    async with consuming(port, lease=1.0) as (consumer, publisher):
        port.topic.publish(b"order")
        message = await consumer.receive(timeout=1)
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
    """U17, U45: while as many are on their way as may be, a long nack is held here instead of waiting for its turn."""
    monkeypatch.setattr(_letters, "_MOST", 1)
    port = ports.port()
    async with consuming(port) as (consumer, publisher):
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
    async with consuming(forgetful, durable=tmp_path) as (consumer, publisher):
        topic.publish(b"order")
        await (await consumer.receive(timeout=1)).reconsume_later(5)
        assert len(publisher.letters) == 1
        assert forgetful.lost == 1
    async with consuming(ports.port(topic), durable=tmp_path) as (consumer, publisher):
        assert await is_quiet(consumer)
        assert not publisher.letters


@virtual_time
async def test_events_and_trace(ports: Ports) -> None:
    """U50: a long nack is a nack and a retry; consumed later is a retry only; neither is an acknowledgement."""
    events: list[Any] = []
    port = ports.port()
    async with consuming(port, hooks=[events.append]) as (consumer, _):
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
    """U12, U45: a message that is deferred for long waits in the retry topic, and no attempt is counted for it."""
    port = ports.port()
    dead = DeadLetterPolicy(1, "dead", publisher=FakePublisher())
    async with consuming(port, dead_letter=dead) as (consumer, publisher):
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
    port = ports.port()
    async with consuming(port) as (consumer, publisher):
        port.topic.publish(b"order")
        publisher.fail_next()
        await (await consumer.receive(timeout=1)).defer(3600)
        began_at = asyncio.get_running_loop().time()
        message = await consumer.receive(timeout=4000)
        assert asyncio.get_running_loop().time() - began_at == pytest.approx(3600, abs=0.01)
        assert message.attempt == 1
        await message.ack()
        assert port.subscription.backlog == 0
