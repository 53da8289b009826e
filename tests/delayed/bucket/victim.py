"""A process that uses a tracker in a folder until it is killed, and prints what is true from then on.

``published L E AT``, ``took L E``, ``sealed L E``, ``marking L E``, ``marked L E``, ``now MS``.
"""

from __future__ import annotations

import asyncio
from random import Random

from pulsar_nack import BucketDelayedDeliveryTracker, Position
from pulsar_nack.delayed import LogBucketTracker
from pulsar_nack.testing import ManualClock

from .stage import config_of


def say(what: str, *numbers: int) -> None:
    """Print a line at once."""
    print(what, *numbers, flush=True)


def say_sealed(tracker: LogBucketTracker, said: set[Position]) -> None:
    """Print what is on storage and was not yet printed."""
    index = tracker._index
    index.queue.change_tail_owner(index.mutable)
    unsealed = index.queue.runs([index.mutable, *index.sealing])
    in_memory = {Position(ledger, entry) for run in unsealed for _, ledger, entry in run.rest()}
    for position in sorted({Position(*each) for each in index.pending} - in_memory - said):
        say("sealed", *position)
        said.add(position)


async def main(path: str, seed: int, ledger: int, now: int) -> None:
    """Publish, wait, take and acknowledge without end."""
    random, clock, said = Random(seed), ManualClock(now), set[Position]()
    config = config_of(least=3, step=40, most_indexes=4, most_buckets=4, prefetch=0.05)
    async with await BucketDelayedDeliveryTracker.open_local(path, config, clock=clock) as tracker:
        waiting: set[Position] = {Position(*each) for each in tracker._index.pending}
        while True:
            ledger += 1
            for entry in range(random.choice([1, 3, 9])):
                at = clock.now_ms() + random.choice([20, 100, 500, 100_000])
                say("published", ledger, entry, at)
                tracker.add_message(ledger, entry, at)
                waiting.add(Position(ledger, entry))
            say_sealed(tracker, said)
            if random.random() < 0.5:
                await tracker.wait_until_idle()
                say_sealed(tracker, said)
            else:
                await asyncio.sleep(0.002)
            clock.advance(random.choice([0, 5, 50]))
            say("now", clock.now_ms())
            for position in tracker.get_scheduled_messages(100):
                say("took", *position)
                waiting.discard(position)
            if random.random() < 0.2:
                mark = min(waiting)._replace(entry=-1)
                say("marking", *mark)
                await tracker.cursor.mark_delete(mark)
                say("marked", *mark)
