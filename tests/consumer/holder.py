"""A consumer to be killed: prints ``subscribed``, then nacks each message for a minute and prints it.

``python -m tests.consumer.holder SERVICE_URL TOPIC``
"""

from __future__ import annotations

import asyncio
import sys

from tests.consumer.official import subscribed


async def hold(url: str, topic: str) -> None:
    """Hold every message, until killed."""
    async with subscribed(url, topic, redelivery="local") as (_, consumer):
        sys.stdout.write("subscribed\n")
        sys.stdout.flush()
        async for message in consumer:
            await message.nack(delay=60)
            sys.stdout.write(message.data.decode() + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(hold(sys.argv[1], sys.argv[2]))
