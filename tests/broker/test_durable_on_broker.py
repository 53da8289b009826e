"""Durable nacks on a real broker: consumers that are killed with signal 9 and restarted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_nack import Consumer
from tests.broker.standalone import Standalone
from tests.consumer.durable_worker import working
from tests.consumer.official import (
    Stopwatch,
    is_over_wire,
    nothing_comes,
    numbered,
    official_client,
    payloads,
    send,
    subscribed,
    take,
)
from tests.patience import patience

pytestmark = pytest.mark.usefixtures("transport")

SLACK = patience(0.25)
"""Seconds that a busy machine may add."""
DELAY = 3.0 + patience(0.25)
"""Seconds that suffice to kill one consumer and start another."""


async def send_all(url: str, topic: str, messages: list[bytes], *, batched: bool = False) -> None:
    """Send messages with a separate client."""
    async with official_client(url) as client:
        await send(client, topic, messages, batched=batched)


@pytest.mark.parametrize(
    ("consumer_type", "redelivery"),
    [("shared", "broker"), ("shared", "local"), ("exclusive", "auto"), ("failover", "auto")],
)
async def test_deadlines_outlive_a_kill(
    service_url: str, topic: str, tmp_path: Path, consumer_type: str, redelivery: str
) -> None:
    """U9: killed while it holds nacks: the broker returns them at once; each is delivered at its deadline, once."""
    folder = tmp_path / "state"
    async with working(service_url, topic, folder, f"nack:{DELAY}", consumer_type) as worker:
        watch = Stopwatch()  # messages come before the sender has closed its client
        await send_all(service_url, topic, numbered(5))
        assert sorted(await worker.said(5)) == [f"{number} 1" for number in range(5)]
        nacked_by = watch.seconds
        worker.process.kill()
    settings = {"consumer_type": consumer_type, "redelivery": redelivery, "durable": folder}
    async with subscribed(service_url, topic, **settings) as (client, consumer):
        await send(client, topic, [b"new"])
        new = await consumer.receive(timeout=DELAY)
        assert (new.data, new.attempt) == (b"new", 1)
        await new.ack()
        again = [await consumer.receive(timeout=DELAY + patience(5))]
        assert DELAY - 0.1 <= watch.seconds <= DELAY + nacked_by + SLACK
        again += await take(consumer, 4)
        assert payloads(again) == numbered(5)
        assert {message.attempt for message in again} == {2}
        assert consumer.statistics().durable_restored == 5
        for message in again:
            await message.ack()
        assert await nothing_comes(consumer, 1.0)
        assert consumer.statistics().durable_entries == 0
    async with subscribed(service_url, topic, consumer_type=consumer_type) as (_, after):
        assert await nothing_comes(after)


@pytest.mark.parametrize("redelivery", ["broker", "local"])
async def test_partitions_and_batches(
    service_url: str, partitioned_topic: Callable[[int], str], tmp_path: Path, redelivery: str
) -> None:
    """U9: messages of three partitions, in batches and alone, keep their deadlines over a restart."""
    topic = partitioned_topic(3)
    delays = {payload: 3.0 + int(payload) % 3 for payload in numbered(18)}
    settings = {"durable": tmp_path / "state", "redelivery": redelivery}
    watch = Stopwatch()
    async with subscribed(service_url, topic, **settings) as (client, consumer):
        await send(client, topic, numbered(9))
        await send(client, topic, numbered(9, first=9), batched=True)
        messages = await take(consumer, 18)
        assert len({message.id.partition for message in messages}) > 1
        await asyncio.gather(*(message.nack(delays[message.data]) for message in messages))
    async with subscribed(service_url, topic, **settings) as (_, consumer):
        again = []
        for _ in range(18):
            again.append(message := await consumer.receive(timeout=patience(3)))
            assert watch.seconds >= delays[message.data] - 0.1
            assert message.attempt == 2
            await message.ack()
        assert payloads(again) == sorted(numbered(18))
        assert await nothing_comes(consumer, 1.0)
        assert consumer.statistics().durable_entries == 0


@pytest.mark.parametrize("consumer_type", ["shared", "exclusive"])
async def test_kills_inside_the_handler_count(service_url: str, topic: str, tmp_path: Path, consumer_type: str) -> None:
    """U8: a message that kills its process three times is delivered with attempts 1, 2, 3, then 4."""
    folder = tmp_path / "state"
    async with subscribed(service_url, topic, consumer_type=consumer_type) as (client, _):
        await send(client, topic, [b"poison"])  # the subscription begins before
    for attempt in (1, 2, 3):
        async with working(service_url, topic, folder, "die", consumer_type) as worker:
            await worker.died()
            assert worker.lines()[1:] == [f"poison {attempt}"]
    async with subscribed(service_url, topic, durable=folder, consumer_type=consumer_type) as (_, consumer):
        message = await consumer.receive(timeout=patience(3))
        assert (message.data, message.attempt) == (b"poison", 4)
        await message.ack()


async def test_attempts_go_on_over_nacks_and_kills(service_url: str, topic: str, tmp_path: Path) -> None:
    """U27: the only consumer is killed repeatedly, in the handler or with a nack held: attempts continue counting."""
    folder = tmp_path / "state"
    async with subscribed(service_url, topic) as (client, _):
        await send(client, topic, [b"x"])
    for attempt, action in enumerate(["nack:0.5", "stay", "nack:0", "stay"]):
        async with working(service_url, topic, folder, action) as worker:
            said = await worker.said(1)
            worker.process.kill()
        assert int(said[0].split()[1]) >= attempt + 1
        attempts = int(worker.lines()[-1].split()[1])
    async with subscribed(service_url, topic, durable=folder) as (_, consumer):
        message = await consumer.receive(timeout=patience(3))
        assert message.attempt == attempts + 1
        await message.ack()


async def test_acks_that_were_not_sent_are_given_again(service_url: str, topic: str, tmp_path: Path) -> None:
    """U10, U28: killed right after 50 acks returned: none is delivered again; acks that were not sent are sent again.

    The official client sends them every 100 ms, and sometimes just before the kill.
    """
    if is_over_wire():
        assert await _acked_again_after_a_kill(service_url, topic, tmp_path) == 0  # the broker has confirmed them
        return
    for _ in range(4):
        if await _acked_again_after_a_kill(service_url, topic, tmp_path) > 0:
            return
    pytest.fail("none of 200 acknowledgements was given again")


async def _acked_again_after_a_kill(url: str, topic: str, folder: Path) -> int:
    state = folder / "state"
    async with subscribed(url, topic) as (client, _):
        await send(client, topic, numbered(50))
    async with working(url, topic, state, "ack:50") as worker:
        await worker.died()
    async with subscribed(url, topic, durable=state) as (_, consumer):
        assert await nothing_comes(consumer, 3.0)
        again = consumer.statistics().acked_again
        await asyncio.sleep(0.3)  # the client sends acknowledgements within 100 ms
    async with subscribed(url, topic) as (_, after):
        assert await nothing_comes(after, 1.0)
    return again


async def test_another_consumer_is_not_bound(service_url: str, topic: str, tmp_path: Path) -> None:
    """U34: a second consumer delivers at once what the broker sends it; what the restarted one gets waits there."""
    folder = tmp_path / "state"
    async with working(service_url, topic, folder, f"nack:{DELAY}") as worker:
        watch = Stopwatch()  # messages come before the sender has closed its client
        await send_all(service_url, topic, numbered(10))
        await worker.said(10)
        worker.process.kill()
    async with (
        subscribed(service_url, topic, durable=folder, redelivery="local") as (_, ours),
        subscribed(service_url, topic) as (_, other),
    ):
        receiving = asyncio.create_task(ours.receive())
        delivered_early: list[bytes] = []
        while not await nothing_comes_to(other, delivered_early):
            pass
        held = ours.statistics().held
        assert held
        assert len(delivered_early) + held == 10
        assert not receiving.done()
        mine = [await asyncio.wait_for(receiving, DELAY + patience(5))]
        assert watch.seconds >= DELAY - 0.1
        mine += await take(ours, held - 1)
        assert {message.attempt for message in mine} == {2}
        assert sorted([message.data for message in mine] + delivered_early) == numbered(10)


async def nothing_comes_to(consumer: Consumer, delivered: list[bytes]) -> bool:
    """Receive and acknowledge for a second; return whether nothing came."""
    try:
        message = await consumer.receive(timeout=1.0)
    except TimeoutError:
        return True
    delivered.append(message.data)
    await message.ack()
    return False


@pytest.mark.timeout(240)
async def test_attempts_go_on_over_a_broker_restart(own_broker: Standalone, own_topic: str, tmp_path: Path) -> None:
    """U27: the consumer closes, the broker is killed and restarted, the consumer reopens: attempts go on counting."""
    url, topic, folder = own_broker.service_url, own_topic, tmp_path / "state"
    async with subscribed(url, topic, durable=folder) as (client, consumer):
        await send(client, topic, [b"x"])
        for attempt in (1, 2):
            message = await consumer.receive(timeout=patience(3))
            assert message.attempt == attempt
            await message.nack(delay=0.5)
        message = await consumer.receive(timeout=patience(3))
        await message.nack(delay=12)  # longer than a restart takes
        watch = Stopwatch()
    await asyncio.to_thread(own_broker.kill)
    await asyncio.to_thread(own_broker.start)
    async with subscribed(url, topic, durable=folder) as (_, consumer):
        message = await consumer.receive(timeout=patience(20))
        assert (message.data, message.attempt) == (b"x", 4)
        assert watch.seconds >= 11.8
        await message.ack()
