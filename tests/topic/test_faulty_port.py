"""Consumers on a local topic survive every fault of its port: nothing is lost, each nack redelivers once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Literal

import pytest

from pulsar_nack import BrokerError, ClosedError, Consumer, InvalidArgumentError, LocalTopic, Message, NackConfig
from pulsar_nack.clock import LoopClock
from pulsar_nack.consumer import Delivery, PortTraits
from pulsar_nack.ids import MessageId
from pulsar_nack.testing import FakePort, FaultyPort, LocalBroker, virtual_time
from pulsar_nack.testing._call_faults import CallName
from tests.tiers import seeds

EXACT = NackConfig(negative_ack_precision_bit_cnt=0)
WAYS = ["auto", "local", "broker"]
SINGLE, BATCHED = 6, 4
NACKS = 2
MESSAGES = {*range(SINGLE + BATCHED)}

Fault = Callable[[FaultyPort], Awaitable[None]]


async def publish(topic: LocalTopic) -> None:
    """Publish single messages, and a batch."""
    payloads = [str(number).encode() for number in sorted(MESSAGES)]
    await topic.publish(payloads[:SINGLE])
    await topic.publish(payloads[SINGLE:], batch=True)


async def acknowledge(message: Message) -> None:
    """Acknowledge as users do: again after a failure."""
    while True:
        try:
            await message.ack()
        except BrokerError:
            await asyncio.sleep(0.05)
        else:
            return


async def work(consumer: Consumer, delivered: Counter[int], done: set[int]) -> None:
    """Nack each message a few times and then acknowledge it, without end."""
    while True:
        try:
            message = await consumer.receive()
        except BrokerError:
            continue
        number = int(message.data)
        assert number not in done, f"{number} was delivered after it was acknowledged"
        delivered[number] += 1
        if delivered[number] <= NACKS:
            await message.nack(delay=0.5 + number / 10)
        else:
            await acknowledge(message)
            done.add(number)


async def survive(redelivery: str, fault: Fault) -> None:
    """Work under a fault until all is acknowledged and nothing comes for a long time; check the deliveries."""
    delivered: Counter[int] = Counter()
    done: set[int] = set()
    async with LocalBroker() as broker:
        topic = await broker.topic()
        async with broker.consumer("s", config=EXACT, redelivery=redelivery, ack_memory=3_600) as consumer:
            port = consumer.port
            assert isinstance(port, FaultyPort)
            working = asyncio.create_task(work(consumer, delivered, done))
            await publish(topic)
            await fault(port)
            await asyncio.sleep(300)
            for _ in range(8):  # acknowledgements were lost: the broker sends these messages again at a reconnect
                if topic.backlog("s"):
                    await away(0, 0)(port)
                    await asyncio.sleep(30)
            assert not working.done(), working
            working.cancel()
        assert done == MESSAGES
        assert delivered == dict.fromkeys(MESSAGES, NACKS + 1)
        assert topic.backlog("s") == 0


def failing(call: CallName, *, carried_out: bool = False) -> Fault:
    """Return a fault: calls fail."""

    async def fault(port: FaultyPort) -> None:
        port.fail_next(call, 3, carried_out=carried_out)

    return fault


def lost(call: Literal["acknowledge", "redeliver"]) -> Fault:
    """Return a fault: calls are lost."""

    async def fault(port: FaultyPort) -> None:
        port.lose_next(call, 2)

    return fault


def slow(call: CallName) -> Fault:
    """Return a fault: calls take seconds."""

    async def fault(port: FaultyPort) -> None:
        port.delay_next(call, 2.5, 4)

    return fault


def twice(second_count: int | None) -> Fault:
    """Return a fault: deliveries come twice."""

    async def fault(port: FaultyPort) -> None:
        port.duplicate_next(8, second_count=second_count)

    return fault


def away(at: float, seconds: float) -> Fault:
    """Return a fault: the connection is lost for some time."""

    async def fault(port: FaultyPort) -> None:
        await asyncio.sleep(at)
        await port.disconnect()
        await asyncio.sleep(seconds)
        await port.reconnect()

    return fault


FAULTS = {
    "receive fails": failing("receive"),
    "acknowledge fails": failing("acknowledge"),
    "acknowledge fails after it took effect": failing("acknowledge", carried_out=True),
    "redeliver fails": failing("redeliver"),
    "redeliver fails after it took effect": failing("redeliver", carried_out=True),
    "acknowledge is lost": lost("acknowledge"),
    "redeliver is lost": lost("redeliver"),
    "receive is slow": slow("receive"),
    "acknowledge is slow": slow("acknowledge"),
    "redeliver is slow": slow("redeliver"),
    "deliveries come twice": twice(None),
    "deliveries come twice, the second with count 0": twice(0),
    "away while nacks wait": away(0.2, 0.1),
    "away while nacks come due": away(0.4, 3),
    "away for no time": away(0.55, 0),
    "away for a minute": away(0.7, 60),
}


@pytest.mark.parametrize("redelivery", WAYS)
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@virtual_time
async def test_consumers_survive(fault: Fault, redelivery: str) -> None:
    """With any fault of the port, a consumer delivers each message once, and once more for each nack."""
    await survive(redelivery, fault)


@pytest.mark.parametrize("redelivery", WAYS)
@pytest.mark.parametrize("seed", seeds(range(8)))
@virtual_time
async def test_consumers_survive_many_faults(seed: int, redelivery: str) -> None:
    """All kinds of faults at random moments, several at a time."""
    random = Random(seed)

    async def fault(port: FaultyPort) -> None:
        for _ in range(25):
            kind = FAULTS[random.choice(sorted(FAULTS))]
            await asyncio.sleep(random.uniform(0, 0.4))
            await kind(port)

    await survive(redelivery, fault)


@pytest.mark.parametrize("how", [{}, {"kill": True}, {"power_cut": True}], ids=["clean", "kill", "power cut"])
@virtual_time
async def test_durable_consumers_survive_restarts(how: dict[str, bool], tmp_path: Path) -> None:
    """With durable nacks each is delivered as often as without restarts of its broker, at its deadline."""
    delivered: Counter[int] = Counter()
    done: set[int] = set()
    async with LocalBroker() as broker:
        await publish(await broker.topic())
        for seconds in (0.3, 0.9, 60):
            folder = tmp_path / "nacks"
            async with broker.consumer("s", config=EXACT, durable=folder, wall_clock=LoopClock()) as consumer:
                working = asyncio.create_task(work(consumer, delivered, done))
                await asyncio.sleep(seconds)
                assert not working.done(), working
                working.cancel()
            if seconds < 60:
                await broker.restart(**how)
        assert done == MESSAGES
        assert delivered == dict.fromkeys(MESSAGES, NACKS + 1)
        assert (await broker.topic()).backlog("s") == 0


@virtual_time
async def test_any_port_can_be_faulty() -> None:
    """Around a port of another kind, calls reach it, faults do not, and it is closed and replaced."""
    fake = FakePort()
    sent = fake.topic.publish(b"order")
    port = FaultyPort(fake, lambda: asyncio.sleep(0, FakePort(fake.topic)))
    assert (port.traits, port.name, port.is_connected) == (fake.traits, "", True)
    await port.receive()
    port.fail_next("redeliver")
    with pytest.raises(BrokerError):
        await port.redeliver([sent])
    assert fake.requests("redeliver") == []
    await port.redeliver([sent])
    assert (await port.receive()).redelivery_count == 1
    await port.disconnect()
    assert (fake.is_closed, port.is_connected) == (True, False)
    await asyncio.gather(port.reconnect(), port.reconnect())
    await port.acknowledge([(await port.receive()).id])
    assert fake.subscription.is_acked(sent)
    await port.close()
    with pytest.raises(ClosedError):
        await port.reconnect()


class BarePort:
    """A port with only the required calls."""

    traits = PortTraits()

    async def receive(self) -> Delivery:
        """Return an empty message."""
        return Delivery(MessageId(1, 1), b"")

    async def acknowledge(self, ids: object) -> None:
        """Do nothing."""

    async def redeliver(self, ids: object) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""


@virtual_time
async def test_a_port_that_can_do_little() -> None:
    """Unsupported calls are refused by name, and a connection that cannot be made again is not lost."""
    port = FaultyPort(BarePort())
    assert port.is_connected
    with pytest.raises(InvalidArgumentError, match="connect"):
        await port.disconnect()
    with pytest.raises(NotImplementedError, match="BarePort cannot seek"):
        await port.seek(0)
    with pytest.raises(NotImplementedError, match="BarePort cannot acknowledge"):
        await port.acknowledge_cumulative(MessageId(1, 1))
    assert (await port.receive()).id == MessageId(1, 1)


@virtual_time
async def test_a_receiver_that_waits_over_a_short_absence() -> None:
    """A waiting receive does not notice that the connection is lost and back at once."""
    async with LocalBroker() as broker:
        topic = await broker.topic()
        port = await broker.subscribe("s")
        receiving = asyncio.create_task(port.receive())
        await asyncio.sleep(1)
        await port.disconnect()
        await port.reconnect()
        await topic.publish(b"order")
        assert (await receiving).data == b"order"
