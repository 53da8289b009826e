"""The local broker of the test tools: faults of storage and of connections, restarts, kills and power cuts."""

from __future__ import annotations

import asyncio

import pytest

from pulsar_nack import BrokerError, ClosedError, InvalidArgumentError, NackConfig
from pulsar_nack.config import TopicConfig
from pulsar_nack.consumer import ConsumerPort
from pulsar_nack.errors import LogStorageError
from pulsar_nack.testing import FaultyPort, LocalBroker, virtual_time
from tests.topic.using import nothing_comes, now, subscribed, take

EXACT = NackConfig(negative_ack_precision_bit_cnt=0)
UNCACHED = TopicConfig(cache_bytes=0)


@virtual_time
async def test_is_a_port_that_consumers_take() -> None:
    """A consumer runs on it, on virtual time, exactly in time, and its port records the calls."""
    async with LocalBroker() as broker, broker.consumer("s", config=EXACT, redelivery="broker") as consumer:
        topic = await broker.topic()
        sent = await topic.publish(b"order", key="k")
        message = await consumer.receive()
        assert (message.id, message.key, message.redelivery_count) == (sent, "k", 0)
        began = now()
        await message.nack(delay=5)
        message = await consumer.receive()
        assert message.redelivery_count == 1
        assert now() - began == pytest.approx(5, abs=0.002)
        await message.ack()
        port = consumer.port
        assert isinstance(port, FaultyPort)
        assert port.requests("redeliver") == [(sent,)]
        assert port.requests("acknowledge") == [(sent,)]
        assert topic.backlog("s") == 0


@virtual_time
async def test_calls_fail_on_demand() -> None:
    """A failed call raises and does nothing, a lost one only does nothing, a third kind works and then raises."""
    async with subscribed() as (_, topic, port):
        (first, second) = await topic.publish([b"0", b"1"])
        await take(port, 2)
        port.fail_next("acknowledge")
        port.lose_next("acknowledge")
        with pytest.raises(BrokerError):
            await port.acknowledge([first])
        await port.acknowledge([first])
        assert topic.backlog("s") == 2
        port.fail_next("acknowledge", error=BrokerError("lost answer"), carried_out=True)
        with pytest.raises(BrokerError, match="lost answer"):
            await port.acknowledge([first])
        assert topic.backlog("s") == 1
        port.delay_next("redeliver", 3)
        port.duplicate_next(second_count=0)
        began = now()
        await port.redeliver([second])
        assert [(each.id, each.redelivery_count) for each in await take(port, 2)] == [(second, 1), (second, 0)]
        assert now() - began == pytest.approx(3)
        port.fail_next("receive")
        with pytest.raises(BrokerError):
            await port.receive()
        assert await nothing_comes(port, 60)
        with pytest.raises(InvalidArgumentError):
            port.fail_next("receive", carried_out=True)


@virtual_time
async def test_connections_that_are_lost() -> None:
    """A lost consumer's messages go to another one at once; its calls fail meanwhile, and its receives wait."""
    async with LocalBroker() as broker:
        topic = await broker.topic()
        one: FaultyPort = await broker.subscribe("s")
        ids = await topic.publish([b"0", b"1", b"2"])
        await take(one, 3)
        other: FaultyPort = await broker.subscribe("s")
        await one.disconnect()
        connected = [one.is_connected]
        assert [each.id for each in await take(other, 3)] == ids
        with pytest.raises(BrokerError, match="no connection"):
            await one.acknowledge(ids[:1])
        receiving = asyncio.create_task(one.receive())
        await asyncio.sleep(1)
        await one.reconnect()
        await other.close()
        assert (await receiving).id == ids[0]
        assert [*connected, one.is_connected] == [False, True]
        await one.close()
        await one.close()
        with pytest.raises(ClosedError):
            await one.receive()


@virtual_time
async def test_storage_that_fails_and_is_slow() -> None:
    """Failed reads are retried, slow ones are awaited, and a failed write raises in the publisher."""
    async with subscribed(UNCACHED) as (broker, topic, port):
        broker.fail_reads(3)
        await topic.publish(b"0")
        assert (await port.receive()).data == b"0"
        assert topic.statistics().subscriptions["s"].failed_reads == 3
        broker.delay_reads(7)
        began = now()
        await topic.publish(b"1")
        assert (await port.receive()).data == b"1"
        assert now() - began == pytest.approx(7)
        broker.fail_publishing()
        with pytest.raises(LogStorageError):
            await topic.publish(b"lost")
        broker.heal()
        await topic.publish(b"2")
        assert (await port.receive()).data == b"2"


@pytest.mark.parametrize("how", [{}, {"kill": True}, {"power_cut": True}], ids=["clean", "kill", "power cut"])
@virtual_time
async def test_restarts(how: dict[str, bool]) -> None:
    """Published messages are there after any end; unflushed acknowledgements only after a clean one."""
    async with subscribed() as (broker, topic, port):
        ids = await topic.publish([b"0", b"1", b"2"])
        await take(port, 3)
        await port.redeliver(ids)
        await take(port, 3)
        await port.acknowledge(ids[:1])
        await topic.flush()
        await port.acknowledge(ids[1:2])
        await broker.restart(**how)
        with pytest.raises(ClosedError):
            await port.receive()
        with pytest.raises(ClosedError):
            await topic.publish(b"3")
        topic = await broker.topic()
        port = await broker.subscribe("s")
        came = [(each.data, each.redelivery_count) for each in await take(port, topic.backlog("s"))]
        assert came == ([(b"1", 0), (b"2", 0)] if how else [(b"2", 0)])


@virtual_time
async def test_several_topics() -> None:
    """Topics have their own messages, and each is returned again until a restart."""
    async with LocalBroker() as broker:
        one, other = await broker.topic("one"), await broker.topic("other")
        assert await broker.topic("one") is one
        await other.publish(b"other")
        await one.publish(b"one")
        port: ConsumerPort = await broker.subscribe("s", topic="other")
        delivery = await port.receive()
        assert (delivery.data, delivery.topic) == (b"other", "other")
    with pytest.raises(ClosedError):
        await broker.topic("one")
