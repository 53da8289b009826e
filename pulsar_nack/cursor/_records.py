"""Where the ledgers' states lie in a log, and how records are read and appended in bounded parts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from ..ledger import Log

APPEND: Final = 1 << 22
"""Bytes that are appended, or read, at a time; one record may be more."""
RECORD_OVERHEAD: Final = 4
_FIRST_READ: Final = 8
_MOST_READ: Final = 256


class Stored(NamedTuple):
    """Where the state of one ledger lies: the numbers of its records, in order, and how many bytes they have."""

    numbers: tuple[int, ...]
    size: int


def groups(records: Iterable[bytes], limit: int = APPEND) -> Iterator[list[bytes]]:
    """Put records together up to about this many bytes, in order; none of the groups is empty."""
    group: list[bytes] = []
    size = 0
    for record in records:
        if group and size + len(record) + RECORD_OVERHEAD > limit:
            yield group
            group, size = [], 0
        group.append(record)
        size += len(record) + RECORD_OVERHEAD
    if group:
        yield group


def size_of(records: Iterable[bytes]) -> int:
    """Return how many bytes records take in a log."""
    return sum(len(record) + RECORD_OVERHEAD for record in records)


async def append_all(log: Log, records: Iterable[bytes]) -> list[int]:
    """Append records, about as many bytes at a time as one append takes; return their numbers."""
    numbers: list[int] = []
    for group in groups(records, 2 * APPEND):
        first = await log.append_many(group)
        numbers += range(first, first + len(group))
    return numbers


def allot(entries: Mapping[int, Sequence[bytes]], numbers: Sequence[int]) -> dict[int, Stored]:
    """Give the numbers of appended records to the ledgers whose records they are, in order."""
    allotted: dict[int, Stored] = {}
    at = 0
    for ledger, records in entries.items():
        allotted[ledger] = Stored(tuple(numbers[at : at + len(records)]), sum(map(len, records)))
        at += len(records)
    return allotted


async def read_ledgers(log: Log, wanted: Mapping[int, Sequence[int]]) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Read ledgers' records, in the order in which they are wanted.

    Some are read at a time, as many as have :data:`APPEND` bytes if they are like those before, and of these the
    neighbours in the log in one go.

    :raises LogCorruptedError: a record is damaged
    """
    rest = list(wanted.items())
    at, count = 0, _FIRST_READ
    while at < len(rest):
        batch = rest[at : at + count]
        numbers = sorted(number for _, numbers in batch for number in numbers)
        records = dict(zip(numbers, await read_numbers(log, numbers), strict=True))
        for ledger, mine in batch:
            yield ledger, [records[number] for number in mine]
        at += len(batch)
        each = sum(map(len, records.values())) // len(batch)
        count = min(max(APPEND // (each + 1), 1), _MOST_READ, 4 * count)


async def read_numbers(log: Log, numbers: Sequence[int]) -> list[bytes]:
    """Read records, in this order; those that follow each other in one go."""
    found: list[bytes] = []
    at = 0
    while at < len(numbers):
        end = at + 1
        while end < len(numbers) and numbers[end] == numbers[end - 1] + 1:
            end += 1
        found += await log.read(numbers[at], numbers[end - 1])
        at = end
    return found
