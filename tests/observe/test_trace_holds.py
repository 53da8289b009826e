"""The trace of held messages, and of a cumulative acknowledgement; on virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from pulsar_nack import Consumer, NackConfig
from pulsar_nack.clock import LoopClock
from pulsar_nack.observe import TraceWriter
from pulsar_nack.testing import FakePort, virtual_time
from tests.consumer.durable import Machine
from tests.consumer.test_durable_acks import LIMIT, fill, publish_batches

from .test_trace import EXACT, lines


def events(folder: Path, *names: str) -> list[tuple[Any, ...]]:
    """Return columns of the events in a folder."""
    return [tuple(each[name] for name in names) for each in lines(folder)]


@virtual_time
async def test_no_room(tmp_path: Path) -> None:
    """A nack that waits for room among held messages is traced as a hold, and as a nack when there is room."""
    port = FakePort()
    port.topic.publish(b"one")
    port.topic.publish(b"two")
    config = NackConfig(negative_ack_precision_bit_cnt=0, max_held=1)
    async with (
        TraceWriter(tmp_path, wall_clock=LoopClock()) as writer,
        Consumer(port, config=config, trace=writer) as consumer,
    ):
        one, two = await consumer.receive(), await consumer.receive()
        await one.nack(delay=2)
        await two.nack(delay=3)
        for _ in range(2):
            await (await consumer.receive()).ack()
    assert events(tmp_path, "event", "entry", "time_ms", "delay_ms", "deadline_ms", "reason") == [
        ("arrive", 0, 0, None, None, None),
        ("arrive", 1, 0, None, None, None),
        ("nack", 0, 0, 2_000, 2_000, None),
        ("hold", 1, 0, None, None, "no room"),
        ("redeliver", 0, 2_000, None, 2_000, None),
        ("nack", 1, 2_000, 3_000, 3_000, None),
        ("arrive", 0, 2_000, None, 2_000, None),
        ("ack", 0, 2_000, None, None, "ack"),
        ("redeliver", 1, 3_000, None, 3_000, None),
        ("arrive", 1, 3_000, None, 3_000, None),
        ("ack", 1, 3_000, None, None, "ack"),
    ]


@virtual_time
async def test_paused(tmp_path: Path) -> None:
    """Messages that arrive while the gate is closed are held, as the statistics say; they do not arrive again."""
    machine = Machine()
    publish_batches(machine, 60)
    async with (
        TraceWriter(tmp_path, wall_clock=LoopClock()) as writer,
        machine.consuming(max_ack_state_bytes=LIMIT, trace=writer) as consumer,
    ):
        left = await fill(consumer)
        gated = consumer.statistics().gated
        held = {message.id.entry for message in left}
        for message in left:
            await message.ack()
        await fill(consumer)
    found = lines(tmp_path)
    holds = [each for each in found if each["event"] == "hold"]
    assert {each["reason"] for each in holds} == {"paused"}
    early = [each for each in holds if each["time_ms"] <= 500]
    assert len({(each["entry"], each["batch_index"]) for each in early}) == gated > 0
    assert held.isdisjoint(each["entry"] for each in early)
    arrived = [(each["entry"], each["batch_index"]) for each in found if each["event"] == "arrive"]
    assert len(arrived) == len(set(arrived))
    assert {(each["entry"], each["batch_index"]) for each in holds} <= set(arrived)


@virtual_time
async def test_not_due(tmp_path: Path) -> None:
    """A message that the broker sends after a restart and early is held, and arrives at its old deadline."""
    machine = Machine().publish(b"later")
    async with machine.consuming() as consumer:
        await (await consumer.receive()).nack(delay=60)
    await asyncio.sleep(20)
    async with (
        TraceWriter(tmp_path, wall_clock=LoopClock()) as writer,
        machine.consuming(trace=writer, redelivery="local") as consumer,
    ):
        await (await consumer.receive()).ack()
    assert events(tmp_path, "event", "time_ms", "attempt", "deadline_ms", "reason") == [
        ("hold", 20_000, 0, None, "not due"),
        ("redeliver", 60_000, 0, 60_000, None),
        ("arrive", 60_000, 1, 60_000, None),
        ("ack", 60_000, 1, None, "ack"),
    ]


@virtual_time
async def test_cumulative_acknowledgement(tmp_path: Path) -> None:
    """Each message up to it is traced as acknowledged, a nacked one first as cancelled; later messages are not."""
    port = FakePort(subscription_type="exclusive")
    for number in range(4):
        port.topic.publish(bytes([number]))
    async with (
        TraceWriter(tmp_path, wall_clock=LoopClock()) as writer,
        Consumer(port, config=EXACT, trace=writer) as consumer,
    ):
        messages = [await consumer.receive() for _ in range(4)]
        await messages[0].nack(delay=1)
        await messages[3].nack(delay=1)
        await asyncio.sleep(0.5)
        await consumer.acknowledge_cumulative(messages[2])
        await (await consumer.receive()).ack()
    assert [each for each in events(tmp_path, "event", "entry", "time_ms", "reason") if each[0] != "arrive"] == [
        ("nack", 0, 0, None),
        ("nack", 3, 0, None),
        ("cancel", 0, 500, "ack"),
        ("ack", 0, 500, "ack"),
        ("ack", 1, 500, "ack"),
        ("ack", 2, 500, "ack"),
        ("redeliver", 3, 1_000, None),
        ("ack", 3, 1_000, "ack"),
    ]
