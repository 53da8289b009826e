"""Markers: where the state of each ledger lies. The last record of a marker makes all that it names count.

A marker is *full*, or a *delta*: it names the record number of an earlier marker, its ``base``, and says what is
different; it is read back over a chain of bases to a full one. A base always has a lower record number, so a chain
ends. So a marker after a change in few of many ledgers is small. Ledgers and record numbers are written as differences,
two to four bytes for each ledger. A *snapshot* is a marker that names no ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import Any, Final, NamedTuple

from ..._check import INT64_MAX
from ...errors import CursorFormatError, InvalidArgumentError, LogVersionError
from ...ids import Position
from ...index import varint_bytes
from ...ledger import Log
from ...ledger.format import MAX_BODY
from ._ledger import MAX_RECORD_BYTES
from ._record import (
    MARKER,
    MARKER_PART,
    VERSION,
    RecordKind,
    add_cursor_properties,
    add_properties,
    deltas,
    empty_record,
    expect_kind,
    join_parts,
    messages,
    parse,
    read_cursor_properties,
    read_properties,
    read_record,
    split_body,
)

_WHAT: Final = "a marker"
_MAX_PARTS: Final = 1 << 20
_MAX_CHAIN: Final = 10_000
_EACH: Final = 4
_EACH_TEXTS: Final = 6
_FIXED: Final = 60
_MAX_SNAPSHOT: Final = MAX_BODY - 4
"""Largest record of a log."""
_LENGTHS: Final = 16
"""At most what the lengths of a record's parts take beyond those of an empty record."""


class MarkerContents(NamedTuple):
    """The contents of a marker, without the places of the ledgers' states.

    :param mark_delete: the mark-delete position
    :param properties: of the position, as Pulsar has them: names and longs
    :param cursor_properties: names and texts
    """

    mark_delete: Position
    properties: Mapping[str, int]
    cursor_properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Marker:
    """A marker.

    :param sequence: its sequence number, 0 <= n < 2**63
    :param contents: what it says; a delta with ``changed_properties`` has no cursor properties
    :param references: for each ledger, the numbers of the records that hold its state, in order; a delta has only those
        that differ from its ``base``
    :param base: number of the last record of another marker; None: this one is full
    :param dropped: ledgers that ``base`` names and this marker does not
    :param changed_properties: cursor properties that differ from those of ``base``: names and texts, None for no
        longer; without it, the contents have all
    """

    sequence: int
    contents: MarkerContents
    references: Mapping[int, Sequence[int]] = field(default_factory=dict)
    base: int | None = None
    dropped: Sequence[int] = ()
    changed_properties: Mapping[str, str | None] | None = None


def encode_marker(marker: Marker, *, limit: int = MAX_RECORD_BYTES) -> list[bytes]:
    """Return the records of a marker: one, or several where one would be longer than the limit.

    :raises InvalidArgumentError: a value that no marker can have, or a limit that leaves no room
    :raises MissingExtraError: protobuf is not installed
    """
    _check(marker)

    def other() -> Any:
        info = empty_record()
        info.properties.add(name=MARKER_PART, value=marker.sequence)
        return info

    def last() -> Any:
        ledger, entry = marker.contents.mark_delete
        info = messages().PositionInfo(ledgerId=ledger, entryId=entry)
        add_properties(info, marker.contents.properties, MARKER, marker.sequence)
        return info

    return split_body(bytes(_body_of(marker).SerializeToString()), limit, last=last, others=other)


def marker_parts(record: bytes) -> int:
    """Return the number of records of the marker whose last record this is; the others lie right before it.

    :raises CursorFormatError: this is not the last record of a marker
    """
    part = expect_kind(record, RecordKind.MARKER)[0].part
    if part.number >= part.count or part.count > _MAX_PARTS:
        raise CursorFormatError(_WHAT, f"there is no part {part.number + 1} of {part.count}")
    if part.number != part.count - 1:
        raise CursorFormatError(_WHAT, f"its last record is part {part.number + 1} of {part.count}")
    return int(part.count)


def decode_marker(records: Sequence[bytes]) -> Marker:
    """Return the marker that consists of these records, all of them, in order.

    :raises CursorFormatError: they are something else, are not complete, or contradict themselves
    :raises MissingExtraError: protobuf is not installed
    """
    joined, info, sequence = join_parts(records, RecordKind.MARKER, RecordKind.MARKER_PART)
    body = parse(messages().MarkerBody(), joined, _WHAT)
    base = body.base if body.HasField("base") else None
    references = _read_references(body)
    dropped = _ascending(body.dropped)
    if (base is None and (dropped or body.keepsProperties)) or (base is not None and base > INT64_MAX):
        raise CursorFormatError(_WHAT, f"its base is record {base}")
    if body.removedProperties and not body.keepsProperties:
        raise CursorFormatError(_WHAT, "it removes properties, and has all of them")
    if not references.keys().isdisjoint(dropped):
        raise CursorFormatError(_WHAT, "it names ledgers that it drops")
    strings = read_cursor_properties(body.cursorProperties)
    removed = dict.fromkeys(read_cursor_properties(body.removedProperties))
    whole, changed = ({}, {**removed, **strings}) if body.keepsProperties else (strings, None)
    contents = MarkerContents(Position(info.ledgerId, info.entryId), read_properties(info), whole)
    return Marker(sequence, contents, references, base, tuple(dropped), changed)


def encode_snapshot(snapshot: Marker) -> bytes:
    """Return the record of a snapshot.

    :raises InvalidArgumentError: the properties do not fit into one record
    """
    record, *others = encode_marker(snapshot, limit=_MAX_SNAPSHOT)
    if others:
        size = properties_size(snapshot.contents.cursor_properties)
        raise InvalidArgumentError("properties", f"{size:,} bytes", f"room for them in {_MAX_SNAPSHOT:,} bytes")
    return record


def properties_room(properties: Mapping[str, int], limit: int = _MAX_SNAPSHOT) -> int:
    """Return how many bytes of cursor properties fit into any snapshot, or any record of at most ``limit`` bytes.

    :param properties: of the position, which are in the record too
    """
    longest = Marker(INT64_MAX, MarkerContents(Position(INT64_MAX, INT64_MAX), properties, {}))
    return min(limit, _MAX_SNAPSHOT) - len(encode_snapshot(longest)) - _LENGTHS


async def read_marker(log: Log, number: int) -> Marker:
    """Read the marker whose last record this is, and its bases; return it as a full one.

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
    references: dict[int, Sequence[int]] = {}
    strings: dict[str, str] = {}
    for marker in reversed(chain):
        for ledger in marker.dropped:
            references.pop(ledger, None)
        references.update(marker.references)
        if marker.changed_properties is None:
            strings = dict(marker.contents.cursor_properties)
        else:
            change_properties(strings, marker.changed_properties)
    newest = chain[0]
    return Marker(newest.sequence, newest.contents._replace(cursor_properties=strings), references)


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


def estimated_marker_size(count: int, properties: Mapping[str, str | None]) -> int:
    """Return about how many bytes a marker takes with this many ledgers and these properties; enough for decisions."""
    texts = sum(map(len, properties)) + sum(len(text or "") for text in properties.values())
    return _FIXED + _EACH * count + _EACH_TEXTS * len(properties) + texts


def marker_size(mark_delete: Position, ledgers: Iterable[int]) -> int:
    """Return how many bytes a marker takes that names these ledgers, written one after the other. O(ledgers)."""
    references = {ledger: (number,) for number, ledger in enumerate(sorted(ledgers))}
    marker = Marker(1 << 34, MarkerContents(mark_delete, {}, {}), references)
    (record,) = encode_marker(marker, limit=1 << 30)
    return len(record) + sum(varint_bytes(ledger) - 1 for ledger in references)


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


def _body_of(marker: Marker) -> Any:
    body = messages().MarkerBody()
    ledgers = sorted(marker.references)
    body.ledgers.extend(deltas(ledgers))
    counts = [len(marker.references[ledger]) for ledger in ledgers]
    if any(count != 1 for count in counts):
        body.counts.extend(counts)
    body.numbers.extend(deltas([number for ledger in ledgers for number in marker.references[ledger]]))
    if marker.base is not None:
        body.base = marker.base
        body.dropped.extend(deltas(sorted(marker.dropped)))
    strings, changed = marker.contents.cursor_properties, marker.changed_properties
    if changed is not None:
        body.keepsProperties = True
        strings = {name: text for name, text in changed.items() if text is not None}
        removed = [name for name, text in changed.items() if text is None]
        add_cursor_properties(body.removedProperties, dict.fromkeys(removed, ""))
    add_cursor_properties(body.cursorProperties, strings)
    return body


def _read_references(body: Any) -> dict[int, tuple[int, ...]]:
    ledgers = _ascending(body.ledgers)
    counts: Sequence[int] = body.counts or [1] * len(ledgers)
    numbers = list(accumulate(body.numbers))
    if len(counts) != len(ledgers) or not all(counts) or sum(counts) != len(numbers):
        raise CursorFormatError(_WHAT, f"{len(ledgers)} ledgers, {sum(counts)} records, {len(numbers)} numbers")
    if numbers and not 0 <= min(numbers) <= max(numbers) <= INT64_MAX:
        raise CursorFormatError(_WHAT, f"it names records {min(numbers)} to {max(numbers)}")
    if len(set(numbers)) != len(numbers):
        raise CursorFormatError(_WHAT, "it names a record twice")
    remaining = iter(numbers)
    return {ledger: tuple(islice(remaining, count)) for ledger, count in zip(ledgers, counts, strict=True)}


def _ascending(differences: Sequence[int]) -> list[int]:
    ledgers = list(accumulate(differences))
    if ledgers and (ledgers[-1] > INT64_MAX or not all(differences[1:])):
        raise CursorFormatError(_WHAT, "its ledgers do not ascend")
    return ledgers


def _check(marker: Marker) -> None:
    """Refuse a marker that could not be read again."""
    if not 0 <= marker.sequence <= INT64_MAX:
        raise InvalidArgumentError("sequence", marker.sequence, "0 to 2**63 - 1")
    if not all(-1 <= number <= INT64_MAX for number in marker.contents.mark_delete):
        raise InvalidArgumentError("mark_delete", marker.contents.mark_delete, "a position")
    for ledger, numbers in marker.references.items():
        if not 0 <= ledger <= INT64_MAX or not numbers or not all(0 <= number <= INT64_MAX for number in numbers):
            raise InvalidArgumentError("references", (ledger, numbers), "a ledger and the numbers of its records")
    if marker.base is None and (marker.dropped or marker.changed_properties is not None):
        raise InvalidArgumentError("base", None, "a record number, for a marker that leaves things out")
    if marker.changed_properties is not None and marker.contents.cursor_properties:
        raise InvalidArgumentError("changed_properties", marker.changed_properties, "none beside all properties")
    if marker.base is not None and not 0 <= marker.base <= INT64_MAX:
        raise InvalidArgumentError("base", marker.base, "a record number")
    if not marker.references.keys().isdisjoint(marker.dropped) or not all(each >= 0 for each in marker.dropped):
        raise InvalidArgumentError("dropped", marker.dropped, "ledgers that the marker does not name")
