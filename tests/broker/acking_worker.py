"""A native consumer in its own process, killed with signal 9 as soon as its acknowledgements have returned.

``python -m tests.broker.acking_worker SERVICE_URL TOPIC COUNT WAY``; WAY is ``each`` (one after another) or ``all`` (at
the same time). It prints how many it acknowledged just before it is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from tests.broker._native import native
from tests.consumer.official import take


async def work(url: str, topic: str, count: str, way: str) -> None:
    """Acknowledge messages until the process is killed."""
    async with native(url, topic) as consumer:
        messages = await take(consumer, int(count), timeout=30)
        if way == "all":
            await asyncio.gather(*(message.ack() for message in messages))
        else:
            for message in messages:
                await message.ack()
        os.write(1, f"{len(messages)}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:]))
