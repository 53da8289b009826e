"""What the records of a cursor's log say, as its log needs it: markers that build on others, states, snapshots.

A marker that says what is different from another one is read back over a chain of them to a whole one. Record numbers
in it always go back, so a chain ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ..errors import CursorFormatError, InvalidArgumentError, LogVersionError
from ..ids import Position
from ..index import varint_bytes
from ..ledger import Log
from ._codec import LIMIT, decode_ledger
from ._ledger_acks import LedgerAcks
from ._ledgers import Ledgers
from ._marker import Marker, decode_marker, encode_marker, marker_parts
from ._parts import VERSION
from ._records import Stored
from ._single import decode_single
from ._wire import Kind, kind_of, read_record

_MOST_CHAIN: Final = 10_000
_EACH: Final = 4
_FIXED: Final = 60


class Contents(NamedTuple):
    """What a marker says beside where the ledgers' states lie."""

    mark_delete: Position
    properties: Mapping[str, int]
    cursor_properties: Mapping[str, str]


class Head(NamedTuple):
    """The contents of a marker, and its sequence number."""

    sequence: int
    contents: Contents


def encode_whole(head: Head, index: Mapping[int, Stored], *, limit: int) -> list[bytes]:
    """Return the records of a marker that names where each ledger's state lies."""
    sequence, (mark_delete, properties, strings) = head
    return encode_marker(Marker(sequence, mark_delete, _references(index), properties, strings), limit=limit)


def encode_delta(
    head: Head,
    changes: Mapping[int, Stored],
    dropped: Iterable[int],
    *,
    base: int,
    before: Contents,
    limit: int,
) -> list[bytes]:
    """Return the records of a marker that says what is different from the one at ``base``, which says ``before``."""
    sequence, (mark_delete, properties, strings) = head
    changed = None if strings == before.cursor_properties else strings
    marker = Marker(sequence, mark_delete, _references(changes), properties, changed, base, tuple(dropped))
    return encode_marker(marker, limit=limit)


def encode_head(head: Head) -> bytes:
    """Return a snapshot: a marker that names no ledger."""
    (record,) = encode_whole(head, {}, limit=1 << 24)
    return record


def decode_head(record: bytes) -> Head:
    """Return what a snapshot says.

    :raises CursorFormatError: it is something else
    """
    return _head_of(decode_marker([record]))


def is_marker(record: bytes) -> bool:
    """Return whether this is the last record of a marker."""
    return kind_of(record) is Kind.MARKER


def is_single(record: bytes) -> bool:
    """Return whether this is a record in the old form."""
    return kind_of(record) is Kind.SINGLE


def is_entry(record: bytes) -> bool:
    """Return whether this counts only when a marker says so: a ledger's state, or part of something."""
    return kind_of(record) in {Kind.LEDGER, Kind.MARKER_PART}


def check_version(log: str, number: int, record: bytes) -> None:
    """Refuse what a later release wrote: nothing older may be used in its place.

    :raises LogVersionError: it is of a later release
    """
    try:
        version = read_record(record).part.version
    except CursorFormatError:
        return
    if version > VERSION:
        raise LogVersionError(log, f"record {number}", version)


async def read_marker(log: Log, number: int) -> tuple[Head, dict[int, tuple[int, ...]]]:
    """Read a marker whose last record this is, and those that it builds on; return also where each ledger lies.

    :raises CursorFormatError: one of them cannot be read
    :raises LogCorruptedError: likewise
    :raises LogVersionError: a later release wrote one of them
    """
    chain = [await _read_one(log, number)]
    at = number
    while (base := chain[-1].base) is not None:
        if not base < at or len(chain) > _MOST_CHAIN:
            raise CursorFormatError("a marker", f"the one in record {at} builds on record {base}")
        chain.append(await _read_one(log, base))
        at = base
    references: dict[int, tuple[int, ...]] = {}
    strings: Mapping[str, str] = {}
    for marker in reversed(chain):
        for ledger in marker.dropped:
            references.pop(ledger, None)
        references.update(marker.references)
        strings = strings if marker.cursor_properties is None else marker.cursor_properties
    newest = chain[0]
    return Head(newest.sequence, Contents(newest.mark_delete, newest.properties, strings)), references


def decode_state(ledger: int, records: Sequence[bytes]) -> LedgerAcks:
    """Return a ledger's state.

    :raises CursorFormatError: it cannot be read, or is another ledger's
    """
    found, acks = decode_ledger(records)
    if found != ledger:
        raise CursorFormatError("a ledger's state", f"it is that of ledger {found}, not of {ledger}")
    return acks


def read_single(record: bytes, ledgers: Ledgers | None = None) -> tuple[int, Contents, dict[int, LedgerAcks]]:
    """Return what a record in the old form says: its sequence number, what a marker would say, and the states.

    :raises CursorFormatError: it cannot be read
    """
    single = decode_single(record, ledgers)
    contents = Contents(single.mark_delete, single.properties, single.cursor_properties)
    return single.sequence, contents, dict(single.states)


def rough_size(count: int) -> int:
    """Return about how many bytes a marker that names so many ledgers takes; enough to decide by."""
    return _FIXED + _EACH * count


def whole_size(mark_delete: Position, ledgers: Iterable[int]) -> int:
    """Return how many bytes a marker takes that names these ledgers, written one after the other. O(ledgers)."""
    index = {ledger: Stored((number,), 0) for number, ledger in enumerate(sorted(ledgers))}
    (record,) = encode_whole(Head(1 << 34, Contents(mark_delete, {}, {})), index, limit=1 << 30)
    return len(record) + sum(varint_bytes(ledger) - 1 for ledger in index)


def strings_size(properties: Mapping[str, str]) -> int:
    """Return how many bytes cursor properties take in a marker."""
    total = 0
    for key, value in properties.items():
        lengths = len(key.encode()), len(value.encode())
        size = sum(1 + varint_bytes(length) + length for length in lengths)
        total += 1 + varint_bytes(size) + size
    return total


def check_strings(properties: Mapping[str, str]) -> None:
    """Refuse properties that cannot be written.

    :raises InvalidArgumentError: they are no text, or too long
    """
    if strings_size(properties) > LIMIT:
        raise InvalidArgumentError("properties", f"{len(properties)} of them", f"at most {LIMIT:,} bytes in all")


async def _read_one(log: Log, number: int) -> Marker:
    """Read one marker whose last record this is."""
    records = await log.read(number, number)
    check_version(log.name, number, records[0])
    before = marker_parts(records[0]) - 1
    if before > number:
        raise CursorFormatError("a marker", f"its {before} other parts are not there")
    if before:
        records = [*await log.read(number - before, number - 1), *records]
    return decode_marker(records)


def _head_of(marker: Marker) -> Head:
    return Head(marker.sequence, Contents(marker.mark_delete, marker.properties, marker.cursor_properties or {}))


def _references(index: Mapping[int, Stored]) -> dict[int, tuple[int, ...]]:
    return {ledger: stored.numbers for ledger, stored in index.items()}
