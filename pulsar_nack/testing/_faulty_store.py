"""A store of logs in which reads and appends of entries fail or are delayed when a test orders it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from .._lifetime import ClosesOnExit
from ..errors import LogCorruptedError, LogStorageError
from ..ledger import DamagedLog, Log, LogStore, Record, SalvagingStore
from ._call_faults import seconds, whole

_LEDGER = "ledger-"


class EntryFaults:
    """Faults of the next reads and appends of a topic's entries; everything else works."""

    def __init__(self) -> None:
        self.reads = 0
        """How often entries were asked for."""
        self.entries_read = 0
        self._delay = 0.0
        self._failures = {"read": 0, "append": 0}

    def fail(self, call: str, times: int) -> None:
        """Let the next calls of one kind fail."""
        self._failures[call] += whole("times", times, 1)

    def delay(self, delay: float) -> None:
        """Delay each read by ``delay`` seconds from now on."""
        self._delay = seconds("delay", delay)

    def heal(self) -> None:
        """Remove all faults and delays."""
        self._delay = 0.0
        self._failures = dict.fromkeys(self._failures, 0)

    async def before_read(self, log: str, entries: int) -> None:
        """Delay a read, or raise, as ordered."""
        self.reads += 1
        self.entries_read += entries
        if self._delay:
            await asyncio.sleep(self._delay)
        self._check("read", log)

    def before_append(self, log: str) -> None:
        """Raise for an append, as ordered."""
        self._check("append", log)

    def _check(self, call: str, log: str) -> None:
        if self._failures[call]:
            self._failures[call] -= 1
            raise LogStorageError(log, call, "the test asked for it")


class FaultyStore(ClosesOnExit):
    """A :class:`~pulsar_nack.ledger.LogStore` around another one."""

    def __init__(self, store: LogStore, faults: EntryFaults) -> None:
        self._store = store
        self._faults = faults

    async def create(self, name: str) -> Log:
        """Create a log."""
        return self._wrapped(await self._store.create(name))

    async def open_log(self, name: str, *, read_only: bool = False) -> Log:
        """Open a log."""
        return self._wrapped(await self._store.open_log(name, read_only=read_only))

    async def open_damaged(self, name: str) -> DamagedLog:
        """Open a damaged log, if the wrapped store can."""
        if isinstance(self._store, SalvagingStore):
            return await self._store.open_damaged(name)
        raise LogCorruptedError(name, name, 0, "it cannot be opened")

    def _wrapped(self, log: Log) -> Log:
        return _FaultyLog(log, self._faults) if log.name.startswith(_LEDGER) else log

    async def names(self) -> list[str]:
        """Return the names of all logs."""
        return await self._store.names()

    async def delete(self, name: str) -> None:
        """Delete a log."""
        await self._store.delete(name)

    async def aclose(self) -> None:
        """Close the wrapped store."""
        await self._store.aclose()


class _FaultyLog(ClosesOnExit):
    def __init__(self, log: Log, faults: EntryFaults) -> None:
        self._log = log
        self._faults = faults

    @property
    def name(self) -> str:
        return self._log.name

    @property
    def length(self) -> int:
        return self._log.length

    @property
    def size(self) -> int:
        return self._log.size

    @property
    def is_sealed(self) -> bool:
        return self._log.is_sealed

    async def append(self, data: bytes | bytearray | memoryview) -> int:
        return await self.append_many([data])

    async def append_many(self, records: Sequence[bytes | bytearray | memoryview]) -> int:
        self._faults.before_append(self.name)
        return await self._log.append_many(records)

    async def read(self, first: int, last: int) -> list[bytes]:
        await self._faults.before_read(self.name, last - first + 1)
        return await self._log.read(first, last)

    def records(self, first: int = 0) -> AsyncIterator[Record]:
        return self._log.records(first)

    async def seal(self) -> None:
        await self._log.seal()

    async def delete(self) -> None:
        await self._log.delete()

    async def aclose(self) -> None:
        await self._log.aclose()
