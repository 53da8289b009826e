"""Random runs of a cursor with crashes, beside a model that knows what may be found afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import product
from random import Random

from pulsar_nack import Position
from pulsar_nack.config import CursorConfig
from pulsar_nack.cursor import BatchSet, Cursor
from pulsar_nack.errors import LedgerError
from tests.crash_homes import AnyHome

LEDGERS = {3: 9, 4: 12, 7: 1, 8: 14, 20: 7}
BATCH = 4
ENTRIES = [Position(ledger, entry) for ledger, entries in LEDGERS.items() for entry in range(entries)]
ALL = frozenset(product(ENTRIES, range(BATCH)))

Messages = frozenset[tuple[Position, int]]


class Model:
    """What outlives the crashes: every state since the last one that was reported as durable."""

    def __init__(self, seed: int, *, is_mixed: bool = False) -> None:
        self.seed = seed
        self.is_mixed = is_mixed
        self.steps: list[Messages] = [frozenset()]
        self.durable = 0
        self.properties: dict[str, set[str | None]] = {}

    def fork(self) -> Model:
        """Return a copy."""
        copied = Model(self.seed, is_mixed=self.is_mixed)
        copied.steps, copied.durable = self.steps[:], self.durable
        copied.properties = {key: {*values} for key, values in self.properties.items()}
        return copied

    @property
    def acked(self) -> Messages:
        """Return the acknowledged entries."""
        return self.steps[-1]

    def acknowledge(self, messages: Messages) -> None:
        """Apply an acknowledgement."""
        self.steps.append(self.acked | messages)

    def reset(self, position: Position) -> None:
        """Apply a reset."""
        self.steps.append(frozenset(each for each in ALL if each[0] < position))

    def is_flushed(self, at: int) -> None:
        """Note that everything up to a step was reported as durable."""
        self.durable = max(self.durable, at)

    def check(self, found: Messages) -> None:
        """Compare with what a new process found: an earlier state, not older than the durable one."""
        assert any(self._may_be(at, found) for at in range(self.durable, len(self.steps)))
        self.steps, self.durable = [found], 0

    def _may_be(self, at: int, found: Messages) -> bool:
        """Return whether this is a state, or between one and a later one if ledgers were written one by one."""
        if not self.is_mixed:
            return self.steps[at] == found
        end = at + 1
        while end < len(self.steps) and self.steps[end - 1] <= self.steps[end]:
            end += 1
        return self.steps[at] <= found <= self.steps[end - 1]

    def check_properties(self, found: dict[str, str]) -> None:
        """Compare properties; unreported changes may be there or not."""
        for key in {*self.properties, *found}:
            assert found.get(key) in self.properties.get(key, {None})
        self.properties = {key: {value} for key, value in found.items()}


class Run:
    """One process: opens the cursor a few times, performs random operations, and ends in order or in a crash."""

    def __init__(self, home: AnyHome, model: Model, seed: int) -> None:
        self.home = home
        self.model = model
        self.random = Random(seed)
        chance = Random(model.seed)
        self.config = CursorConfig(
            enable_lru_cache_max_unacked_ranges=chance.random() < 0.8,
            max_individual_ack_cache_bytes_per_cursor=chance.choice([0, 1_500, 3 << 20]),
            rollover_bytes=chance.choice([0, 600, 1_500, 1 << 20]),
            managed_ledger_cursor_max_entries_per_ledger=chance.choice([3, 20, 50_000]),
            max_entry_bytes=chance.choice([1 << 10, 5 << 20]),
            flush_interval=chance.choice([0, 0.002, 1]),
            close_timeout=5,
        )
        self.cursor: Cursor

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Open the cursor, and compare it with the model."""
        async with (
            await self.home.open() as store,
            await Cursor.open(store, LEDGERS, self.config, start=(3, -1)) as self.cursor,
        ):
            self.model.check(await self.found())
            self.model.check_properties(dict(self.cursor.properties()))
            yield
            at = len(self.model.steps) - 1
        self.model.is_flushed(at)

    async def found(self) -> Messages:
        """Return what the cursor reports as acknowledged."""
        acked = {each for each in ALL if await self.cursor.is_acked(*each)}
        whole = [each for each in ENTRIES if await self.cursor.is_acked(each)]
        assert {(each, index) for each in whole for index in range(BATCH)} <= acked
        assert self.cursor.backlog == len(ENTRIES) - len(whole)
        return frozenset(acked)

    async def live(self) -> None:
        """Run over some restarts."""
        await self.play(3, 12)

    async def live_on(self) -> None:
        """Run on for a while."""
        await self.play(1, 4)

    async def recover(self, random: Random) -> None:
        """Open what a crash left, in either format, and run to the end."""
        if random.random() < 0.2:
            self.config = self.config.model_copy(update={"enable_lru_cache_max_unacked_ranges": False})
        if random.random() < 0.3:
            await self.live_on()
        await self.finish()

    async def play(self, restarts: int, steps: int) -> None:
        """Run; if something cannot be read or written, nothing fails from then on."""
        for _ in range(restarts):
            try:
                await self._play(steps)
            except LedgerError:
                self.home.faults.heal()
                await self._play(steps)

    async def finish(self) -> None:
        """Run some more steps, acknowledge the rest, and look for leftovers."""
        async with self.opened():
            for _ in range(4):
                await self._step()
            await self.cursor.acknowledge_cumulative(ENTRIES[-1])
            self.model.acknowledge(ALL)
            assert self.cursor.mark_delete_position == ENTRIES[-1]
            assert await self.cursor.individually_deleted() == []
        async with self.opened():
            assert self.cursor.backlog == 0
            await self.cursor.put_property("end", "")
            self.model.properties["end"] = {""}
        async with await self.home.open() as store:
            names = set(await store.names())
        assert len([name for name in names if not name.endswith("-snapshot")]) == 1
        assert len(names) <= 2
        self.home.check_clean(names)

    async def _play(self, steps: int) -> None:
        async with self.opened():
            for _ in range(steps):
                await self._step()

    async def _step(self) -> None:
        names = ["ack", "some", "batch", "cumulative", "reset", "flush", "beside", "property", "switch", "look", "wait"]
        weights = [6, 4, 4, 1, 0.6, 4, 3, 1, 1, 1, 1]
        match self.random.choices(names, weights, k=1)[0]:
            case "ack":
                await self._acknowledge([self.random.choice(ENTRIES)])
            case "some":
                await self._acknowledge(self.random.sample(ENTRIES, 5))
            case "batch":
                await self._acknowledge_part()
            case "cumulative":
                await self._acknowledge_cumulatively()
            case "reset":
                await self._reset()
            case "flush":
                await self._flush()
            case "beside":
                await self._change_beside_flushes()
            case "property":
                await self._change_property()
            case "switch":
                with suppress(LedgerError):
                    await self.cursor.lru_switch(self.random.choice([*LEDGERS]))
            case "look":
                with suppress(LedgerError):
                    assert await self.found() == self.model.acked
            case "wait":
                await asyncio.sleep(self.random.choice([0, 0.001, 0.003]))

    async def _acknowledge(self, positions: Sequence[Position]) -> None:
        with suppress(LedgerError):
            await self.cursor.acknowledge(list(positions))
            self.model.acknowledge(frozenset(product(positions, range(BATCH))))

    async def _acknowledge_part(self) -> None:
        position = self.random.choice(ENTRIES)
        indexes = self.random.sample(range(BATCH), self.random.choice([1, 2, 3]))
        with suppress(LedgerError):
            await self.cursor.acknowledge([position], batch_sets={position: BatchSet.acked(BATCH, indexes)})
            self.model.acknowledge(frozenset((position, index) for index in indexes))

    async def _acknowledge_cumulatively(self) -> None:
        later = [each for each in ENTRIES if each > self.cursor.mark_delete_position]
        if later:
            position = self.random.choice(later[:8])
            with suppress(LedgerError):
                await self.cursor.acknowledge_cumulative(position)
                self.model.acknowledge(frozenset(each for each in ALL if each[0] <= position))

    async def _reset(self) -> None:
        position = self.random.choice(ENTRIES)
        await self.cursor.reset(position)
        self.model.reset(position)

    async def _flush(self) -> None:
        at = len(self.model.steps) - 1
        try:
            await self.cursor.flush()
        except LedgerError:
            return
        self.model.is_flushed(at)

    async def _change_beside_flushes(self) -> None:
        """Run several flushes, one of which is cancelled, and acknowledge meanwhile."""
        flushes = [asyncio.create_task(self._flush()) for _ in range(3)]
        for _ in range(self.random.choice([0, 1, 2, 4])):
            await asyncio.sleep(0)
        await self._acknowledge([self.random.choice(ENTRIES)])
        if self.random.random() < 0.3:
            await self._reset()
            await self._acknowledge([self.random.choice(ENTRIES)])
        flushes[0].cancel()
        results = await asyncio.gather(*flushes, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result

    async def _change_property(self) -> None:
        key, value = self.random.choice("ab"), self.random.choice(["1", "2", None])
        known = self.model.properties.setdefault(key, {None})
        known.add(value)
        try:
            await (self.cursor.remove_property(key) if value is None else self.cursor.put_property(key, value))
        except LedgerError:
            return
        self.model.properties[key] = {value}
        assert self.cursor.properties().get(key) == value
