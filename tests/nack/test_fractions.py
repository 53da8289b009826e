"""Times and delays with fractions of a ms: early by less than a bucket of the exact deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from pulsar_nack import Consumer, MessageId, NackConfig, NegativeAcksTracker
from pulsar_nack.testing import FakePort, run

FLOATS_ERR_S = 2e-9
Nacks = list[tuple[float, float]]
"""Seconds until a nack, and its delay."""

nacks = st.lists(st.tuples(st.floats(0, 0.01), st.floats(0, 0.05)), min_size=1, max_size=8)


def exact(bits: int) -> NackConfig:
    """Buckets of this width for any delay."""
    return NackConfig(negative_ack_precision_bit_cnt=bits, precision_ratio=None)


def check(error: float, bits: int) -> None:
    """Assert that something came early by less than a bucket, and late by less than the ms in which it was due."""
    assert -(2**bits) / 1000 - FLOATS_ERR_S < error < 0.001 + FLOATS_ERR_S


async def tracked(all_nacks: Nacks, bits: int) -> list[float]:
    """Nack ids on a tracker; return how late each came, in s."""
    loop = asyncio.get_running_loop()
    due_at, errors = dict[MessageId, float](), list[float]()

    def came(ids: Sequence[MessageId]) -> None:
        errors.extend(loop.time() - due_at[each] for each in ids)

    async with NegativeAcksTracker(came, exact(bits)) as tracker:
        for number, (pause, delay) in enumerate(all_nacks):
            await asyncio.sleep(pause)
            due_at[MessageId(1, number)] = loop.time() + delay
            tracker.nack_nowait(MessageId(1, number), delay)
        await asyncio.sleep(1)
    return errors


@given(nacks, st.integers(0, 5))
@example([(0.0009, 0.0014)], 0)
@example([(0.00099, 0.00549)], 2)
def test_tracker(all_nacks: Nacks, bits: int) -> None:
    """An id nacked at any time comes early by less than a bucket, counted from the exact deadline."""
    errors = run(tracked(all_nacks, bits))
    assert len(errors) == len(all_nacks)
    for error in errors:
        check(error, bits)


async def delivered(all_nacks: Nacks, bits: int, **settings: Any) -> list[float]:
    """Nack a consumer's messages, one after another; return how late each came, in s."""
    loop = asyncio.get_running_loop()
    port, due_at, errors = FakePort(), dict[bytes, float](), list[float]()
    port.topic.publish_batch([b"%d" % number for number in range(len(all_nacks))])
    async with Consumer(port, config=exact(bits), **settings) as consumer:
        fresh = [await consumer.receive() for _ in all_nacks]

        async def take_again() -> None:
            for _ in all_nacks:
                message = await consumer.receive()
                errors.append(loop.time() - due_at[message.data])
                await message.ack()

        taking = asyncio.create_task(take_again())
        for message, (pause, delay) in zip(fresh, all_nacks, strict=True):
            await asyncio.sleep(pause)
            due_at[message.data] = loop.time() + delay
            await message.nack(delay=delay)
        await asyncio.wait_for(taking, 1)
    return errors


@given(nacks, st.integers(0, 5), st.sampled_from(["local", "auto"]))
@example([(0.0009, 0.0014)], 0, "local")
def test_delivered_from_memory(all_nacks: Nacks, bits: int, redelivery: str) -> None:
    """A consumer redelivers a message from memory just as exactly."""
    errors = run(delivered(all_nacks, bits, redelivery=redelivery))
    assert len(errors) == len(all_nacks)
    for error in errors:
        check(error, bits)
