"""The generations of a cursor's log: snapshots beside them, and deleting those that are obsolete.

For a cursor NAME::

    NAME-0000000003             records: the ledgers' states, and markers that say which of them count
    NAME-0000000003-snapshot    mark-delete positions, for when no marker can be used any more

When its log has grown, a cursor continues in a log with the next number. A log with a lower number than the one in use,
or without a marker, was left by a crash.

Snapshots
    Invariant: the position of the last snapshot is never beyond that of a marker that counts. The mark-delete
    position moves forward except by a reset, so the snapshot may be old; before the position moves back, a new one is
    written. A snapshot is a marker that names no ledger.

Obsolete logs
    On object storage another process may take the cursor over at any time, and may even use a log that was to be
    deleted here. So a log is deleted by the handle that wrote it, or that opened it when nobody else had: that fails
    once another process has opened it. The snapshots beside it go first, so that nobody gives their number to a new log
    meanwhile. What could not be deleted is found by the next opening.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from ..errors import (
    CursorFormatError,
    LedgerError,
    LogCorruptedError,
    LogExistsError,
    LogFencedError,
    LogNotFoundError,
    LogVersionError,
)
from ..ledger import Log, LogDamage, LogStore
from ..ledger.ownership import OwnableStore
from .format import LogNames, MarkerHead, decode_snapshot
from .format._chain import encode_snapshot

MAX_SNAPSHOTS: Final = 1_000
"""With this many snapshots beside its log, a cursor continues in the next generation."""
_DESCRIBED: Final = 3
_log = logging.getLogger("pulsar_nack.cursor")


class OpenedLog(NamedTuple):
    """An open log. If ``problem`` is not None, it is damaged as that says, and nothing can be appended."""

    log: Log
    problem: str | None


async def open_or_salvage(store: OwnableStore, name: str) -> OpenedLog:
    """Open a log for writing; a damaged one, also as its owner, for reading its whole records.

    :raises LogCorruptedError: the log is damaged, and the store cannot open such logs
    """
    try:
        return OpenedLog(await store.open_log(name), None)
    except LogCorruptedError:
        log = await store.open_damaged(name)
        return OpenedLog(log, _describe(log.damage))


def _describe(damage: Sequence[LogDamage]) -> str:
    problems = [
        f"{each.file} at byte {each.offset}: {each.reason}"
        + (f" (records {each.first} to {each.last} are lost)" if each.last >= each.first else "")
        for each in damage[:_DESCRIBED]
    ]
    return "; ".join(problems) + (f"; and {len(damage) - _DESCRIBED} more" if len(damage) > _DESCRIBED else "")


class PositionSnapshots:
    """Writes the snapshots of one generation; their log is created with the first one."""

    def __init__(self, store: LogStore, name: str) -> None:
        self.name = name
        self._store = store
        self._last: MarkerHead | None = None
        self._log: Log | None = None

    @property
    def length(self) -> int:
        """Return how many snapshots there are, as far as it is known."""
        return 0 if self._log is None else self._log.length

    async def write(self, head: MarkerHead) -> None:
        """Write a snapshot durably: before the mark-delete position moves back, and when a new log begins.

        :raises LedgerError: the snapshot could not be written
        """
        record = encode_snapshot(head)
        if self._log is None:
            self._log = await _open(self._store, self.name)
        try:
            await self._log.append(record)
        except LogFencedError:  # the cursor's own log decides who owns it, not this one
            log, self._log = self._log, None
            await log.aclose()
            self._log = await _open(self._store, self.name)
            await self._log.append(record)
        self._last = head

    async def advance(self, head: MarkerHead) -> None:
        """Write a snapshot, unless the last one says the same."""
        last = self._last
        if last is None or last.contents != head.contents:
            await self.write(head)

    async def delete(self) -> None:
        """Delete the snapshots, if there are any.

        :raises LedgerError: they could not be deleted, or another owner has opened them
        """
        log, self._log = self._log, None
        with suppress(LogNotFoundError):
            if log is not None:
                await log.delete()
            else:
                await self._store.delete(self.name)

    async def aclose(self) -> None:
        """Close the log of snapshots. Idempotent."""
        if self._log is not None:
            await self._log.aclose()


async def newest_snapshot(store: OwnableStore, names: LogNames) -> MarkerHead | None:
    """Return the newest snapshot that can be read, if there is one.

    :raises LogStorageError: the store refused
    """
    best: MarkerHead | None = None
    for generation in names.snapshots(await store.names()):
        head = await _newest(store, names.snapshot(generation))
        if head is not None and (best is None or head.sequence > best.sequence):
            best = head
    return best


async def _newest(store: OwnableStore, name: str) -> MarkerHead | None:
    """Return the newest readable snapshot of a log; the last one may be from a former owner of the cursor."""
    best: MarkerHead | None = None
    with suppress(LogNotFoundError, LogCorruptedError):
        log, problem = await open_or_salvage(store, name)
        if problem is not None:
            _log.warning("the log %s of a cursor's snapshots is damaged: %s", name, problem)
        async with log:
            for number in range(log.length):
                with suppress(LogCorruptedError, CursorFormatError):
                    head = decode_snapshot((await log.read(number, number))[0])
                    best = head if best is None or head.sequence > best.sequence else best
    return best


async def _open(store: LogStore, name: str) -> Log:
    """Open a log of snapshots for writing, or create it; a damaged one is deleted and created again."""
    try:
        with suppress(LogNotFoundError):
            return await store.open_log(name)
        return await store.create(name)
    except LogVersionError:
        raise
    except (LogCorruptedError, LogExistsError) as error:
        if isinstance(error, LogCorruptedError):
            _log.warning("a cursor's snapshots are damaged and are deleted: %s", error)
        with suppress(LedgerError):
            await store.delete(name)
        return await store.create(name)


class ObsoleteLog(NamedTuple):
    """A generation to be deleted: its log, if that is open for writing, and its snapshots."""

    log: Log | None
    snapshots: PositionSnapshots

    async def delete(self) -> None:
        """Delete the log and its snapshots, as far as possible, and close them."""
        try:
            with suppress(LedgerError):
                await self.snapshots.delete()
                if self.log is not None:
                    await self.log.delete()
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Close the log and its snapshots without deleting them."""
        await self.snapshots.aclose()
        if self.log is not None:
            await self.log.aclose()
