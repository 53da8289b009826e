"""The records of a log: where the ledgers' states lie, and reading, appending and copying a bounded part at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ...ledger import Log
from ...ledger.format import body_size, group_records

APPEND: Final = 1 << 22
"""Bytes that are appended or read at a time; one record may have more."""
_FIRST_READ: Final = 8
_MAX_READ: Final = 256


class StoredRecords(NamedTuple):
    """Where the state of one ledger lies: the numbers of its records, in order, and their bytes."""

    numbers: tuple[int, ...]
    size: int


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


class Copied(NamedTuple):
    """Where the ledgers' states lie in the new log, and how many bytes were written."""

    stored: dict[int, StoredRecords]
    size: int


async def copy_states(old: Log, index: Mapping[int, StoredRecords], new: Log) -> Copied:
    """Copy the records of ``index`` to a new log, with a bounded part in memory at a time.

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
    return Copied(copied, total + size)


async def _append(new: Log, pending: Mapping[int, Sequence[bytes]]) -> dict[int, StoredRecords]:
    return assign_numbers(
        pending, await append_all(new, (record for records in pending.values() for record in records))
    )
