"""A process that uses a topic in a folder until it is killed, and prints what is durable.

``published N``; ``acked N``: it was acknowledged and flushed; ``acking N``: it may be from now on.
"""

from __future__ import annotations

import asyncio

from pulsar_nack.config import CursorConfig, TopicConfig
from pulsar_nack.topic import open_local

CONFIG = TopicConfig(max_entries_per_ledger=7, cursor=CursorConfig(flush_interval=0.001, rollover_bytes=2_000))


def say(what: str, number: int) -> None:
    """Print a line at once."""
    print(what, number, flush=True)


async def main(path: str, first: int) -> None:
    """Publish and consume without end."""
    async with open_local(path, CONFIG) as topic:
        port = await topic.subscribe("s", initial_position="earliest")

        async def produce(start: int) -> None:
            for number in range(start, start + 900_000, 3):
                await topic.publish(b"%d" % number)
                say("published", number)

        async def consume() -> None:
            while True:
                delivery = await port.receive()
                number = int(delivery.data)
                if number % 5 == 0 and not delivery.redelivery_count:
                    await port.redeliver([delivery.id])
                    continue
                say("acking", number)
                await port.acknowledge([delivery.id])
                await topic.flush()
                say("acked", number)

        await asyncio.gather(consume(), consume(), *(produce(first + offset) for offset in range(3)))
