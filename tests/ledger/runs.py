"""Random runs of logs beside a model that knows what must and what may be found after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from random import Random
from typing import TypeVar

from pulsar_nack.errors import LogExistsError, LogNotFoundError, LogStorageError
from pulsar_nack.ledger import Log, LogStore
from tests.crash_homes import AnyHome

from .homes import content

_T = TypeVar("_T")
NAMES = ("a", "b")
STEPS = 42


@dataclass
class LogModel:
    """What is known of one log: durable records, later attempts, and whether it exists and is sealed."""

    durable: list[bytes] = field(default_factory=list)
    tried: list[list[bytes]] = field(default_factory=list)
    is_there: bool | None = False
    is_sealed: bool | None = False

    def check(self, records: list[bytes], *, is_sealed: bool) -> None:
        """Compare with what was found."""
        assert self.is_there is not False
        assert records[: len(self.durable)] == self.durable
        ends = range(len(self.tried) + 1)
        tails = [list(chain.from_iterable(self.tried[at:end])) for end in ends for at in range(end + 1)]
        assert records[len(self.durable) :] in tails
        assert self.is_sealed in (None, is_sealed)

    def know(self, records: list[bytes], *, is_sealed: bool) -> None:
        """Note what was found: it was synced when the log was opened."""
        self.durable, self.tried, self.is_there, self.is_sealed = records, [], True, is_sealed


class Models(dict[str, LogModel]):
    """What is known of all logs."""

    def fork(self) -> Models:
        """Return a copy."""
        return Models((name, replace(it, durable=it.durable[:], tried=it.tried[:])) for name, it in self.items())


class Run:
    """One run over files or objects that may fail or crash, with a model that outlives it."""

    def __init__(self, home: AnyHome, model: Models, seed: int) -> None:
        self.home = home
        self.model = model
        self.random = Random(seed)
        self.logs: dict[str, Log] = {}
        self.is_late = False
        self._made = 0

    async def live(self) -> None:
        """Run for a while."""
        await self.play(STEPS)

    async def live_on(self) -> None:
        """Run for a short while."""
        await self.play(2)

    async def recover(self, _random: Random | None = None) -> None:
        """Open what a crash left, compare it with the model, run some steps, close, and look for leftovers."""
        await self.play(3)
        await self.play(0)
        self.home.check_clean({name for name, model in self.model.items() if model.is_there})

    async def play(self, steps: int) -> None:
        """Open the store, check the logs, perform random operations, close."""
        async with await self._open_store() as store:
            await self._find(store)
            for _ in range(steps):
                await self._step(store, self.random.choice(NAMES))

    async def _open_store(self) -> LogStore:
        store = await self._try(self.home.open())
        if store is None:
            self.home.faults.heal()
        return store or await self.home.open()

    async def _find(self, store: LogStore) -> None:
        for name, model in list(self.model.items()):
            if await self._is_listed(store, name):
                try:
                    self.logs[name] = await self._open(store, name)
                except LogNotFoundError:  # a deletion came late
                    assert self.is_late
                    assert model.is_there is None
                else:
                    continue
            assert not model.is_there
            self.model[name] = LogModel()

    async def _step(self, store: LogStore, name: str) -> None:
        log, model = self.logs.get(name), self.model[name]
        chance = self.random.random()
        if log is None:
            await self._create(store, name)
        elif model.is_sealed is not False or chance < 0.04:
            await self._delete(store, log)
        elif chance < 0.12:
            await self._seal(log)
        elif chance < 0.2:
            await log.aclose()
            self.logs[name] = await self._open(store, name)
        else:
            await self._append(log, self.random.choice((1, 1, 2, 5)))

    async def _open(self, store: LogStore, name: str) -> Log:
        """Open a log; if that fails, nothing fails from then on."""
        log = await self._try(store.open_log(name))
        if log is None:
            self.home.faults.heal()
            log = await store.open_log(name)
        return await self._compare(log)

    async def _compare(self, log: Log) -> Log:
        try:
            found = await content(log)
        except LogStorageError:
            self.home.faults.heal()
            found = await content(log)
        self.model[log.name].check(found, is_sealed=log.is_sealed)
        self.model[log.name].know(found, is_sealed=log.is_sealed)
        return log

    async def _is_listed(self, store: LogStore, name: str) -> bool:
        names = await self._try(store.names())
        if names is None:
            self.home.faults.heal()
            names = await store.names()
        return name in names

    async def _create(self, store: LogStore, name: str) -> None:
        self.model[name] = LogModel(is_there=None)
        try:
            log = await self._try(store.create(name))
        except LogExistsError:  # a creation came late
            assert self.is_late
            log = None
        if log is not None:
            self.model[name].is_there = True
            self.logs[name] = log
            assert (log.length, log.is_sealed) == (0, False)
        elif await self._is_listed(store, name):
            self.logs[name] = await self._open(store, name)

    async def _delete(self, store: LogStore, log: Log) -> None:
        model = self.model[log.name]
        model.is_there = None
        del self.logs[log.name]
        try:
            await log.delete()
        except LogStorageError:
            pass
        else:
            model.is_there = False
        if await self._is_listed(store, log.name):
            self.logs[log.name] = await self._open(store, log.name)

    async def _seal(self, log: Log) -> None:
        model = self.model[log.name]
        model.is_sealed = None
        await self._try(log.seal())
        if log.is_sealed:
            model.is_sealed = True
            model.tried.clear()

    async def _append(self, log: Log, tasks: int) -> None:
        groups = [[self._record() for _ in range(self.random.choice((1, 1, 3)))] for _ in range(tasks)]
        await asyncio.gather(*(self._append_records(log, records) for records in groups))
        assert log.length == len(self.model[log.name].durable)

    async def _append_records(self, log: Log, records: list[bytes]) -> None:
        model = self.model[log.name]
        model.tried.append(records)
        with suppress(LogStorageError):
            assert await log.append_many(records) == len(model.durable)
            model.durable += records
            del model.tried[: model.tried.index(records) + 1]

    def _record(self) -> bytes:
        self._made += 1
        return b"%d:" % self._made + self.random.randbytes(self.random.choice((0, 5, 60, 400)))

    async def _try(self, work: Awaitable[_T]) -> _T | None:
        try:
            return await work
        except LogStorageError:
            return None
