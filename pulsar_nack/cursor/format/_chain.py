"""Markers as a cursor's log uses them: full ones, deltas that build on others, and snapshots.

A delta says what is different from an earlier marker, its base; it is read back over a chain of bases to a full one.
A base always has a lower record number, so a chain ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from ..._check import INT64_MAX
from ...errors import CursorFormatError, InvalidArgumentError, LogVersionError
from ...ids import Position
from ...index import varint_bytes
from ...ledger import Log
from ...ledger.format import MAX_BODY
from ._marker import Marker, decode_marker, encode_marker, marker_parts
from ._parts import VERSION
from ._protobuf import RecordKind, kind_of, read_record
from ._records import StoredRecords

_MAX_CHAIN: Final = 10_000
_EACH: Final = 4
_EACH_TEXTS: Final = 6
_FIXED: Final = 60
_MAX_SNAPSHOT: Final = MAX_BODY - 4
"""Largest record of a log."""
_LENGTHS: Final = 16
"""At most what the lengths of a record's parts take beyond those of an empty record."""


class MarkerContents(NamedTuple):
    """The contents of a marker, without the places of the ledgers' states."""

    mark_delete: Position
    properties: Mapping[str, int]
    cursor_properties: Mapping[str, str]


class MarkerHead(NamedTuple):
    """The sequence number of a marker and its contents."""

    sequence: int
    contents: MarkerContents


def encode_full_marker(head: MarkerHead, index: Mapping[int, StoredRecords], *, limit: int) -> list[bytes]:
    """Return the records of a marker that names where each ledger's state lies."""
    sequence, (mark_delete, properties, strings) = head
    return encode_marker(Marker(sequence, mark_delete, _references(index), properties, strings), limit=limit)


def encode_delta_marker(
    head: MarkerHead,
    changes: Mapping[int, StoredRecords],
    dropped: Iterable[int],
    changed: Mapping[str, str | None],
    *,
    base: int,
    limit: int,
) -> list[bytes]:
    """Return the records of a marker that says what is different from the one at ``base``.

    :param changed: the :func:`changed_properties`
    """
    sequence, (mark_delete, properties, _) = head
    marker = Marker(sequence, mark_delete, _references(changes), properties, None, base, tuple(dropped), changed)
    return encode_marker(marker, limit=limit)


def changed_properties(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """Return the cursor properties that differ; None for those that are no longer there."""
    changed: dict[str, str | None] = {name: text for name, text in after.items() if before.get(name) != text}
    return changed | {name: None for name in before if name not in after}


def change_properties(properties: dict[str, str], changed: Mapping[str, str | None]) -> None:
    """Set cursor properties, and remove those that are None."""
    for name, text in changed.items():
        if text is None:
            properties.pop(name, None)
        else:
            properties[name] = text


def encode_snapshot(head: MarkerHead) -> bytes:
    """Return a snapshot: a marker that names no ledger.

    :raises InvalidArgumentError: the properties do not fit into one record
    """
    record, *others = encode_full_marker(head, {}, limit=_MAX_SNAPSHOT)
    if others:
        size = properties_size(head.contents.cursor_properties)
        raise InvalidArgumentError("properties", f"{size:,} bytes", f"room for them in {_MAX_SNAPSHOT:,} bytes")
    return record


def properties_room(properties: Mapping[str, int], limit: int = _MAX_SNAPSHOT) -> int:
    """Return how many bytes of cursor properties fit into any snapshot, or any record of at most ``limit`` bytes.

    :param properties: of the position, which are in the record too
    """
    longest = MarkerHead(INT64_MAX, MarkerContents(Position(INT64_MAX, INT64_MAX), properties, {}))
    return min(limit, _MAX_SNAPSHOT) - len(encode_snapshot(longest)) - _LENGTHS


def decode_snapshot(record: bytes) -> MarkerHead:
    """Return what a snapshot says.

    :raises CursorFormatError: the record is no snapshot
    """
    marker = decode_marker([record])
    contents = MarkerContents(marker.mark_delete, marker.properties, marker.cursor_properties or {})
    return MarkerHead(marker.sequence, contents)


def is_marker(record: bytes) -> bool:
    """Return whether this is the last record of a marker."""
    return kind_of(record) is RecordKind.MARKER


def is_legacy(record: bytes) -> bool:
    """Return whether this is a record in the legacy format."""
    return kind_of(record) is RecordKind.LEGACY


def needs_marker(record: bytes) -> bool:
    """Return whether a record counts only with a marker after it: a ledger's state, or a part of a marker."""
    return kind_of(record) in {RecordKind.LEDGER, RecordKind.MARKER_PART}


def check_version(log: str, number: int, record: bytes) -> None:
    """Refuse what a later release wrote: nothing older may be used in its place.

    :raises LogVersionError: a later release wrote the record
    """
    try:
        version = read_record(record).part.version
    except CursorFormatError:
        return
    if version > VERSION:
        raise LogVersionError(log, f"record {number}", version)


async def read_marker(log: Log, number: int) -> tuple[MarkerHead, dict[int, tuple[int, ...]]]:
    """Read the marker whose last record this is, and its bases; return also the numbers of each ledger's records.

    :raises CursorFormatError: a marker cannot be decoded
    :raises LogCorruptedError: a record is damaged
    :raises LogVersionError: a later release wrote one of them
    """
    chain = [await _read_one(log, number)]
    at = number
    while (base := chain[-1].base) is not None:
        if not base < at or len(chain) > _MAX_CHAIN:
            raise CursorFormatError("a marker", f"the one in record {at} builds on record {base}")
        chain.append(await _read_one(log, base))
        at = base
    references: dict[int, tuple[int, ...]] = {}
    strings: dict[str, str] = {}
    for marker in reversed(chain):
        for ledger in marker.dropped:
            references.pop(ledger, None)
        references.update(marker.references)
        if marker.cursor_properties is not None:
            strings = dict(marker.cursor_properties)
        change_properties(strings, marker.changed_properties)
    newest = chain[0]
    return MarkerHead(newest.sequence, MarkerContents(newest.mark_delete, newest.properties, strings)), references


def estimated_marker_size(count: int, properties: Mapping[str, str | None]) -> int:
    """Return about how many bytes a marker takes with this many ledgers and these properties; enough for decisions."""
    texts = sum(map(len, properties)) + sum(len(text or "") for text in properties.values())
    return _FIXED + _EACH * count + _EACH_TEXTS * len(properties) + texts


def marker_size(mark_delete: Position, ledgers: Iterable[int]) -> int:
    """Return how many bytes a marker takes that names these ledgers, written one after the other. O(ledgers)."""
    index = {ledger: StoredRecords((number,), 0) for number, ledger in enumerate(sorted(ledgers))}
    head = MarkerHead(1 << 34, MarkerContents(mark_delete, {}, {}))
    (record,) = encode_full_marker(head, index, limit=1 << 30)
    return len(record) + sum(varint_bytes(ledger) - 1 for ledger in index)


def properties_size(properties: Mapping[str, str]) -> int:
    """Return how many bytes cursor properties take in a marker; in the legacy format one more each."""
    total = 0
    for key, value in properties.items():
        lengths = len(key.encode()), len(value.encode())
        size = sum(1 + varint_bytes(length) + length for length in lengths)
        total += 1 + varint_bytes(size) + size
    return total


async def _read_one(log: Log, number: int) -> Marker:
    """Read the marker whose last record this is, without its bases."""
    records = await log.read(number, number)
    check_version(log.name, number, records[0])
    before = marker_parts(records[0]) - 1
    if before > number:
        raise CursorFormatError("a marker", f"its {before} other parts are not there")
    if before:
        records = [*await log.read(number - before, number - 1), *records]
    return decode_marker(records)


def _references(index: Mapping[int, StoredRecords]) -> dict[int, tuple[int, ...]]:
    return {ledger: stored.numbers for ledger, stored in index.items()}
