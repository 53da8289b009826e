"""A process that uses a cursor in a folder until it is killed, and prints what it does next.

``ack L E``, ``part L E I``, ``cumulative L E``, ``reset L E``; ``flushed N``: the first N of these are durable.
"""

from __future__ import annotations

import asyncio
from random import Random

from pulsar_nack import Position
from pulsar_nack.config import CursorConfig
from pulsar_nack.cursor import BatchSet, Cursor

from .crashes import BATCH, ENTRIES, LEDGERS

CONFIG = CursorConfig(
    max_individual_ack_cache_bytes_per_cursor=0,
    rollover_bytes=2_000,
    managed_ledger_cursor_max_entries_per_ledger=30,
    flush_interval=0.001,
)


def say(what: str, *numbers: int) -> None:
    """Print a line at once."""
    print(what, *numbers, flush=True)


async def flush(cursor: Cursor, done: int) -> None:
    """Flush, and print how many operations are durable now."""
    await cursor.flush()
    say("flushed", done)


async def work(cursor: Cursor, random: Random) -> None:
    """Perform random operations without end."""
    done = 0
    flushes: set[asyncio.Task[None]] = set()
    while True:
        position = random.choice(ENTRIES)
        what = random.choices(["ack", "part", "cumulative", "reset"], [12, 6, 1, 1], k=1)[0]
        done += 1
        if what == "ack":
            say(what, *position)
            await cursor.acknowledge([position])
        elif what == "part":
            index = random.randrange(BATCH)
            say(what, *position, index)
            await cursor.acknowledge([position], batch_sets={position: BatchSet.acked(BATCH, [index])})
        elif what == "cumulative" and position > cursor.mark_delete_position:
            say(what, *position)
            await cursor.acknowledge_cumulative(position)
        else:
            say("reset", *position)
            await cursor.reset(position)
        if random.random() < 0.2:
            await flush(cursor, done)
        elif random.random() < 0.2:
            flushes.add(asyncio.create_task(flush(cursor, done)))
            await asyncio.sleep(0)
        flushes = {task for task in flushes if not task.done()}


async def main(path: str, seed: int) -> None:
    """Open the cursor and work."""
    async with await Cursor.open_local(path, LEDGERS, CONFIG, start=Position(3, -1)) as cursor:
        await work(cursor, Random(seed))
