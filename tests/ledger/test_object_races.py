"""Machines that race for one log on the real clock, with requests that are slow, fail, or lose their answers."""

from __future__ import annotations

import asyncio
import errno
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import count
from random import Random
from typing import TypeVar

import pytest
from obstore.store import MemoryStore

from pulsar_nack.errors import LedgerError, LogFencedError, LogSealedError, LogStorageError
from pulsar_nack.ledger import Log, ObjectLogStore
from pulsar_nack.ledger.faults import FaultyObjects
from tests.for_each import for_each
from tests.tiers import sample

from .homes import content, open_objects

pytestmark = pytest.mark.slow
_T = TypeVar("_T")


class Slow(FaultyObjects):
    """Requests that take a random time before and after they are carried out."""

    def __init__(self, inner: MemoryStore, random: Random) -> None:
        super().__init__(inner, random=random)
        self._times = random

    def _step(self, operation: str, work: Callable[[], _T]) -> _T:
        time.sleep(self._times.choice((0, 0, 0, 0.001, 0.001, 0.01)) * self._times.random())
        result = super()._step(operation, work)
        time.sleep(self._times.choice((0, 0, 0, 0.003)) * self._times.random())
        return result


class Race:
    """The answers for each log of one name, of which there are several one after another."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.store = MemoryStore()
        self.kept: dict[str, dict[int, bytes]] = defaultdict(dict)
        self.doubted: set[bytes] = set()
        self.ended: set[str] = set()
        self.numbers = count()

    async def machine(self, *, deletes: bool, fails: bool) -> None:
        """Open the log again and again, append, and sometimes seal or delete it."""
        objects = Slow(self.store, Random(self.random.random()))
        if fails:
            chosen = self.random.choice(((), ("create",), ("get",)))
            times, is_done = self.random.choice((1, 2, 4)), self.random.random() < 0.5
            objects.fail(errno.EIO, *chosen, skip=self.random.randrange(5, 40), times=times, is_done=is_done)
        async with await open_objects(objects, attempts=2) as store:
            for _ in range(6):
                try:
                    log = await (store.create("a") if deletes and self.random.random() < 0.3 else store.open_log("a"))
                except LedgerError:
                    continue
                await self.append(log)
                await self.end(log, deletes=deletes)

    async def append(self, log: Log) -> None:
        """Append for a while."""
        instance = instance_of(log)
        for _ in range(self.random.randrange(12)):
            records = [b"%d " % next(self.numbers) * self.random.randrange(1, 30) for _ in range(2)]
            was_over = instance in self.ended
            try:
                first = await log.append_many(records)
            except (LogFencedError, LogSealedError):
                return
            except LogStorageError:
                self.doubted.update(records)
                continue
            assert not was_over
            for number, record in enumerate(records, first):
                assert number not in self.kept[instance]
                self.kept[instance][number] = record

    async def end(self, log: Log, *, deletes: bool) -> None:
        """Delete the log, seal it, or close it."""
        chance = self.random.random() if deletes else 1
        try:
            if chance < 0.25:
                await log.delete()
            elif chance < 0.4:
                await log.seal()
            else:
                return await log.aclose()
        except (LogFencedError, LogStorageError):
            return None
        self.ended.add(instance_of(log))
        return None

    async def check(self) -> None:
        """Answered appends are there, and apart from them only those in doubt."""
        async with await open_objects(self.store) as store:
            if "a" not in await store.names():
                return
            log = await store.open_log("a")
            kept = self.kept[instance_of(log)]
            found = dict(enumerate(await content(log)))
            assert {number: found.get(number) for number in kept} == kept
            assert {record for number, record in found.items() if number not in kept} <= self.doubted
            assert len(set(found.values())) == len(found)


def instance_of(log: Log) -> str:
    """Return which of the logs of this name this is."""
    return str(log._log_objects.entry.instance)  # type: ignore[attr-defined]


@for_each("seed", sample(range(10)))
@pytest.mark.parametrize("deletes", [False, True])
@pytest.mark.parametrize("fails", [False, True])
async def test_races(seed: int, deletes: bool, fails: bool) -> None:
    """Three machines take a log from each other: answered appends are there, once, and nothing else counts."""
    race = Race(seed)
    async with await ObjectLogStore.open(race.store) as store:
        await store.create("a")
    await asyncio.gather(*(race.machine(deletes=deletes, fails=fails) for _ in range(3)))
    await race.check()
    async with await open_objects(race.store) as store:
        log = await (store.open_log("a") if "a" in await store.names() else store.create("a"))
        if not log.is_sealed:
            assert await log.append(b"last") == log.length - 1
