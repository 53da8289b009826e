"""Entries that are here and not read yet: what they count as, and what becomes of one that cannot be read now."""

from __future__ import annotations

import asyncio
from typing import Final

from pulsar_nack.testing import virtual_time
from tests.wire.consuming import consuming

SIZE: Final = 1_000


@virtual_time
async def test_a_batch_of_which_only_the_first_is_shown_leaves_nothing_counted() -> None:
    """The broker sends all 300, and one is shown: those behind it do not count once it is received."""
    async with consuming(max_prefetched_bytes=1 << 20) as made:
        consumer = await made.open(batch_index_ack=True)
        for _ in range(5):
            made.topic.publish_batch([bytes(SIZE)] * 300)
            first, *others = await made.arrived.take(300)
            await consumer.acknowledge([each.id for each in others])
            await consumer.redeliver([first.id])
            (again,) = await made.arrived.take(1)
            assert again.id == first.id
            await consumer.acknowledge([again.id])
            await asyncio.sleep(1)
            assert made.core.prefetched.bytes == 0
            assert made.permits() > 900
