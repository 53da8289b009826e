"""How a cursor's state is found again: from the last record back to the last marker that can be used.

A marker can be used when all of its parts are there, when those before it that it is the difference to are, and when
every record that it names is there and can be decoded, as the state of the ledger for which it is named. Otherwise the
one before it is tried; so recovery never claims more than that marker does. A record in the old form can be used when
it can be decoded.

A log that is damaged, so that it cannot be opened as usual, is opened for reading what is whole of it, where the store
can do that: then the last usable marker is looked for in it all the same, also behind the damage, if all that it names
is whole. Nothing is appended to such a log: the cursor goes on in a new one, and the damaged one is kept for good.

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
from ..ledger import Log, LogStore
from ._chain import Contents, check_version, decode_state, read_marker, read_single
from ._found import Found
from ._generations import Names
from ._ledger_acks import LedgerAcks, LedgerSummary
from ._ledgers import Ledgers
from ._leftovers import Leftover
from ._records import Stored, read_ledgers
from ._salvage import open_or_salvage
from ._snapshot import Snapshots, newest_snapshot
from ._wire import Kind, kind_of

_IN_USE: Final = "this cursor is open already, here or in another process; it has one owner at a time"
_TRIES: Final = 20
_SLICE_S: Final = 0.004
_AT_ONCE: Final = 16
_LARGE: Final = 1 << 17
_AFTER_LOSS: Final = 1 << 48
"""How far sequence numbers skip when markers may be lost, so that a lost one that turns up again does not count."""
_log = logging.getLogger("pulsar_nack.cursor")


class OnStorage(NamedTuple):
    """What is known of a ledger that was decoded and not kept: bytes that it takes on storage, and its ranges."""

    summary: LedgerSummary
    size: int
    ranges: int


@dataclass(slots=True)
class Loaded:
    """What recovery has in memory: states, and what is known of ledgers whose state is on storage only."""

    states: dict[int, LedgerAcks] = field(default_factory=dict)
    summaries: dict[int, OnStorage] = field(default_factory=dict)
    cut: dict[int, int] = field(default_factory=dict)
    """Acknowledgements dropped because the ledger has lost their entries: the number by ledger, each in ``states``."""

    def put(self, ledger: int, acks: LedgerAcks, ledgers: Ledgers | None) -> bool:
        """Keep a ledger's state in memory, without lost entries; return whether it had any."""
        self.states[ledger] = acks
        end = None if ledgers is None else ledgers.entries(ledger)
        if end is not None and (went := acks.cut(end)):
            self.cut[ledger] = went
        return ledger in self.cut


@dataclass(slots=True)
class Usable:
    """A marker, or a record of the old form, that can be used."""

    sequence: int
    contents: Contents
    index: dict[int, Stored]
    loaded: Loaded
    is_single: bool = False


async def recover(
    store: LogStore, names: Names, cache_bytes: int | None, ledgers: Ledgers | None
) -> tuple[Found, Loaded]:
    """Find what counts, open its log for writing, or make the first one.

    Damaged logs are reported by a warning, and left where they are.

    :param cache_bytes: up to how much is kept in memory; None: all
    :param ledgers: the topic's ledgers, if known; acknowledgements beyond the end of a ledger are dropped
    :raises LogLockedError: somebody else has the cursor open
    :raises LogFencedError: somebody else took it over meanwhile, on object storage
    :raises LogVersionError: a later release wrote it
    :raises LogStorageError: the store refused
    """
    for _ in range(_TRIES):
        try:
            return await _Search(store, names, cache_bytes, ledgers).run()
        except (LogNotFoundError, LogExistsError):
            continue  # its owner goes on in a new log, or makes it, at this time
        except LogLockedError as error:
            raise error.because(_IN_USE) from error
    raise LogLockedError(names.cursor, _IN_USE)


class _Search:
    """One look at all logs of a cursor."""

    def __init__(self, store: LogStore, names: Names, cache_bytes: int | None, ledgers: Ledgers | None) -> None:
        self._store = store
        self._names = names
        self._cache_bytes = cache_bytes
        self._ledgers = ledgers
        self._opened: dict[int, Log] = {}
        self._damaged: set[int] = set()
        self._lost: set[int] = set()
        """Logs in which something was passed over on the way to the last usable marker."""

    async def run(self) -> tuple[Found, Loaded]:
        try:
            return await self._run()
        except Exception:
            for log in self._opened.values():
                await log.aclose()
            raise

    async def _run(self) -> tuple[Found, Loaded]:
        names = await self._store.names()
        generations = self._names.generations(names)
        best: tuple[int, Usable] | None = None
        for generation in reversed(generations):
            usable = await self._look(generation)
            if usable is not None and (best is None or usable.sequence > best[1].sequence):
                best = generation, usable
        if best is None:
            return await self._begin(names)
        generation, usable = best
        log, is_damaged = self._opened[generation], generation in self._damaged
        if (log.is_sealed or is_damaged) and self._names.generations(await self._store.names()) != generations:
            raise LogNotFoundError(log.name)  # it goes on in a log that was made after we looked
        sequence = usable.sequence + (_AFTER_LOSS if is_damaged or generation in self._lost else 0)
        found = Found(log, generation, self._following(names), sequence, usable.contents, usable.index)
        found.is_single = usable.is_single
        found.is_damaged = is_damaged
        found.must_roll = log.is_sealed or is_damaged
        found.leftovers = self._leftovers(generation, names)
        found.kept = self._kept(generation)
        return found, usable.loaded

    async def _look(self, generation: int) -> Usable | None:
        """Open a log and return its last usable marker, if there is one."""
        name = self._names.log(generation)
        try:
            log = self._opened[generation] = await self._open(generation)
            usable, has_lost = await last_usable(log, self._cache_bytes, self._ledgers)
        except LogCorruptedError as error:
            _log.warning("the log %s of a cursor is damaged, and is not used: %s", name, error)
            self._damaged.add(generation)
            return None
        if has_lost:
            self._lost.add(generation)
        return usable

    async def _open(self, generation: int) -> Log:
        """Open a log for writing, or a damaged one, as its owner too, for reading what is whole of it.

        :raises LogCorruptedError: it is damaged, and the store cannot do that
        """
        name = self._names.log(generation)
        log, problem = await open_or_salvage(self._store, name)
        if problem is not None:
            self._damaged.add(generation)
            _log.warning(
                "the log %s of a cursor is damaged: %s; it is kept, and the last whole state in it is looked for",
                name,
                problem,
            )
        return log

    async def _begin(self, names: Sequence[str]) -> tuple[Found, Loaded]:
        """Begin without a marker: from the last snapshot, or where a new cursor begins."""
        snapshot = await newest_snapshot(self._store, self._names)
        contents = None if snapshot is None else snapshot.contents
        has_lost = bool(self._lost - self._damaged)
        if self._damaged or has_lost:
            _log.warning(
                "no marker of the cursor %s can be used: it goes on %s; everything that was acknowledged after that is"
                " delivered again",
                self._names.cursor,
                "at its beginning" if contents is None else f"after {tuple(contents.mark_delete)}, its last snapshot",
            )
        openable = [each for each in self._names.generations(names) if each not in self._damaged]
        generation = openable[-1] if openable else None
        following = self._following(names)
        if generation is None:
            generation, following = following, following + 1
            log = self._opened[generation] = await self._store.create(self._names.log(generation))
        else:
            log = self._opened[generation]
        sequence = 0 if snapshot is None else snapshot.sequence
        found = Found(log, generation, following, sequence + (_AFTER_LOSS if self._damaged or has_lost else 0))
        found.snapshot = contents
        found.must_roll = log.is_sealed
        found.kept = self._kept(generation)
        if has_lost:
            await self._close_but({generation, *self._damaged})
        else:
            found.leftovers = self._leftovers(generation, names)
        return found, Loaded()

    def _following(self, names: Sequence[str]) -> int:
        """Return the number of the next log: above all that are there, also of logs that have only snapshots left."""
        return max([0, *self._names.generations(names), *self._names.snapshots(names)]) + 1

    def _leftovers(self, generation: int, names: Sequence[str]) -> list[Leftover]:
        """Return what nobody needs; what is damaged is kept."""
        others = {*self._names.generations(names), *self._names.snapshots(names)} - {generation, *self._damaged}
        return [
            Leftover(self._opened.get(other), Snapshots(self._store, self._names.snapshot(other)))
            for other in sorted(others)
        ]

    def _kept(self, generation: int) -> list[Log]:
        """Return the open logs that are damaged, but for this one; they stay open, so that nobody else takes them."""
        return [log for other, log in self._opened.items() if other in self._damaged and other != generation]

    async def _close_but(self, generations: Collection[int]) -> None:
        for other, log in self._opened.items():
            if other not in generations:
                await log.aclose()


async def last_usable(log: Log, cache_bytes: int | None, ledgers: Ledgers | None) -> tuple[Usable | None, bool]:
    """Go from the last record back to the last marker that can be used; return also whether anything was passed over.

    Entries without a marker are what a crash leaves, and nothing that was passed over.

    :raises LogStorageError: the store refused
    :raises LogVersionError: a later release wrote it
    """
    has_lost = False
    async for number, record in _backwards(log):
        kind = Kind.FOREIGN if record is None else kind_of(record)
        if kind in {Kind.LEDGER, Kind.MARKER_PART}:
            continue
        try:
            return await _use(log, number, record, cache_bytes, ledgers), has_lost
        except (CursorFormatError, LogCorruptedError) as error:
            if not has_lost:
                _log.warning(
                    "record %d of %s cannot be used: %s; an older state is looked for", number, log.name, error
                )
            has_lost = True
    return None, has_lost


async def _use(log: Log, number: int, record: bytes | None, cache_bytes: int | None, ledgers: Ledgers | None) -> Usable:
    """Return what a record says.

    :raises CursorFormatError: it cannot be used
    """
    if record is None:
        raise CursorFormatError("record", "it is damaged")
    kind = kind_of(record)
    if kind is Kind.MARKER:
        return await _use_marker(log, number, cache_bytes, ledgers)
    if kind is Kind.SINGLE:
        return _use_single(record, ledgers)
    raise CursorFormatError("record", "it is neither a marker, nor a ledger's state, nor in the old form")


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


def _use_single(record: bytes, ledgers: Ledgers | None) -> Usable:
    sequence, contents, states = read_single(record, ledgers)
    loaded = Loaded()
    for ledger, acks in states.items():
        loaded.put(ledger, acks, ledgers)
    return Usable(sequence, contents, {}, loaded, is_single=True)


async def _use_marker(log: Log, number: int, cache_bytes: int | None, ledgers: Ledgers | None) -> Usable:
    head, references = await read_marker(log, number)
    for ledger, numbers in references.items():
        if not all(0 <= each < number for each in numbers):
            raise CursorFormatError("a marker", f"it names records {numbers} for ledger {ledger}, which are not there")
    newest_first = {ledger: references[ledger] for ledger in sorted(references, reverse=True)}
    loaded, sizes = await _load(log, newest_first, head.contents.mark_delete, cache_bytes, ledgers)
    index = {ledger: Stored(tuple(numbers), sizes[ledger]) for ledger, numbers in references.items()}
    return Usable(head.sequence, head.contents, index, loaded)


async def _load(
    log: Log,
    references: Mapping[int, Sequence[int]],
    mark_delete: Position,
    cache_bytes: int | None,
    ledgers: Ledgers | None,
) -> tuple[Loaded, dict[int, int]]:
    """Decode every state, and keep those that fit, in this order; return them, and each one's bytes in the log."""
    loaded, sizes = Loaded(), dict[int, int]()
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
            loaded.summaries[ledger] = OnStorage(acks.summary, size, acks.ranges.range_count)
            del loaded.states[ledger]
        if time.monotonic() - paused_at > _SLICE_S:
            await asyncio.sleep(0)
            paused_at = time.monotonic()
    return loaded, sizes


async def decode_off_loop(ledger: int, records: Sequence[bytes]) -> LedgerAcks:
    """Decode a ledger's state; what takes long is done in a thread.

    :raises CursorFormatError: it cannot be decoded, or is another ledger's
    """
    if sum(map(len, records)) < _LARGE:
        return decode_state(ledger, records)
    return await asyncio.get_running_loop().run_in_executor(None, decode_state, ledger, records)
