"""The records of a cursor's log: the last usable marker, and reading, appending and copying a bounded part at a time.

A marker is usable if all of its parts and its bases are there, and if every record that it names is there and can be
decoded as the state of the ledger for which it is named. Otherwise the marker before it is tried; so recovery never
acknowledges more than the marker that it uses. A record in the legacy format is usable if it can be decoded.

Every state is decoded once, newest ledger first; those that fit into the cache stay in memory, at least one, and of the
others a summary.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ..errors import CursorFormatError, LogCorruptedError
from ..ledger import Log
from ..ledger.format import body_size, group_records
from ._ledgers import Ledgers
from .format import (
    LedgerAcks,
    LedgerSummary,
    MarkerContents,
    RecordKind,
    check_version,
    decode_legacy,
    decode_state,
    kind_of,
    read_marker,
)

APPEND: Final = 1 << 22
"""Bytes that are appended or read at a time; one record may have more."""
_FIRST_READ: Final = 8
_MAX_READ: Final = 256
_SLICE_S: Final = 0.004
_AT_ONCE: Final = 16
_LARGE: Final = 1 << 17
_log = logging.getLogger("pulsar_nack.cursor")


class StoredRecords(NamedTuple):
    """Where the state of one ledger lies: the numbers of its records, in order, and their bytes."""

    numbers: tuple[int, ...]
    size: int


# --- the last usable marker ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class RecoveredState:
    """What a usable marker, or a record in the legacy format, says; without contents no marker was found.

    :param index: where each ledger's state lies
    :param states: the ledgers in memory
    :param summaries: of the other ledgers, a summary and the bytes on storage
    :param cut: how many acknowledgements of lost entries were dropped, by ledger; each of these is in ``states``
    """

    sequence: int = 0
    contents: MarkerContents | None = None
    index: dict[int, StoredRecords] = field(default_factory=dict)
    states: dict[int, LedgerAcks] = field(default_factory=dict)
    summaries: dict[int, tuple[LedgerSummary, int]] = field(default_factory=dict)
    cut: dict[int, int] = field(default_factory=dict)
    is_legacy: bool = False

    def put(self, ledger: int, acks: LedgerAcks, ledgers: Ledgers | None) -> None:
        """Keep a ledger's state in memory, without lost entries."""
        self.states[ledger] = acks
        end = None if ledgers is None else ledgers.entries(ledger)
        if end is not None and (dropped := acks.cut(end)):
            self.cut[ledger] = dropped


async def last_usable(
    log: Log, cache_bytes: int | None, ledgers: Ledgers | None, *, salvage: bool
) -> tuple[RecoveredState | None, bool]:
    """Return the last usable marker of a log, and whether unusable records came after it.

    Ledgers' states without a marker are what a crash leaves, and do not count as unusable.

    :raises LogCorruptedError: a record after it is unusable, without ``salvage``
    :raises LogStorageError: the store refused
    :raises LogVersionError: a later release wrote the log
    """
    has_lost = False
    async for number, record in _backwards(log):
        if record is not None and kind_of(record).needs_marker:
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
) -> RecoveredState:
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


def _use_legacy(record: bytes, ledgers: Ledgers | None) -> RecoveredState:
    legacy = decode_legacy(record, ledgers)
    found = RecoveredState(legacy.sequence, legacy.contents, is_legacy=True)
    for ledger, acks in legacy.states.items():
        found.put(ledger, acks, ledgers)
    return found


async def _use_marker(log: Log, number: int, cache_bytes: int | None, ledgers: Ledgers | None) -> RecoveredState:
    """Decode every ledger's state, and keep those that fit, the newest ledger first."""
    marker = await read_marker(log, number)
    references, mark_delete = marker.references, marker.contents.mark_delete
    for ledger, numbers in references.items():
        if not all(0 <= each < number for each in numbers):
            raise CursorFormatError("a marker", f"it names records {numbers} of ledger {ledger}, which do not exist")
    found = RecoveredState(marker.sequence, marker.contents)
    kept, is_full, paused_at = 0, False, time.monotonic()
    newest_first = {ledger: references[ledger] for ledger in sorted(references, reverse=True)}
    async for ledger, records in read_ledgers(log, newest_first):
        try:
            acks = await decode_off_loop(ledger, records)
        except CursorFormatError:
            for each, record in zip(references[ledger], records, strict=True):
                check_version(log.name, each, record)
            raise
        size = sum(map(len, records))
        found.index[ledger] = StoredRecords(tuple(references[ledger]), size)
        if ledger == mark_delete.ledger:
            acks.trim(mark_delete.entry)
        kept += acks.memory_bytes
        is_full = is_full or (cache_bytes is not None and kept > cache_bytes and bool(found.states))
        found.put(ledger, acks, ledgers)
        if is_full and ledger not in found.cut:
            found.summaries[ledger] = acks.summary, size
            del found.states[ledger]
        if time.monotonic() - paused_at > _SLICE_S:
            await asyncio.sleep(0)
            paused_at = time.monotonic()
    return found


async def decode_off_loop(ledger: int, records: Sequence[bytes]) -> LedgerAcks:
    """Decode a ledger's state, a large one in a thread.

    :raises CursorFormatError: it cannot be decoded, or is another ledger's
    """
    if sum(map(len, records)) < _LARGE:
        return decode_state(ledger, records)
    return await asyncio.get_running_loop().run_in_executor(None, decode_state, ledger, records)


# --- reading, appending and copying -----------------------------------------------------------------------------------


async def read_ledgers(log: Log, wanted: Mapping[int, Sequence[int]]) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Yield ledgers' records, in the order of ``wanted``.

    About :data:`APPEND` bytes are read at a time, as far as the ledgers before allow an estimate, and neighbours in the
    log in one go.

    :raises LogCorruptedError: a record is damaged
    """
    ledgers = list(wanted.items())
    at, count = 0, _FIRST_READ
    while at < len(ledgers):
        batch = ledgers[at : at + count]
        numbers = sorted(number for _, numbers in batch for number in numbers)
        records = dict(zip(numbers, await read_numbers(log, numbers), strict=True))
        for ledger, mine in batch:
            yield ledger, [records[number] for number in mine]
        at += len(batch)
        each = sum(map(len, records.values())) // len(batch)
        count = min(max(APPEND // (each + 1), 1), _MAX_READ, 4 * count)


async def read_numbers(log: Log, numbers: Sequence[int]) -> list[bytes]:
    """Read records, in this order; neighbours in one go."""
    found: list[bytes] = []
    at = 0
    while at < len(numbers):
        end = at + 1
        while end < len(numbers) and numbers[end] == numbers[end - 1] + 1:
            end += 1
        found += await log.read(numbers[at], numbers[end - 1])
        at = end
    return found


async def append_all(log: Log, records: Iterable[bytes]) -> list[int]:
    """Append records, a bounded part at a time; return their numbers."""
    numbers: list[int] = []
    for group in group_records(records, 2 * APPEND):
        first = await log.append_many(group)
        numbers += range(first, first + len(group))
    return numbers


def assign_numbers(entries: Mapping[int, Sequence[bytes]], numbers: Sequence[int]) -> dict[int, StoredRecords]:
    """Return where each ledger's records lie, given the numbers of all records, in order."""
    assigned: dict[int, StoredRecords] = {}
    at = 0
    for ledger, records in entries.items():
        assigned[ledger] = StoredRecords(tuple(numbers[at : at + len(records)]), sum(map(len, records)))
        at += len(records)
    return assigned


async def copy_states(old: Log, index: Mapping[int, StoredRecords], new: Log) -> tuple[dict[int, StoredRecords], int]:
    """Copy the records of ``index`` to a new log, with a bounded part in memory at a time.

    Returns where the ledgers' states lie there, and how many bytes were written.

    :raises LedgerError: a record could not be read or written
    """
    copied: dict[int, StoredRecords] = {}
    pending: dict[int, Sequence[bytes]] = {}
    size = total = 0
    async for ledger, records in read_ledgers(old, {ledger: index[ledger].numbers for ledger in sorted(index)}):
        pending[ledger] = records
        size += body_size(records)
        if size >= APPEND:
            copied |= await _append(new, pending)
            total += size
            pending, size = {}, 0
    copied |= await _append(new, pending)
    return copied, total + size


async def _append(new: Log, pending: Mapping[int, Sequence[bytes]]) -> dict[int, StoredRecords]:
    return assign_numbers(
        pending, await append_all(new, (record for records in pending.values() for record in records))
    )
