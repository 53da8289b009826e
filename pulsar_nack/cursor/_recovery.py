"""Recovery of a cursor's state: from the last record back to the last usable marker.

A marker is usable if all of its parts and its bases are there, and if every record that it names is there and can be
decoded as the state of the ledger for which it is named. Otherwise the marker before it is tried; so recovery never
acknowledges more than the marker that it uses. A record in the legacy format is usable if it can be decoded.

A damaged log, which cannot be opened as usual, is opened for reading its whole records if the store can do that. Then
the last usable marker is searched in it too, also behind the damage. Nothing is appended to such a log: the cursor
continues in a new one, and the damaged one is kept for good.

Every state is decoded once, newest ledger first; those that fit into the cache stay in memory, at least one, and of the
others a summary.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ..errors import CursorFormatError, LogCorruptedError, LogExistsError, LogLockedError, LogNotFoundError
from ..ids import Position
from ..ledger import Log
from ..ledger.ownership import OwnableStore
from ._generations import ObsoleteLog, PositionSnapshots, newest_snapshot, open_or_salvage
from ._ledgers import Ledgers
from .format import (
    LedgerAcks,
    LedgerSummary,
    LogNames,
    MarkerContents,
    check_version,
    decode_legacy,
    decode_state,
    read_marker,
)
from .format._protobuf import RecordKind, kind_of
from .format._records import StoredRecords, read_ledgers

_IN_USE: Final = "this cursor is open already, here or in another process; it has one owner at a time"
_TRIES: Final = 20
_SLICE_S: Final = 0.004
_AT_ONCE: Final = 16
_LARGE: Final = 1 << 17
_AFTER_LOSS: Final = 1 << 48
"""How far sequence numbers skip when markers may be lost, so that a lost one that reappears does not count."""
_log = logging.getLogger("pulsar_nack.cursor")


class StoredLedger(NamedTuple):
    """A ledger that was decoded and not kept in memory: its summary, bytes on storage, and number of ranges."""

    summary: LedgerSummary
    size: int
    ranges: int


@dataclass(slots=True)
class RecoveredAcks:
    """The recovered state of each ledger, in memory or on storage."""

    states: dict[int, LedgerAcks] = field(default_factory=dict)
    summaries: dict[int, StoredLedger] = field(default_factory=dict)
    cut: dict[int, int] = field(default_factory=dict)
    """How many acknowledgements of lost entries were dropped, by ledger; each of these ledgers is in ``states``."""

    def put(self, ledger: int, acks: LedgerAcks, ledgers: Ledgers | None) -> bool:
        """Keep a ledger's state in memory, without lost entries; return whether there were any."""
        self.states[ledger] = acks
        end = None if ledgers is None else ledgers.entries(ledger)
        if end is not None and (dropped := acks.cut(end)):
            self.cut[ledger] = dropped
        return ledger in self.cut


@dataclass(slots=True)
class UsableMarker:
    """The contents of a usable marker, or of a record in the legacy format."""

    sequence: int
    contents: MarkerContents
    index: dict[int, StoredRecords]
    loaded: RecoveredAcks
    is_legacy: bool = False


@dataclass(slots=True)
class RecoveredLog:
    """The state that recovery found in the logs of a cursor, and the log in which the cursor continues.

    ``contents`` and ``index`` are what the last usable marker says; without one, contents is None. ``is_legacy``: the
    marker is a record in the legacy format. ``must_roll``: nothing can be appended to the log. ``is_damaged``: the log
    is kept when the cursor continues in a new one. ``snapshot``: what the last snapshot says, if there is no marker.
    ``obsolete``: generations to be deleted after the next commit. ``kept``: open damaged logs. ``has_snapshots``:
    whether to write snapshots beside the log.
    """

    log: Log
    generation: int
    next_generation: int
    sequence: int = 0
    contents: MarkerContents | None = None
    index: dict[int, StoredRecords] = field(default_factory=dict)
    is_legacy: bool = False
    must_roll: bool = False
    is_damaged: bool = False
    snapshot: MarkerContents | None = None
    obsolete: list[ObsoleteLog] = field(default_factory=list)
    kept: list[Log] = field(default_factory=list)
    has_snapshots: bool = True


async def recover(
    store: OwnableStore, names: LogNames, cache_bytes: int | None, ledgers: Ledgers | None, *, salvage: bool = True
) -> tuple[RecoveredLog, RecoveredAcks]:
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
            found, acks = await _Search(store, names, cache_bytes, ledgers, salvage=salvage).run()
        except (LogNotFoundError, LogExistsError):
            continue  # its owner continues in a new log at this moment
        except LogLockedError as error:
            raise error.because(_IN_USE) from error
        found.has_snapshots = salvage
        return found, acks
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

    async def run(self) -> tuple[RecoveredLog, RecoveredAcks]:
        try:
            return await self._run()
        except Exception:
            for log in self._opened.values():
                await log.aclose()
            raise

    async def _run(self) -> tuple[RecoveredLog, RecoveredAcks]:
        names = await self._store.names()
        generations = self._names.generations(names)
        best: tuple[int, UsableMarker] | None = None
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
        found = RecoveredLog(log, generation, self._next_generation(names), sequence, usable.contents, usable.index)
        found.is_legacy = usable.is_legacy
        found.is_damaged = is_damaged
        found.must_roll = log.is_sealed or is_damaged
        found.obsolete = self._obsolete(generation, names)
        found.kept = self._kept(generation)
        return found, usable.loaded

    async def _read(self, generation: int) -> UsableMarker | None:
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

    async def _begin(self, names: Sequence[str]) -> tuple[RecoveredLog, RecoveredAcks]:
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
        return found, RecoveredAcks()

    def _next_generation(self, names: Sequence[str]) -> int:
        """Return the next generation: above all that have a log or snapshots."""
        return max([0, *self._names.generations(names), *self._names.snapshots(names)]) + 1

    def _obsolete(self, generation: int, names: Sequence[str]) -> list[ObsoleteLog]:
        """Return the generations that are not needed, except damaged ones, which are kept."""
        others = {*self._names.generations(names), *self._names.snapshots(names)} - {generation, *self._damaged}
        return [
            ObsoleteLog(self._opened.get(other), PositionSnapshots(self._store, self._names.snapshot(other)))
            for other in sorted(others)
        ]

    def _kept(self, generation: int) -> list[Log]:
        """Return the damaged logs other than this one; they stay open, so that no other process takes them."""
        return [log for other, log in self._opened.items() if other in self._damaged and other != generation]

    async def _close_but(self, generations: Collection[int]) -> None:
        for other, log in self._opened.items():
            if other not in generations:
                await log.aclose()


async def last_usable(
    log: Log, cache_bytes: int | None, ledgers: Ledgers | None, *, salvage: bool
) -> tuple[UsableMarker | None, bool]:
    """Return the last usable marker of a log, and whether unusable records came after it.

    Ledgers' states without a marker are what a crash leaves, and do not count as unusable.

    :raises LogCorruptedError: a record after it is unusable, without ``salvage``
    :raises LogStorageError: the store refused
    :raises LogVersionError: a later release wrote the log
    """
    has_lost = False
    async for number, record in _backwards(log):
        kind = RecordKind.FOREIGN if record is None else kind_of(record)
        if kind in {RecordKind.LEDGER, RecordKind.MARKER_PART}:
            continue
        try:
            return await _use(log, number, record, cache_bytes, ledgers), has_lost
        except (CursorFormatError, LogCorruptedError) as error:
            if not salvage:
                raise LogCorruptedError(log.name, f"record {number}", 0, str(error)) from error
            if not has_lost:
                _log.warning(
                    "record %d of %s cannot be used: %s; searching for an older state", number, log.name, error
                )
            has_lost = True
    return None, has_lost


async def _use(
    log: Log, number: int, record: bytes | None, cache_bytes: int | None, ledgers: Ledgers | None
) -> UsableMarker:
    """Return the state that a record stands for.

    :raises CursorFormatError: the record is not usable
    """
    if record is None:
        raise CursorFormatError("record", "it is damaged")
    kind = kind_of(record)
    if kind is RecordKind.MARKER:
        return await _use_marker(log, number, cache_bytes, ledgers)
    if kind is RecordKind.LEGACY:
        return _use_legacy(record, ledgers)
    raise CursorFormatError("record", "it is neither a marker, nor a ledger's state, nor in the legacy format")


async def _backwards(log: Log) -> AsyncIterator[tuple[int, bytes | None]]:
    """Go through the records from the last one back; None for one that is damaged."""
    end, count = log.length, 1
    while end:
        begin = max(end - count, 0)
        try:
            records: Sequence[bytes | None] = await log.read(begin, end - 1)
        except LogCorruptedError:
            records = [await _read_or_none(log, number) for number in range(begin, end)]
        for number in reversed(range(begin, end)):
            yield number, records[number - begin]
        end, count = begin, min(2 * count, _AT_ONCE)


async def _read_or_none(log: Log, number: int) -> bytes | None:
    with suppress(LogCorruptedError):
        return (await log.read(number, number))[0]
    return None


def _use_legacy(record: bytes, ledgers: Ledgers | None) -> UsableMarker:
    legacy = decode_legacy(record, ledgers)
    loaded = RecoveredAcks()
    for ledger, acks in legacy.states.items():
        loaded.put(ledger, acks, ledgers)
    return UsableMarker(legacy.sequence, legacy.contents, {}, loaded, is_legacy=True)


async def _use_marker(log: Log, number: int, cache_bytes: int | None, ledgers: Ledgers | None) -> UsableMarker:
    head, references = await read_marker(log, number)
    for ledger, numbers in references.items():
        if not all(0 <= each < number for each in numbers):
            raise CursorFormatError("a marker", f"it names records {numbers} of ledger {ledger}, which do not exist")
    newest_first = {ledger: references[ledger] for ledger in sorted(references, reverse=True)}
    loaded, sizes = await _load(log, newest_first, head.contents.mark_delete, cache_bytes, ledgers)
    index = {ledger: StoredRecords(tuple(numbers), sizes[ledger]) for ledger, numbers in references.items()}
    return UsableMarker(head.sequence, head.contents, index, loaded)


async def _load(
    log: Log,
    references: Mapping[int, Sequence[int]],
    mark_delete: Position,
    cache_bytes: int | None,
    ledgers: Ledgers | None,
) -> tuple[RecoveredAcks, dict[int, int]]:
    """Decode every state, and keep those that fit, in this order; return them, and the bytes of each in the log."""
    loaded, sizes = RecoveredAcks(), dict[int, int]()
    kept, is_full, paused_at = 0, False, time.monotonic()
    async for ledger, records in read_ledgers(log, references):
        size = sizes[ledger] = sum(map(len, records))
        try:
            acks = await decode_off_loop(ledger, records)
        except CursorFormatError:
            for number, record in zip(references[ledger], records, strict=True):
                check_version(log.name, number, record)
            raise
        if ledger == mark_delete.ledger:
            acks.trim(mark_delete.entry)
        kept += acks.memory_bytes
        is_full = is_full or (cache_bytes is not None and kept > cache_bytes and bool(loaded.states))
        if not loaded.put(ledger, acks, ledgers) and is_full:
            loaded.summaries[ledger] = StoredLedger(acks.summary, size, acks.ranges.range_count)
            del loaded.states[ledger]
        if time.monotonic() - paused_at > _SLICE_S:
            await asyncio.sleep(0)
            paused_at = time.monotonic()
    return loaded, sizes


async def decode_off_loop(ledger: int, records: Sequence[bytes]) -> LedgerAcks:
    """Decode a ledger's state, a large one in a thread.

    :raises CursorFormatError: it cannot be decoded, or is another ledger's
    """
    if sum(map(len, records)) < _LARGE:
        return decode_state(ledger, records)
    return await asyncio.get_running_loop().run_in_executor(None, decode_state, ledger, records)
