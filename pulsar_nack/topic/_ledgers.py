"""The ledgers of a local topic: logs that entries are appended to, one after the other.

A ledger is a log called ``ledger-<number>``; numbers rise. The last one grows, until it is full or old and the next one
is begun: the new log first, then the old one is sealed. After a crash in between both are there, the old one not
sealed; nothing is appended to it any more all the same.

It answers a cursor's questions (:class:`~pulsar_nack.cursor.Ledgers`): only what is durable counts as an entry.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final, Self

from ..clock import Clock
from ..config import TopicConfig
from ..errors import LogNotFoundError, LogSealedError
from ..ids import Position
from ..ledger import Log, LogStore

_NAME: Final = re.compile(r"ledger-(\d{20})")
_FIRST: Final = 1


def _name(ledger: int) -> str:
    return f"ledger-{ledger:020}"


class TopicLedgers:
    """All entries of a topic; made by :meth:`open`."""

    def __init__(self, store: LogStore, logs: dict[int, Log], config: TopicConfig, clock: Clock) -> None:
        self._store = store
        self._config = config
        self._clock = clock
        self._logs = logs
        self._ids = sorted(logs)
        self._rolling = asyncio.Lock()
        self._begin(logs[self._ids[-1]])
        self.reads = 0
        """How many entries were read from storage."""

    @classmethod
    async def open(cls, store: LogStore, config: TopicConfig, clock: Clock) -> Self:
        """Open what is there, or begin the first ledger.

        :raises LogLockedError: another process has the topic open
        """
        names = await store.names()
        ids = sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))
        logs: dict[int, Log] = {}
        try:
            for ledger in ids[:-1]:
                logs[ledger] = await store.open_log(_name(ledger), read_only=True)
            if ids:
                logs[ids[-1]] = await store.open_log(_name(ids[-1]))
            last = logs[ids[-1]] if ids else None
            if last is None or last.is_sealed:
                following = ids[-1] + 1 if ids else _FIRST
                logs[following] = await store.create(_name(following))
        except BaseException:
            for log in logs.values():
                await log.aclose()
            raise
        return cls(store, logs, config, clock)

    def _begin(self, log: Log) -> None:
        self._current = log
        self._issued = log.length
        self._began_at = self._clock.now_ms()

    # -- what there is -------------------------------------------------------------------------------------------------

    def entries(self, ledger: int) -> int | None:
        """Return how many entries a ledger has, None when there is no such ledger."""
        log = self._logs.get(ledger)
        return None if log is None else log.length

    def next_ledger(self, ledger: int) -> int | None:
        """Return the lowest ledger above this number."""
        at = bisect_right(self._ids, ledger)
        return self._ids[at] if at < len(self._ids) else None

    def previous_ledger(self, ledger: int) -> int | None:
        """Return the highest ledger below this number."""
        at = bisect_left(self._ids, ledger)
        return self._ids[at - 1] if at else None

    @property
    def ids(self) -> Sequence[int]:
        """Return the ledgers, in order."""
        return self._ids

    @property
    def last_position(self) -> Position:
        """Return the last entry; (ledger, -1) where nothing is in the last ledger."""
        return Position(self._ids[-1], self._logs[self._ids[-1]].length - 1)

    @property
    def size(self) -> int:
        """Return about how many bytes all ledgers take."""
        return sum(log.size for log in self._logs.values())

    # -- appending and reading -----------------------------------------------------------------------------------------

    async def append(self, data: bytes) -> Position:
        """Add an entry, durably. Entries come in the order of the calls.

        :raises LedgerError: it could not be written; nothing was added
        """
        while True:
            if self._is_full():
                await self._roll()
            log, ledger = self._current, self._ids[-1]
            self._issued += 1
            try:
                return Position(ledger, await log.append(data))
            except LogSealedError:
                if log is self._current:
                    raise

    def _is_full(self) -> bool:
        config, log = self._config, self._current
        if not self._issued:
            return False
        age = self._clock.now_ms() - self._began_at
        return (
            self._issued >= config.max_entries_per_ledger
            or log.size >= config.max_ledger_bytes
            or age >= config.max_ledger_age.total_seconds() * 1000
        )

    async def _roll(self) -> None:
        async with self._rolling:
            if not self._is_full():
                return
            old, ledger = self._current, self._ids[-1] + 1
            log = await self._store.create(_name(ledger))
            self._logs[ledger] = log
            self._ids.append(ledger)
            self._begin(log)
            await old.seal()

    async def read(self, ledger: int, first: int, last: int) -> list[bytes]:
        """Return entries of a ledger, both ends included.

        :raises LedgerError: they could not be read
        """
        log = self._logs.get(ledger)
        if log is None:
            raise LogNotFoundError(_name(ledger))
        records = await log.read(first, last)
        self.reads += len(records)
        return records

    async def trim(self, before: int) -> None:
        """Delete the ledgers below this number, but for the last one of all."""
        while len(self._ids) > 1 and self._ids[0] < before:
            ledger = self._ids.pop(0)
            log = self._logs.pop(ledger)
            await log.aclose()
            await self._store.delete(_name(ledger))

    async def aclose(self) -> None:
        """Close all logs."""
        for log in self._logs.values():
            await log.aclose()
