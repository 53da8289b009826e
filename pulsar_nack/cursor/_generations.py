"""The generations of a cursor's log: which one counts, snapshots beside them, and deleting those that are obsolete.

For a cursor NAME::

    NAME-0000000003             records: the ledgers' states, and markers that say which of them count
    NAME-0000000003-snapshot    mark-delete positions, for when no marker can be used any more

When its log has grown, a cursor continues in a log with the next number. A log with a lower number than the one in use,
or without a marker, was left by a crash.

Recovery
    The usable marker with the highest sequence number counts, in whatever log it is. A damaged log, which cannot be
    opened as usual, is opened for reading its whole records if the store can do that. Then the last usable marker is
    searched in it too, also behind the damage. Nothing is appended to such a log: the cursor continues in a new one,
    and the damaged one is kept for good.

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
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from ..errors import (
    CursorFormatError,
    LedgerError,
    LogCorruptedError,
    LogExistsError,
    LogFencedError,
    LogLockedError,
    LogNotFoundError,
    LogVersionError,
)
from ..ledger import Log, LogDamage, LogStore
from ..ledger.ownership import OwnableStore
from ._ledgers import Ledgers
from ._records import RecoveredState, last_usable
from .format import LogNames, Marker, MarkerContents, decode_marker
from .format._marker import encode_snapshot

MAX_SNAPSHOTS: Final = 1_000
"""With this many snapshots beside its log, a cursor continues in the next generation."""
_DESCRIBED: Final = 3
_IN_USE: Final = "this cursor is open already, here or in another process; it has one owner at a time"
_TRIES: Final = 20
_AFTER_LOSS: Final = 1 << 48
"""How far sequence numbers skip when markers may be lost, so that a lost one that reappears does not count."""
_log = logging.getLogger("pulsar_nack.cursor")


@dataclass(slots=True)
class RecoveredLog:
    """The state that recovery found in the logs of a cursor, and the log in which the cursor continues.

    ``sequence`` is the highest sequence number that may have been used. ``must_roll``: nothing can be appended to the
    log. ``is_damaged``: the log is kept when the cursor continues in a new one. ``snapshot``: what the last snapshot
    says, if there is no marker. ``obsolete``: generations to be deleted after the next commit. ``kept``: open damaged
    logs. ``has_snapshots``: whether to write snapshots beside the log.
    """

    log: Log
    generation: int
    next_generation: int
    sequence: int = 0
    state: RecoveredState = field(default_factory=RecoveredState)
    must_roll: bool = False
    is_damaged: bool = False
    snapshot: MarkerContents | None = None
    obsolete: list[Generation] = field(default_factory=list)
    kept: list[Log] = field(default_factory=list)
    has_snapshots: bool = True


async def recover(
    store: OwnableStore, names: LogNames, cache_bytes: int | None, ledgers: Ledgers | None, *, salvage: bool = True
) -> RecoveredLog:
    """Find the last usable marker and open its log for writing, or create the first log.

    :param cache_bytes: how much to keep in memory; None: everything
    :param ledgers: the topic's ledgers, if known; acknowledgements beyond the end of a ledger are dropped
    :param salvage: whether an older state, or a snapshot, is to be used in place of a damaged one, with a warning
    :raises LogCorruptedError: a log is damaged, without ``salvage``; nothing was changed
    :raises LogLockedError: another process, or another cursor here, has it open
    :raises LogFencedError: another process took it over meanwhile, on object storage
    :raises LogVersionError: a later release wrote it
    :raises LogStorageError: the store refused
    """
    for _ in range(_TRIES):
        try:
            found = await _Search(store, names, cache_bytes, ledgers, salvage=salvage).run()
        except (LogNotFoundError, LogExistsError):
            continue  # its owner continues in a new log at this moment
        except LogLockedError as error:
            raise error.because(_IN_USE) from error
        found.has_snapshots = salvage
        return found
    raise LogLockedError(names.cursor, _IN_USE)


class _Search:
    """One search through all logs of a cursor."""

    def __init__(
        self, store: OwnableStore, names: LogNames, cache_bytes: int | None, ledgers: Ledgers | None, *, salvage: bool
    ) -> None:
        self._store = store
        self._salvages = salvage
        self._names = names
        self._cache_bytes = cache_bytes
        self._ledgers = ledgers
        self._opened: dict[int, Log] = {}
        self._damaged: set[int] = set()
        self._lost: set[int] = set()
        """Logs in which unusable records came after the last usable marker."""

    async def run(self) -> RecoveredLog:
        try:
            return await self._run()
        except Exception:
            for log in self._opened.values():
                await log.aclose()
            raise

    async def _run(self) -> RecoveredLog:
        names = await self._store.names()
        generations = self._names.generations(names)
        best: tuple[int, RecoveredState] | None = None
        for generation in reversed(generations):
            usable = await self._read(generation)
            if usable is not None and (best is None or usable.sequence > best[1].sequence):
                best = generation, usable
        if best is None:
            return await self._begin(names)
        generation, usable = best
        log, is_damaged = self._opened[generation], generation in self._damaged
        if (log.is_sealed or is_damaged) and self._names.generations(await self._store.names()) != generations:
            raise LogNotFoundError(log.name)  # its owner continues in a log that we have not seen
        sequence = usable.sequence + (_AFTER_LOSS if is_damaged or generation in self._lost else 0)
        found = RecoveredLog(log, generation, self._next_generation(names), sequence, usable)
        found.is_damaged = is_damaged
        found.must_roll = log.is_sealed or is_damaged
        found.obsolete = self._obsolete(generation, names)
        found.kept = self._kept(generation)
        return found

    async def _read(self, generation: int) -> RecoveredState | None:
        """Open a log and return its last usable marker, if there is one."""
        name = self._names.log(generation)
        try:
            log = self._opened[generation] = await self._open(generation)
            usable, has_lost = await last_usable(log, self._cache_bytes, self._ledgers, salvage=self._salvages)
        except LogCorruptedError as error:
            if not self._salvages:
                raise
            _log.warning("the log %s of a cursor is damaged and is not used: %s", name, error)
            self._damaged.add(generation)
            return None
        if has_lost:
            self._lost.add(generation)
        return usable

    async def _open(self, generation: int) -> Log:
        """Open a log for writing, or a damaged one for reading.

        :raises LogCorruptedError: the log is damaged, and the store cannot open such logs
        """
        name = self._names.log(generation)
        if not self._salvages:
            return await self._store.open_log(name)
        log, problem = await open_or_salvage(self._store, name)
        if problem is not None:
            self._damaged.add(generation)
            _log.warning(
                "the log %s of a cursor is damaged: %s; it is kept, and it is searched for its last usable state",
                name,
                problem,
            )
        return log

    async def _begin(self, names: Sequence[str]) -> RecoveredLog:
        """Begin without a marker: after the last snapshot, or as a new cursor."""
        snapshot = await newest_snapshot(self._store, self._names)
        contents = None if snapshot is None else snapshot.contents
        has_lost = bool(self._lost - self._damaged)
        if self._damaged or has_lost:
            _log.warning(
                "no marker of the cursor %s can be used: it continues %s; everything that was acknowledged after that"
                " will be delivered again",
                self._names.cursor,
                "at its beginning" if contents is None else f"after {tuple(contents.mark_delete)}, its last snapshot",
            )
        openable = [each for each in self._names.generations(names) if each not in self._damaged]
        generation = openable[-1] if openable else None
        following = self._next_generation(names)
        if generation is None:
            generation, following = following, following + 1
            log = self._opened[generation] = await self._store.create(self._names.log(generation))
        else:
            log = self._opened[generation]
        sequence = 0 if snapshot is None else snapshot.sequence
        found = RecoveredLog(log, generation, following, sequence + (_AFTER_LOSS if self._damaged or has_lost else 0))
        found.snapshot = contents
        found.must_roll = log.is_sealed
        found.kept = self._kept(generation)
        if has_lost:
            await self._close_but({generation, *self._damaged})
        else:
            found.obsolete = self._obsolete(generation, names)
        return found

    def _next_generation(self, names: Sequence[str]) -> int:
        """Return the next generation: above all that have a log or snapshots."""
        return max([0, *self._names.generations(names), *self._names.snapshots(names)]) + 1

    def _obsolete(self, generation: int, names: Sequence[str]) -> list[Generation]:
        """Return the generations that are not needed, except damaged ones, which are kept."""
        others = {*self._names.generations(names), *self._names.snapshots(names)} - {generation, *self._damaged}
        return [Generation(self._store, self._names, other, self._opened.get(other)) for other in sorted(others)]

    def _kept(self, generation: int) -> list[Log]:
        """Return the damaged logs other than this one; they stay open, so that no other process takes them."""
        return [log for other, log in self._opened.items() if other in self._damaged and other != generation]

    async def _close_but(self, generations: Collection[int]) -> None:
        for other, log in self._opened.items():
            if other not in generations:
                await log.aclose()


async def open_or_salvage(store: OwnableStore, name: str) -> tuple[Log, str | None]:
    """Open a log for writing; a damaged one, also as its owner, for reading its whole records, and say what is damaged.

    :raises LogCorruptedError: the log is damaged, and the store cannot open such logs
    """
    try:
        return await store.open_log(name), None
    except LogCorruptedError:
        log = await store.open_damaged(name)
        return log, _describe(log.damage)


def _describe(damage: Sequence[LogDamage]) -> str:
    problems = [
        f"{each.file} at byte {each.offset}: {each.reason}"
        + (f" (records {each.first} to {each.last} are lost)" if each.last >= each.first else "")
        for each in damage[:_DESCRIBED]
    ]
    return "; ".join(problems) + (f"; and {len(damage) - _DESCRIBED} more" if len(damage) > _DESCRIBED else "")


class Generation:
    """One generation: its log, if that is open, and the snapshots beside it, whose log is created with the first one.

    :param log: open for writing
    """

    def __init__(self, store: LogStore, names: LogNames, number: int, log: Log | None) -> None:
        self._store = store
        self._log = log
        self._snapshots_name = names.snapshot(number)
        self._snapshots: Log | None = None
        self._last: Marker | None = None

    @property
    def snapshot_count(self) -> int:
        """Return how many snapshots there are, as far as it is known."""
        return 0 if self._snapshots is None else self._snapshots.length

    async def write_snapshot(self, snapshot: Marker) -> None:
        """Write a snapshot durably: before the mark-delete position moves back, and when a new log begins.

        :raises LedgerError: the snapshot could not be written
        """
        record = encode_snapshot(snapshot)
        if self._snapshots is None:
            self._snapshots = await _open(self._store, self._snapshots_name)
        try:
            await self._snapshots.append(record)
        except LogFencedError:  # the cursor's own log decides who owns it, not this one
            await self.close_snapshots()
            self._snapshots = await _open(self._store, self._snapshots_name)
            await self._snapshots.append(record)
        self._last = snapshot

    async def advance_snapshot(self, snapshot: Marker) -> None:
        """Write a snapshot, unless the last one says the same."""
        last = self._last
        if last is None or last.contents != snapshot.contents:
            await self.write_snapshot(snapshot)

    async def delete(self) -> None:
        """Delete the snapshots and then the log, as far as possible, and close them."""
        try:
            with suppress(LedgerError):
                await self._delete_snapshots()
                if self._log is not None:
                    await self._log.delete()
        finally:
            await self.close_snapshots()
            if self._log is not None:
                await self._log.aclose()

    async def close_snapshots(self) -> None:
        """Close the log of snapshots; the next snapshot opens it again."""
        log, self._snapshots = self._snapshots, None
        if log is not None:
            await log.aclose()

    async def _delete_snapshots(self) -> None:
        log, self._snapshots = self._snapshots, None
        with suppress(LogNotFoundError):
            if log is not None:
                await log.delete()
            else:
                await self._store.delete(self._snapshots_name)


async def newest_snapshot(store: OwnableStore, names: LogNames) -> Marker | None:
    """Return the newest snapshot that can be read, if there is one.

    :raises LogStorageError: the store refused
    """
    best: Marker | None = None
    for generation in names.snapshots(await store.names()):
        found = await _newest(store, names.snapshot(generation))
        if found is not None and (best is None or found.sequence > best.sequence):
            best = found
    return best


async def _newest(store: OwnableStore, name: str) -> Marker | None:
    """Return the newest readable snapshot of a log; the last one may be from a former owner of the cursor."""
    best: Marker | None = None
    with suppress(LogNotFoundError, LogCorruptedError):
        log, problem = await open_or_salvage(store, name)
        if problem is not None:
            _log.warning("the log %s of a cursor's snapshots is damaged: %s", name, problem)
        async with log:
            for number in range(log.length):
                with suppress(LogCorruptedError, CursorFormatError):
                    found = decode_marker(await log.read(number, number))
                    best = found if best is None or found.sequence > best.sequence else best
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
