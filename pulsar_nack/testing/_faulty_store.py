"""A store of logs in which reads and appends of entries fail or are delayed when a test orders it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from .._check import check_integer
from ..errors import LogStorageError
from ..ledger import LocalLog, LocalLogStore
from ._call_faults import seconds

_LEDGER: Final = "ledger-"


class EntryFaults:
    """Faults of the next reads and appends of a topic's entries; everything else works."""

    def __init__(self) -> None:
        self.reads = 0
        """How often entries were read."""
        self.entries_read = 0
        self._delay = 0.0
        self._failures = {"read": 0, "append": 0}

    def fail(self, call: str, times: int) -> None:
        """Let the next calls of one kind fail."""
        self._failures[call] += check_integer("times", times, 1)

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


class FaultyStore(LocalLogStore):
    """A store in a folder whose ledgers have faults."""

    faults: EntryFaults

    def _make_log(self, opened: Any) -> LocalLog:
        if not opened.name.startswith(_LEDGER):
            return super()._make_log(opened)
        log = _FaultyLog(self._directory, opened, self._executor)
        log.faults = self.faults
        return log


class _FaultyLog(LocalLog):
    faults: EntryFaults

    async def append_many(self, records: Sequence[bytes | bytearray | memoryview]) -> int:
        self.faults.before_append(self.name)
        return await super().append_many(records)

    async def read(self, first: int, last: int) -> list[bytes]:
        await self.faults.before_read(self.name, last - first + 1)
        return await super().read(first, last)
