"""Random operations, checked against what the broker counts as acknowledged; see ``_random_operations.py``.

``OPERATIONS=10000`` sets the total number, ``SEED=7`` chooses other operations, ``LIFE=12`` runs only one sequence. A
failure names the sequence and the history of the message.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from itertools import product
from typing import Final

import pytest

pytest.importorskip("google_crc32c")

from tests.broker._admin import Admin
from tests.broker._random_operations import RandomOperations
from tests.tiers import SEED

OPERATIONS: Final = int(os.environ.get("OPERATIONS", "300"))
LIFE: Final = os.environ.get("LIFE")
_EACH: Final = 50
_AT_ONCE: Final = 6
_KINDS: Final = list(product(("shared", "failover", "exclusive"), (0, 2)))


@pytest.mark.timeout(120 + OPERATIONS)
def test_random_operations_lose_hide_and_repeat_nothing(broker_urls: tuple[str, str]) -> None:
    """Unacknowledged messages come in time, removed ones at most once more, and sent ones are stored."""
    asyncio.run(_live(broker_urls))


async def _live(urls: tuple[str, str]) -> None:
    numbers = range(max(OPERATIONS // _EACH, 1)) if LIFE is None else [int(LIFE)]
    running = asyncio.Semaphore(_AT_ONCE)
    failures: list[str] = []
    times_stuck = 0

    async def one(number: int) -> None:
        nonlocal times_stuck
        kind, partitions = _KINDS[number % len(_KINDS)]
        topic = f"persistent://public/default/random-{uuid.uuid4().hex[:8]}"
        ops = RandomOperations(urls, topic, kind, partitions, f"{SEED} {number}")
        async with running:
            try:
                await ops.run(_EACH)
            except AssertionError as error:
                failures.append(f"SEED={SEED} LIFE={number}: {error}")
            finally:
                times_stuck += ops.times_stuck
                await asyncio.to_thread(Admin(urls[1]).delete, topic, partitioned=bool(partitions))

    await asyncio.gather(*map(one, numbers))
    print(f"\n{len(numbers)} lives, {len(failures)} went wrong; the broker was stuck {times_stuck} times", end="")
    assert not failures, f"{len(failures)} of {len(numbers)} lives went wrong\n\n" + "\n\n".join(failures[:5])
