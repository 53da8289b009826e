"""A cursor on object storage that another process takes over at any moment."""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress

import pytest
from obstore.store import MemoryStore

from pulsar_nack import Fixed, Position
from pulsar_nack.config import CursorConfig
from pulsar_nack.cursor import Cursor
from pulsar_nack.errors import LedgerError, LogFencedError, LogStorageError
from pulsar_nack.ledger import ObjectLogStore
from pulsar_nack.ledger.faults import FaultyObjects
from tests.tiers import sample

from .stage import LONG, acked

LEDGERS = {1: 40, 2: 40}
ROLLING = CursorConfig(managed_ledger_cursor_max_entries_per_ledger=2, rollover_bytes=0, flush_interval=LONG)
CALM = CursorConfig(flush_interval=LONG)


class Race:
    """Two owners of one cursor; the second one opens it when the first one makes a certain request."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.objects = FaultyObjects(self.store)
        self.reported: set[tuple[int, int]] = set()
        self.has_taken_over = False

    async def first(self) -> None:
        """Acknowledge and flush until another process has the cursor."""
        async with await ObjectLogStore.open(self.objects, threads=1, attempts=1, backoff=Fixed(0)) as store:
            with suppress(LedgerError):
                cursor = await Cursor.open(store, LEDGERS, ROLLING)
                try:
                    for entry in range(1, 13, 2):
                        await cursor.acknowledge([Position(1, entry)])
                        await cursor.flush()
                        self.reported.add((1, entry))
                finally:
                    await cursor.aclose()

    def take_over(self) -> None:
        """Open the cursor as another process would: in another loop, in the thread that makes the request."""
        asyncio.run(self.second())

    async def second(self) -> None:
        """Check that nothing reported is missing, and acknowledge something."""
        before = set(self.reported)
        async with (
            await ObjectLogStore.open(self.store, threads=1) as store,
            await Cursor.open(store, LEDGERS, CALM) as cursor,
        ):
            assert before <= set(await acked(cursor))
            await cursor.acknowledge([Position(2, 5)])
            await cursor.flush()
        self.reported.add((2, 5))
        self.has_taken_over = True

    async def check(self) -> None:
        """Open it once more: all that was reported is there, and only one log."""
        async with await ObjectLogStore.open(self.store, threads=1) as store:
            async with await Cursor.open(store, LEDGERS, CALM) as cursor:
                assert self.reported <= set(await acked(cursor))
                await cursor.acknowledge([Position(2, 9)])
            assert len([name for name in await store.names() if not name.endswith("-snapshot")]) == 1


def count_requests() -> int:
    """Return how many requests an undisturbed first owner makes."""
    race = Race()
    asyncio.run(race.first())
    assert len(race.reported) == 6
    return len(race.objects.history)


@pytest.mark.timeout(120)
def test_taken_over_at_every_request() -> None:
    """Whenever another process takes the cursor over, neither loses what it reported as durable."""
    requests = count_requests()
    assert requests > 60
    for at in sample(range(requests), most=4):
        race = Race()
        race.objects.call(at, race.take_over)
        asyncio.run(race.first())
        assert race.has_taken_over
        asyncio.run(race.check())


@pytest.mark.parametrize("is_done", [False, True], ids=["failed", "lost"])
@pytest.mark.parametrize("is_taken", [False, True], ids=["alone", "taken over"])
async def test_a_request_in_doubt(is_done: bool, is_taken: bool) -> None:
    """A request of a rollover fails, or loses its answer: later ones use a new log, or the cursor is fenced."""
    for at in range(30):
        objects = FaultyObjects(MemoryStore())
        async with await ObjectLogStore.open(objects, threads=1, attempts=1, backoff=Fixed(0)) as store:
            cursor = await Cursor.open(store, LEDGERS, ROLLING)
            objects.fail(errno.EIO, "create", skip=at, is_done=is_done)
            for entry in range(1, 9, 2):
                await cursor.acknowledge([Position(1, entry)])
                with suppress(LogStorageError):
                    await cursor.flush()
            has_failed = objects._count(frozenset(["create"])) > at
            objects.heal()
            if is_taken:
                async with await Cursor.open(store, LEDGERS, ROLLING) as other:
                    await other.acknowledge([Position(2, 5)])
                await cursor.acknowledge([Position(1, 9)])
                with pytest.raises(LogFencedError):
                    await cursor.flush()
            else:
                await cursor.acknowledge([Position(1, 9)])
                await cursor.flush()
            await cursor.aclose()
            async with await Cursor.open(store, LEDGERS, CALM) as cursor:
                expected = [(1, entry) for entry in (1, 3, 5, 7)] + [(2, 5) if is_taken else (1, 9)]
                assert await acked(cursor) == expected
        if not has_failed:
            break
    assert at > 10
