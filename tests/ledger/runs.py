"""Random runs of logs beside a model that knows what must be found after a crash, and what may be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from random import Random
from typing import TypeVar

from obstore.store import MemoryStore

from pulsar_nack.errors import LogExistsError, LogNotFoundError, LogStorageError
from pulsar_nack.ledger import LocalLogStore, Log, LogStore
from pulsar_nack.ledger._fault import FaultyFiles, SimulatedCrash
from pulsar_nack.ledger._memory_files import MemoryFiles
from pulsar_nack.ledger._object_fault import FaultyObjects

from .homes import content, open_objects

_T = TypeVar("_T")
FOLDER = Path("/some/logs")
NAMES = ("a", "b")


@dataclass
class LogModel:
    """What is known of one log: what was reported durable, what was tried since, and whether it is there and sealed."""

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
        """Take over what was found: it was synced when the log was opened."""
        self.durable, self.tried, self.is_there, self.is_sealed = records, [], True, is_sealed


class Run:
    """One run over files or objects that may fail or crash, with a model that outlives it."""

    def __init__(
        self, seed: int, files: FaultyFiles | FaultyObjects, models: dict[str, LogModel] | None = None
    ) -> None:
        self.random = Random(seed)
        self.files = files
        self.models = models or {name: LogModel() for name in NAMES}
        self.logs: dict[str, Log] = {}
        self.is_late = False
        self._made = 0

    async def play(self, steps: int) -> None:
        """Open the store, check what is there, do random things, close."""
        async with await self._open_store() as store:
            await self._find(store)
            for _ in range(steps):
                await self._step(store, self.random.choice(NAMES))

    async def _open_store(self) -> LogStore:
        if isinstance(self.files, FaultyFiles):
            return await LocalLogStore.open(FOLDER, max_segment_bytes=1024, threads=1, files=self.files)
        store = await self._try(open_objects(self.files, threads=1, attempts=2))
        if store is None:
            self.files.heal()
        return store or await open_objects(self.files, threads=1, attempts=2)

    async def _find(self, store: LogStore) -> None:
        for name, model in list(self.models.items()):
            if await self._is_listed(store, name):
                try:
                    self.logs[name] = await self._open(store, name)
                except LogNotFoundError:  # a deletion came late
                    assert self.is_late
                    assert model.is_there is None
                else:
                    continue
            assert not model.is_there
            self.models[name] = LogModel()

    async def _step(self, store: LogStore, name: str) -> None:
        log, model = self.logs.get(name), self.models[name]
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
        """Open a log; where that fails, nothing fails from then on."""
        log = await self._try(store.open_log(name))
        if log is None:
            self.files.heal()
            log = await store.open_log(name)
        return await self._compare(log)

    async def _compare(self, log: Log) -> Log:
        try:
            found = await content(log)
        except LogStorageError:
            self.files.heal()
            found = await content(log)
        self.models[log.name].check(found, is_sealed=log.is_sealed)
        self.models[log.name].know(found, is_sealed=log.is_sealed)
        return log

    async def _is_listed(self, store: LogStore, name: str) -> bool:
        names = await self._try(store.names())
        if names is None:
            self.files.heal()
            names = await store.names()
        return name in names

    async def _create(self, store: LogStore, name: str) -> None:
        self.models[name] = LogModel(is_there=None)
        try:
            log = await self._try(store.create(name))
        except LogExistsError:  # a creation came late
            assert self.is_late
            log = None
        if log is not None:
            self.models[name].is_there = True
            self.logs[name] = log
            assert (log.length, log.is_sealed) == (0, False)
        elif await self._is_listed(store, name):
            self.logs[name] = await self._open(store, name)

    async def _delete(self, store: LogStore, log: Log) -> None:
        model = self.models[log.name]
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
        model = self.models[log.name]
        model.is_sealed = None
        await self._try(log.seal())
        if log.is_sealed:
            model.is_sealed = True
            model.tried.clear()
        elif not self.files.is_crashed:
            model.is_sealed = None

    async def _append(self, log: Log, tasks: int) -> None:
        model = self.models[log.name]
        groups = [[self._record() for _ in range(self.random.choice((1, 1, 3)))] for _ in range(tasks)]
        appends = (log.append_many(records) for records in groups)
        results = await asyncio.gather(*appends, return_exceptions=True)
        for records, result in zip(groups, results, strict=True):
            if isinstance(result, int):
                assert result == len(model.durable)
                model.durable += records
                model.tried.clear()
            else:
                assert isinstance(result, LogStorageError | SimulatedCrash)
                model.tried.append(records)
        if self.files.is_crashed:
            raise SimulatedCrash
        assert log.length == len(model.durable)

    def _record(self) -> bytes:
        self._made += 1
        return b"%d:" % self._made + self.random.randbytes(self.random.choice((0, 5, 60, 400)))

    async def _try(self, work: Awaitable[_T]) -> _T | None:
        try:
            return await work
        except LogStorageError:
            return None


def count_operations(seed: int, steps: int, files: FaultyFiles | FaultyObjects | None = None) -> int:
    """Return how many operations a run without faults makes, on files in memory if no others are given."""
    run = Run(seed, files or FaultyFiles(MemoryFiles()))
    asyncio.run(run.play(steps))
    return len(run.files.history)


def check_clean(files: MemoryFiles, models: dict[str, LogModel]) -> None:
    """After the last run was closed nothing lies about but the logs that are there, and their locks."""
    there = [name for name, model in models.items() if model.is_there]
    for path in files.tree():
        folder, _, rest = path.removeprefix(f"{FOLDER}/").partition("/")
        if rest:
            assert folder.removesuffix(".log") in there
            assert rest.endswith(".segment")
        else:
            assert folder.removesuffix(".lock") in there


def check_clean_objects(store: MemoryStore, models: dict[str, LogModel]) -> None:
    """After the last run was closed there are few objects, those of the logs that are there and one catalog."""
    there = [name for name, model in models.items() if model.is_there]
    paths = [item["path"] for item in store.list().collect()]
    assert sum(path.startswith("catalog/") for path in paths) == 1
    for path in paths:
        folder, _, rest = path.partition("/")
        assert folder == "catalog" or rest.partition(".")[0] in there
    assert len(paths) <= 1 + 25 * len(there)
