"""Random runs of durable state beside a model that knows what must be found after a crash, and what may be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from pulsar_nack import MessageId
from pulsar_nack.consumer._durable import DurableNacks, Outcome
from pulsar_nack.consumer._durable._records import EntryAcks, RangeAcks
from pulsar_nack.consumer._durable._unsettled import Found
from pulsar_nack.errors import LedgerError
from pulsar_nack.ledger import LocalLogStore, LogStore, ObjectLogStore
from pulsar_nack.ledger._fault import FaultyFiles, SimulatedCrash
from pulsar_nack.ledger._memory_files import MemoryFiles
from pulsar_nack.ledger._object_fault import FaultyObjects
from pulsar_nack.testing import ManualClock

FOLDER = Path("/state")
TTL_MS = 10_000_000
MEMORY_MS = 500_000
IDS = [
    *(MessageId(7, entry, 1, topic="t-partition-1") for entry in range(6)),
    *(MessageId(7, 900, index, batch_index=index, batch_size=9, topic="t") for index in range(3)),
    *(MessageId(7, 901, 1, batch_index=index, batch_size=2, topic="t-partition-1") for index in range(2)),
    MessageId(1 << 40, 5_000_000, topic="t"),
]


@dataclass
class Model:
    """For each id the states that may be found: the last that was reported durable, and what was tried since."""

    may_be: dict[MessageId, list[Found | None]] = field(default_factory=lambda: {each: [None] for each in IDS})

    settled: set[MessageId] = field(default_factory=set)
    """Those whose acknowledgement was reported durable, and of which nothing was called for since."""

    def tried(self, message_id: MessageId, found: Found | None) -> None:
        """A change was called for."""
        self.may_be[message_id].append(found)
        self.settled.discard(message_id)

    def durable(self, message_id: MessageId, found: Found | None) -> None:
        """It was reported durable, and nothing of this id was called for since."""
        self.may_be[message_id] = [found]
        if found is None:
            self.settled.add(message_id)

    def check(self, find: Callable[[MessageId], Found | None], acked: set[MessageId]) -> None:
        """Compare with what was found, and take it over: it was made durable when it was opened."""
        for message_id in IDS:
            found = find(message_id)
            assert found in self.may_be[message_id], message_id
            self.may_be[message_id] = [found]
            assert found is None or message_id not in acked, message_id
        assert self.settled <= acked


class Run:
    """One life of durable state over files that may fail or crash."""

    def __init__(self, random: Random, files: FaultyFiles | FaultyObjects, clock: ManualClock, model: Model) -> None:
        self.random = random
        self.files = files
        self.clock = clock
        self.model = model
        self.compactions = 0

    async def play(self, steps: int) -> None:
        """Open, check, do random things, close or crash."""
        async with await self._open_store() as store:
            try:
                durable = await self._open(store)
            except LedgerError:
                self.files.heal()
                durable = await self._open(store)
            self.model.check(durable.find, acked_again(durable))
            running = asyncio.create_task(durable.run())
            try:
                for _ in range(steps):
                    await self._step(durable)
                await durable.finish()
            finally:
                self.compactions += durable.journal.compactions
                running.cancel()
                (error,) = await asyncio.gather(running, return_exceptions=True)
                if not self.files.is_crashed:
                    assert isinstance(error, asyncio.CancelledError)
                    await durable.aclose()

    async def _open_store(self) -> LogStore:
        if isinstance(self.files, FaultyFiles):
            return await LocalLogStore.open(FOLDER, max_segment_bytes=1024, threads=1, files=self.files)
        try:
            return await ObjectLogStore.open(self.files, max_object_bytes=1024, threads=1, attempts=1)
        except LedgerError:
            self.files.heal()
            return await ObjectLogStore.open(self.files, max_object_bytes=1024, threads=1, attempts=1)

    async def _open(self, store: LogStore) -> DurableNacks:
        return await DurableNacks.open(store, memory_ms=MEMORY_MS, ttl_ms=TTL_MS, clock=self.clock, compact_bytes=1_500)

    async def _step(self, durable: DurableNacks) -> None:
        """Let some tasks change something at the same time, each another id."""
        chosen = self.random.sample(IDS, self.random.choice((1, 1, 2, 6)))
        await asyncio.gather(*(self._change(durable, message_id) for message_id in chosen))
        self.clock.advance(self.random.randrange(3))
        if self.files.is_crashed:
            raise SimulatedCrash

    async def _change(self, durable: DurableNacks, message_id: MessageId) -> None:
        chance, count = self.random.random(), self.random.randrange(100)
        now_ms, delay_ms = self.clock.now_ms(), self.random.randrange(100_000)
        if chance < 0.4:
            await self._await(message_id, Found(now_ms + delay_ms, count), durable.nacked(message_id, delay_ms, count))
        elif chance < 0.6:
            await self._await(message_id, Found(now_ms, count), durable.shown(message_id, count))
        else:
            await self._await(message_id, None, durable.settled(message_id))

    async def _await(self, message_id: MessageId, found: Found | None, written: Awaitable[Outcome]) -> None:
        self.model.tried(message_id, found)
        if self.random.random() < 0.1:
            return  # nobody waits
        error = await written
        if error is None:
            self.model.durable(message_id, found)
        else:
            assert isinstance(error, LedgerError) or self.files.is_crashed


def acked_again(durable: DurableNacks) -> set[MessageId]:
    """Return the ids of what is remembered as acknowledged, members of batches one by one."""
    acked: set[MessageId] = set()
    for item in durable._memory.acknowledged():
        if isinstance(item, EntryAcks):
            size = item.id.batch_size
            acked |= {item.id._replace(batch_index=index) for index in range(size) if item.acked >> index & 1}
        elif isinstance(item, RangeAcks):
            acked |= {each for each in IDS if each[:3] in entries_of(item)}
        else:
            acked.add(item.id)
    return acked


def entries_of(item: RangeAcks) -> set[tuple[int, int, int]]:
    """Return the entries as ledger, entry, partition."""
    ledger, _, partition, _ = item.id
    return {(ledger, entry, partition) for first, last in item.ranges for entry in range(first, last + 1)}


def count_operations(seed: int, steps: int) -> int:
    """Return how many file operations a run without faults makes."""
    run = Run(Random(seed), FaultyFiles(MemoryFiles()), ManualClock(1_000), Model())
    asyncio.run(run.play(steps))
    assert run.compactions > 0
    return len(run.files.history)
