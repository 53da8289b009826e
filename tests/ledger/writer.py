"""A process that appends until it is killed: prints each number once it is durable."""

from __future__ import annotations

import asyncio
import sys

from pulsar_nack.ledger import LocalLogStore


async def main(path: str) -> None:
    """Append from several tasks without end; a record says which append of which task it is."""
    async with await LocalLogStore.open(path, max_segment_bytes=4096) as store:
        log = await (store.open_log("a") if "a" in await store.names() else store.create("a"))
        start = log.length

        async def work(task: int) -> None:
            count = 0
            while True:
                number = await log.append(b"%d %d %d" % (start, task, count) + b" " * (count % 50))
                print(number, start, task, count, flush=True)
                count += 1

        await asyncio.gather(*(work(task) for task in range(5)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
