"""The mark-delete position in a log of its own, for when no marker of the cursor's log can be used any more (K26).

Invariant: the position of the last snapshot is never beyond that of a marker that counts. The position moves forward by
itself, so the snapshot may be old; before it is moved back, a new one is written. A snapshot is a marker that names no
ledger.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final

from ..errors import (
    CursorFormatError,
    LedgerError,
    LogCorruptedError,
    LogExistsError,
    LogFencedError,
    LogNotFoundError,
    LogVersionError,
)
from ..ledger import Log, LogStore
from ._chain import Head, decode_head, encode_head
from ._generations import Names
from ._salvage import open_or_salvage

MOST: Final = 1_000
"""The log of snapshots is begun anew with the next log of the cursor when it has so many."""
_log = logging.getLogger("pulsar_nack.cursor")


class Snapshots:
    """Writes the snapshots of one generation; its log is made with the first one."""

    def __init__(self, store: LogStore, name: str) -> None:
        self.name = name
        self._store = store
        self._last: Head | None = None
        self._log: Log | None = None

    @property
    def length(self) -> int:
        """Return how many there are, as far as it is known."""
        return 0 if self._log is None else self._log.length

    async def write(self, head: Head) -> None:
        """Write a snapshot, durably; before a marker goes back behind the last one, and when a new log is begun.

        :raises LedgerError: it could not be written
        """
        record = encode_head(head)
        if self._log is None:
            self._log = await _open(self._store, self.name)
        try:
            await self._log.append(record)
        except LogFencedError:  # whose the cursor is, its own log tells, not this one
            log, self._log = self._log, None
            await log.aclose()
            self._log = await _open(self._store, self.name)
            await self._log.append(record)
        self._last = head

    async def advance(self, head: Head) -> None:
        """Write one, unless the last one says the same."""
        last = self._last
        if last is None or last.contents != head.contents:
            await self.write(head)

    async def delete(self) -> None:
        """Delete its log, if there is one.

        :raises LedgerError: it could not be deleted, or somebody else has it by now
        """
        log, self._log = self._log, None
        with suppress(LogNotFoundError):
            if log is not None:
                await log.delete()
            else:
                await self._store.delete(self.name)

    async def aclose(self) -> None:
        """Close its log. Idempotent."""
        if self._log is not None:
            await self._log.aclose()


async def newest_snapshot(store: LogStore, names: Names) -> Head | None:
    """Return the newest snapshot that can be read, if there is one.

    :raises LogStorageError: the store refused
    """
    best: Head | None = None
    for generation in names.snapshots(await store.names()):
        head = await _newest(store, names.snapshot(generation))
        if head is not None and (best is None or head.sequence > best.sequence):
            best = head
    return best


async def _newest(store: LogStore, name: str) -> Head | None:
    """Return the newest snapshot of a log that can be read: who has lost the cursor may have written the last one."""
    best: Head | None = None
    with suppress(LogNotFoundError, LogCorruptedError):
        log, problem = await open_or_salvage(store, name)
        if problem is not None:
            _log.warning("the log %s of a cursor's snapshots is damaged: %s", name, problem)
        async with log:
            for number in range(log.length):
                with suppress(LogCorruptedError, CursorFormatError):
                    head = decode_head((await log.read(number, number))[0])
                    best = head if best is None or head.sequence > best.sequence else best
    return best


async def _open(store: LogStore, name: str) -> Log:
    """Open a log of snapshots for writing, or make it; one that is damaged is made anew."""
    try:
        with suppress(LogNotFoundError):
            return await store.open_log(name)
        return await store.create(name)
    except LogVersionError:
        raise
    except (LogCorruptedError, LogExistsError) as error:
        if isinstance(error, LogCorruptedError):
            _log.warning("a cursor's snapshots are damaged, and are made anew: %s", error)
        with suppress(LedgerError):
            await store.delete(name)
        return await store.create(name)
