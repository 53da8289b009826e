"""Markers: where the state of each ledger lies. The last record of a marker makes all that it names count.

A marker is *full*, or a *delta*: it names the record number of an earlier marker, its ``base``, and says what is
different. So a marker after a change in few of many ledgers is small. Ledgers and record numbers are written as
differences, two to four bytes for each ledger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import Any, Final

from ..._check import INT64_MAX
from ...errors import CursorFormatError, InvalidArgumentError
from ...ids import Position
from ._ledger_record import MAX_RECORD_BYTES
from ._parts import empty_record, join_parts, part_number, split_body
from ._protobuf import (
    MARKER,
    MARKER_PART,
    RecordKind,
    add_cursor_properties,
    add_properties,
    deltas,
    messages,
    parse,
    read_cursor_properties,
    read_properties,
)

_WHAT: Final = "a marker"


@dataclass(frozen=True, slots=True)
class Marker:
    """The contents of a marker.

    :param sequence: its sequence number, 0 <= n < 2**63
    :param mark_delete: the mark-delete position
    :param references: for each ledger, the numbers of the records that hold its state, in order; a delta has only those
        that differ from its ``base``
    :param properties: of the position, as Pulsar has them: names and longs
    :param cursor_properties: names and texts; None: those of ``base``, except for ``changed_properties``
    :param base: number of the last record of another marker; None: this one is full
    :param dropped: ledgers that ``base`` names and this marker does not
    :param changed_properties: cursor properties that differ from those of ``base``: names and texts, None for no longer
    """

    sequence: int
    mark_delete: Position
    references: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    properties: Mapping[str, int] = field(default_factory=dict)
    cursor_properties: Mapping[str, str] | None = field(default_factory=dict)
    base: int | None = None
    dropped: Sequence[int] = ()
    changed_properties: Mapping[str, str | None] = field(default_factory=dict)


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
        ledger, entry = marker.mark_delete
        info = messages().PositionInfo(ledgerId=ledger, entryId=entry)
        add_properties(info, marker.properties, MARKER, marker.sequence)
        return info

    return split_body(bytes(_body_of(marker).SerializeToString()), limit, last=last, others=other)


def marker_parts(record: bytes) -> int:
    """Return the number of records of the marker whose last record this is; the others lie right before it.

    :raises CursorFormatError: this is not the last record of a marker
    """
    number, count = part_number(record, RecordKind.MARKER)
    if number != count - 1:
        raise CursorFormatError(_WHAT, f"its last record is part {number + 1} of {count}")
    return count


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
    whole, changed = (None, {**removed, **strings}) if body.keepsProperties else (strings, {})
    position = Position(info.ledgerId, info.entryId)
    return Marker(sequence, position, references, read_properties(info), whole, base, tuple(dropped), changed)


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
    strings = marker.cursor_properties
    if strings is None:
        body.keepsProperties = True
        strings = {name: text for name, text in marker.changed_properties.items() if text is not None}
        removed = [name for name, text in marker.changed_properties.items() if text is None]
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
    if not all(-1 <= number <= INT64_MAX for number in marker.mark_delete):
        raise InvalidArgumentError("mark_delete", marker.mark_delete, "a position")
    for ledger, numbers in marker.references.items():
        if not 0 <= ledger <= INT64_MAX or not numbers or not all(0 <= number <= INT64_MAX for number in numbers):
            raise InvalidArgumentError("references", (ledger, numbers), "a ledger and the numbers of its records")
    if marker.base is None and (marker.dropped or marker.cursor_properties is None):
        raise InvalidArgumentError("base", None, "a record number, for a marker that leaves things out")
    if marker.cursor_properties is not None and marker.changed_properties:
        raise InvalidArgumentError("changed_properties", marker.changed_properties, "none beside all properties")
    if marker.base is not None and not 0 <= marker.base <= INT64_MAX:
        raise InvalidArgumentError("base", marker.base, "a record number")
    if not marker.references.keys().isdisjoint(marker.dropped) or not all(each >= 0 for each in marker.dropped):
        raise InvalidArgumentError("dropped", marker.dropped, "ledgers that the marker does not name")
