"""Random runs of durable state beside a model that knows what must and what may be found after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

from pulsar_nack import MessageId
from pulsar_nack.consumer.durable import DurableNacks, Outcome
from pulsar_nack.consumer.durable._records import BatchAcks, RangeAcks
from pulsar_nack.errors import LedgerError
from pulsar_nack.ledger import LogStore
from pulsar_nack.testing import ManualClock
from tests.crash_homes import AnyHome

Pending = tuple[int, int]
"""The time and the redelivery count of a pending message."""
STEPS = 30
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
    """For each id the possible states: the last one reported as durable, and later attempts."""

    may_be: dict[MessageId, list[Pending | None]] = field(default_factory=lambda: {each: [None] for each in IDS})

    settled: set[MessageId] = field(default_factory=set)
    """Return ids whose acknowledgement was reported as durable, without a later call."""

    clock: ManualClock = field(default_factory=lambda: ManualClock(1_000))

    def fork(self) -> Model:
        """Return a copy."""
        states = {message_id: states[:] for message_id, states in self.may_be.items()}
        return Model(states, set(self.settled), ManualClock(self.clock.now_ms()))

    def tried(self, message_id: MessageId, found: Pending | None) -> None:
        """Note a call."""
        self.may_be[message_id].append(found)
        self.settled.discard(message_id)

    def durable(self, message_id: MessageId, found: Pending | None) -> None:
        """Note that it was reported as durable, without a later call for this id."""
        self.may_be[message_id] = [found]
        if found is None:
            self.settled.add(message_id)

    def check(self, find: Callable[[MessageId], Pending | None], acked: set[MessageId]) -> None:
        """Compare with what was found, and continue from it: the opening has made it durable."""
        for message_id in IDS:
            found = find(message_id)
            assert found in self.may_be[message_id], message_id
            self.may_be[message_id] = [found]
            assert found is None or message_id not in acked, message_id
        assert self.settled <= acked


class Run:
    """One process with durable state on a home that may fail or crash."""

    def __init__(self, home: AnyHome, model: Model, seed: int) -> None:
        self.random = Random(seed)
        self.home = home
        self.model = model
        self.clock = model.clock
        self.compactions = 0

    async def live(self) -> None:
        """Run for a while."""
        await self.play(STEPS)

    async def live_on(self) -> None:
        """Run for a shorter while."""
        await self.play(STEPS // 2)

    async def recover(self, _random: Random) -> None:
        """Open what a crash left, compare it with the model, run on, twice, and check that no leftovers remain."""
        for _ in range(2):
            await self.play(STEPS // 5)
        async with await self.home.open() as store:
            names = await store.names()
        self.home.check_clean(set(names))
        assert len(names) <= 5, names
        assert "nacks-owner" in names

    async def play(self, steps: int) -> None:
        """Open, check, perform random operations, close."""
        async with await self._open_store() as store:
            try:
                durable = await self._open(store)
            except LedgerError:
                self.home.faults.heal()
                durable = await self._open(store)
            self.model.check(durable.state.pending.find, acked_again(durable))
            running = asyncio.create_task(durable.run())
            try:
                for _ in range(steps):
                    await self._step(durable)
                await durable.finish()
            finally:
                self.compactions += durable.journal.compactions
                running.cancel()
                (error,) = await asyncio.gather(running, return_exceptions=True)
                assert isinstance(error, asyncio.CancelledError)
                await durable.aclose()

    async def _open_store(self) -> LogStore:
        try:
            return await self.home.open()
        except LedgerError:
            self.home.faults.heal()
            return await self.home.open()

    async def _open(self, store: LogStore) -> DurableNacks:
        return await DurableNacks(memory_ms=MEMORY_MS, ttl_ms=TTL_MS, clock=self.clock, compact_bytes=1_500).open(store)

    async def _step(self, durable: DurableNacks) -> None:
        """Run some tasks at the same time, each of which changes another id."""
        chosen = self.random.sample(IDS, self.random.choice((1, 1, 2, 6)))
        await asyncio.gather(*(self._change(durable, message_id) for message_id in chosen))
        self.clock.advance(self.random.randrange(3))

    async def _change(self, durable: DurableNacks, message_id: MessageId) -> None:
        chance, count = self.random.random(), self.random.randrange(100)
        now_ms, delay_ms = self.clock.now_ms(), self.random.randrange(100_000)
        if chance < 0.4:
            await self._await(message_id, (now_ms + delay_ms, count), durable.nacked(message_id, delay_ms, count))
        elif chance < 0.6:
            await self._await(message_id, (now_ms, count), durable.delivered(message_id, count))
        else:
            await self._await(message_id, None, durable.acked(message_id))

    async def _await(self, message_id: MessageId, found: Pending | None, written: Awaitable[Outcome]) -> None:
        self.model.tried(message_id, found)
        if self.random.random() < 0.1:
            return  # nothing waits for it
        error = await written
        if error is None:
            self.model.durable(message_id, found)
        else:
            assert isinstance(error, LedgerError)


def acked_again(durable: DurableNacks) -> set[MessageId]:
    """Return the ids remembered as acknowledged, members of batches one by one."""
    acked: set[MessageId] = set()
    for item in durable.state.acknowledged():
        if isinstance(item, BatchAcks):
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
