"""How exactly messages are redelivered on a real broker; the bounds are wide, the figures printed (``pytest -s``)."""

from __future__ import annotations

import asyncio
import collections
import random
import time

import pytest

from tests.broker._answer_time import leniency, measuring
from tests.consumer import scenarios
from tests.consumer.official import nothing_comes, numbered, subscribed

COUNT = 400


@pytest.mark.alone
@pytest.mark.parametrize(
    ("redelivery", "shortest", "p50", "p99"), [("local", 0.02, 0.05, 0.4), ("broker", 0.3, 0.15, 0.6)]
)
async def test_all_come_back_in_time(
    service_url: str, topic: str, redelivery: str, shortest: float, p50: float, p99: float
) -> None:
    """N32: 400 messages with different delays, nacks arriving all the while: none lost, none doubled, all in time."""
    chance = random.Random(5)
    delays = [chance.uniform(shortest, 3.0) for _ in range(COUNT)]
    errors: list[float] = []
    seen: collections.Counter[bytes] = collections.Counter()
    due_at: dict[bytes, float] = {}
    async with (
        measuring(service_url, topic, sorted(0.005 * number + delay for number, delay in enumerate(delays))) as bare,
        subscribed(service_url, topic, redelivery=redelivery) as (client, consumer),
    ):

        async def send_slowly() -> None:
            producer = await client.create_producer(topic, batching_enabled=False)
            for payload in numbered(COUNT):
                await producer.send(payload)
                await asyncio.sleep(0.005)

        sending = asyncio.create_task(send_slowly())
        while len(errors) < COUNT:
            message = await consumer.receive(timeout=10)
            now = time.monotonic()
            seen[message.data] += 1
            if message.attempt == 1:
                delay = delays.pop()
                due_at[message.data] = now + delay
                await message.nack(delay=delay)
            else:
                errors.append(now - due_at[message.data])
                await message.ack()
        await sending
        assert await nothing_comes(consumer, 1.0)
        assert scenarios.all_given_back(consumer)
    assert len(seen) == COUNT
    assert set(seen.values()) == {2}
    early, errors = min(errors), sorted(map(abs, errors))
    middle, last = errors[COUNT // 2], errors[COUNT * 99 // 100]
    print(f"\n{redelivery}: error p50 {middle * 1e3:.1f} ms, p99 {last * 1e3:.1f} ms, earliest {early * 1e3:.1f} ms")
    waited = sorted(each / 1e3 for each in bare.bare_ms) if redelivery == "broker" else [0.0] * COUNT
    print(f"a bare socket waits {waited[COUNT // 2] * 1e3:.1f} ms, {waited[COUNT * 99 // 100] * 1e3:.1f} ms")
    assert early > -0.05
    assert middle - waited[COUNT // 2] < p50 * leniency()
    assert last - waited[COUNT * 99 // 100] < p99 * leniency()
