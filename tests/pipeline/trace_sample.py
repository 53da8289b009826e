"""Makes the stored trace: a run of some seconds on a broker, with nacks, cancels, failures and a close.

``python -m tests.broker.standalone run -- python -m tests.pipeline.trace_sample FOLDER``
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from typing import Any

import pulsar
import pulsar.asyncio

import pulsar_nack
from pulsar_nack import Message
from pulsar_nack.config import TraceConfig
from pulsar_nack.observe import TraceWriter

TOPICS = ("orders", "invoices")
MESSAGES = 40
DELAYS = (0.2, 0.5, 1.5)


async def work(message: Message, dice: random.Random) -> None:
    """Nack two of three first attempts and one of three later ones; cancel some nacks."""
    if dice.random() < (0.66 if message.attempt == 1 else 0.33):
        await message.nack(delay=dice.choice(DELAYS))
        if dice.random() < 0.1:
            await message.ack()
    else:
        await message.ack()


async def consume(consumer: pulsar_nack.Consumer, dice: random.Random) -> None:
    """Work until nothing comes for three seconds."""
    try:
        while True:
            message = await consumer.receive(timeout=3)
            await work(message, dice)
    except TimeoutError:
        return


async def run_topic(client: pulsar.asyncio.Client, writer: TraceWriter, name: str, dice: random.Random) -> None:
    """Publish and consume one topic, some of it in batches."""
    topic = f"persistent://public/default/{name}"
    options: dict[str, Any] = {"batch_index_ack_enabled": True, "consumer_name": "worker-1"}
    async with pulsar_nack.subscribe(client, topic, "billing", trace=writer, **options) as consumer:
        is_batched = name == "invoices"
        producer = await client.create_producer(
            topic, batching_enabled=is_batched, batching_max_messages=4, batching_max_publish_delay_ms=50
        )
        await asyncio.gather(*(producer.send(f"{name} {number}".encode()) for number in range(MESSAGES)))
        await consume(consumer, dice)
        await producer.send(b"left")
        await (await consumer.receive(timeout=5)).nack(delay=60)


async def main(folder: str) -> None:
    """Trace all topics, one after the other."""
    client = pulsar.asyncio.Client(
        os.environ["PULSAR_SERVICE_URL"], logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
    )
    try:
        async with TraceWriter(TraceConfig(folder=folder, max_file_bytes=40_000, flush_seconds=0.1)) as writer:
            for seed, name in enumerate(TOPICS):
                await run_topic(client, writer, name, random.Random(seed))
    finally:
        await client.close()
    print(writer.statistics())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
