"""What the tests of the cursor share: homes of logs, and a look at their contents."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from obstore.store import MemoryStore

from pulsar_nack import Position
from pulsar_nack.config import CursorConfig
from pulsar_nack.cursor import Cursor
from pulsar_nack.cursor.format import RecordKind, kind_of
from pulsar_nack.errors import LogCorruptedError
from pulsar_nack.ledger import LocalLogStore, Log, LogStore, ObjectLogStore
from pulsar_nack.ledger.files import Files
from pulsar_nack.testing import FaultyFiles, MemoryFiles

FOLDER = Path("/some/cursor")
LONG = 3_600
"""A flush interval that never ends in a test."""


def config_of(**settings: Any) -> CursorConfig:
    """Return settings with which nothing is written without a flush."""
    return CursorConfig(**{"flush_interval": LONG, **settings})


class Home:
    """Opens one place for logs again and again."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    async def open(self) -> LogStore:
        """Open the store of logs."""
        store: LogStore = await self._make()
        return store

    @asynccontextmanager
    async def cursor(
        self, ledgers: Mapping[int, int] | None, config: CursorConfig | None = None, **options: Any
    ) -> AsyncIterator[Cursor]:
        """Open a cursor, and close it."""
        async with (
            await self.open() as store,
            await Cursor.open(store, ledgers, config or config_of(), **options) as cursor,
        ):
            yield cursor

    async def records(self) -> list[bytes]:
        """Return all records of the log in use."""
        async with await self.open() as store:
            names = [name for name in await store.names() if not name.endswith("-snapshot")]
            async with await store.open_log(names[-1], read_only=True) as log:
                return [record.data async for record in log.records()]

    async def kinds(self) -> str:
        """Return the kind of each record of the log in use: e an entry, m a marker, o the legacy format, ? other."""
        return "".join(map(letter_of, await self.records()))

    async def names(self) -> list[str]:
        """Return the names of all logs."""
        async with await self.open() as store:
            return await store.names()


def letter_of(record: bytes) -> str:
    """Return a record's kind as one letter."""
    kind = kind_of(record)
    return "e" if kind.needs_marker else {RecordKind.MARKER: "m", RecordKind.LEGACY: "o"}.get(kind, "?")


def memory_home(files: Files | None = None) -> Home:
    """Return a home on files in memory."""
    chosen = files or MemoryFiles()
    return Home(lambda: LocalLogStore.open(FOLDER, files=chosen, threads=1))


def local_home(path: Path) -> Home:
    """Return a home in a folder."""
    return Home(lambda: LocalLogStore.open(path, threads=1))


def object_home() -> Home:
    """Return a home on object storage in memory."""
    store = MemoryStore()
    return Home(lambda: ObjectLogStore.open(store, threads=1))


def faulty_home() -> tuple[Home, FaultyFiles]:
    """Return a home on files in memory that can fail, and the files."""
    files = FaultyFiles(MemoryFiles())
    return memory_home(files), files


async def acked(cursor: Cursor) -> list[tuple[int, int]]:
    """Return all individually acknowledged entries as plain pairs."""
    return [
        (first.ledger, entry)
        for first, last in await cursor.individually_deleted()
        for entry in range(first.entry + 1, last.entry + 1)
    ]


def positions(ledger: int, entries: Iterable[int]) -> list[Position]:
    """Return positions of one ledger."""
    return [Position(ledger, entry) for entry in entries]


class DamagedLog:
    """A log of which some records are damaged or replaced."""

    def __init__(self, log: Log, damage: Mapping[int, bytes | None]) -> None:
        self._inner = log
        self._damage = damage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def read(self, first: int, last: int) -> list[bytes]:
        """Return records; raise for a damaged one."""
        found = list(await self._inner.read(first, last))
        for number in range(first, last + 1):
            if number in self._damage:
                instead = self._damage[number]
                if instead is None:
                    raise LogCorruptedError(self._inner.name, f"record {number}", 0, "a bad checksum")
                found[number - first] = instead
        return found


class DamagedStore:
    """A store with one damaged log."""

    def __init__(self, store: LogStore, name: str, damage: Mapping[int, bytes | None] | None) -> None:
        self._inner = store
        self._name = name
        self._damage = damage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def take_ownership(self, name: str) -> DamagedStore:
        """Take a part of it, with the same damage."""
        assert isinstance(self._inner, LocalLogStore)
        return DamagedStore(await self._inner.take_ownership(name), self._name, self._damage)

    async def open_log(self, name: str, *, read_only: bool = False) -> Any:
        """Open a log; a wholly damaged one cannot be opened."""
        if name == self._name and self._damage is None:
            raise LogCorruptedError(name, "its header", 0, "a bad checksum")
        log = await self._inner.open_log(name, read_only=read_only)
        return DamagedLog(log, self._damage or {}) if name == self._name else log

    async def open_damaged(self, name: str) -> Any:
        """Open a partly damaged log."""
        if name == self._name and self._damage is None:
            raise LogCorruptedError(name, "its header", 0, "a bad checksum")
        assert isinstance(self._inner, LocalLogStore)
        return await self._inner.open_damaged(name)

    async def __aenter__(self) -> DamagedStore:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._inner.aclose()


def damaged_home(home: Home, name: str, damage: Mapping[int, bytes | None] | None) -> Home:
    """Return a home in which a log's records are damaged (None) or replaced; without any, the whole log is."""

    async def make() -> Any:
        return DamagedStore(await home.open(), name, damage)

    return Home(make)
