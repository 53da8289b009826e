"""A record: the generated classes of ``_cursor.proto``, its mark, and its parts. Needs the extra ``cursor``.

PIP-81 keeps the managed ledger's format and marks its records by properties, which are pairs of a name and a long. So
each record is a PositionInfo that any broker can read, and one of these properties, its *mark*, says of what kind it
is. The value of the mark is a number that the kind needs anyway:

``#acks.ledger``    a ledger's state, or a part of it: the ledger
``#acks.marker``    a marker, or the last part of one: its sequence number
``#acks.part``      another part of a marker: the sequence number of that
``#acks.sequence``  the legacy format, written here: its sequence number. A record without a mark, as Pulsar writes it,
                    is in the legacy format too

What would be too large as properties, such as a reference for each ledger or a bit set, is in a field whose number is
far above Pulsar's; brokers skip it. The rest means the same to a broker: a marker's position is the mark-delete
position, and the other records say "ledger 0, entry -1", before the first entry of all, so that a record that is read
by mistake acknowledges nothing.

A body that is larger than a record may be is split into *parts*, and joined again. Each part says its number, how many
parts there are, and the checksum of all of them together: so neither an incomplete set nor a mixture of two sets is
taken for a whole.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache
from importlib import import_module
from operator import sub
from sys import byteorder
from typing import Any, Final

from ..._check import INT64_MAX
from ...errors import CursorFormatError, InvalidArgumentError, MissingExtraError
from ...index import varint_bytes

LEDGER: Final = "#acks.ledger"
MARKER: Final = "#acks.marker"
MARKER_PART: Final = "#acks.part"
SEQUENCE: Final = "#acks.sequence"
_MARKS: Final = "#acks."
_FOREIGN: Final = "entry-type"
"""Marks what a later proposal of Pulsar (PIP-488) writes, whose positions mean something else."""
VERSION: Final = 1
_DESCRIPTION: Final = 2 * 4 + 5
"""At most what a part says beside its body: its number, the count, and the checksum."""
_RESERVED: Final = _DESCRIPTION + 18
"""At most what a record takes beside its envelope and its piece of the body: the description, and the lengths."""
_MIN_BODY: Final = 64

Envelope = Callable[[], Any]
"""Returns a new PositionInfo without its part."""


class RecordKind(Enum):
    """The kind of a record."""

    LEDGER = "a ledger's state"
    MARKER = "a marker"
    MARKER_PART = "a part of a marker"
    LEGACY = "the legacy format"
    FOREIGN = "something else"

    @property
    def needs_marker(self) -> bool:
        """Return whether such a record counts only with a marker after it."""
        return self in {RecordKind.LEDGER, RecordKind.MARKER_PART}


_KINDS: Final = {
    LEDGER: RecordKind.LEDGER,
    MARKER: RecordKind.MARKER,
    MARKER_PART: RecordKind.MARKER_PART,
    SEQUENCE: RecordKind.LEGACY,
}


@cache
def messages() -> Any:
    """Return the module of the generated classes: ``PositionInfo``, ``LedgerBody`` and ``MarkerBody``.

    :raises MissingExtraError: protobuf is not installed
    """
    try:
        return import_module("._cursor_pb2", __package__)
    except ImportError as error:
        raise MissingExtraError("the cursor", "protobuf>=5", "cursor") from error


def kind_of(record: bytes) -> RecordKind:
    """Return the kind of a record; of a marker in several parts only the last record is a marker. Never fails.

    :raises MissingExtraError: protobuf is not installed
    """
    try:
        info = read_record(record)
    except CursorFormatError:
        return RecordKind.FOREIGN
    return mark_of(info)[0]


def read_record(record: bytes) -> Any:
    """Return a record as a PositionInfo.

    :raises CursorFormatError: it cannot be read, or its position cannot exist
    """
    info = parse(messages().PositionInfo(), record, "record")
    if info.ledgerId < -1 or info.entryId < -1:
        raise CursorFormatError("record", f"there is no position {info.ledgerId}:{info.entryId}")
    _texts(info.properties, "name")
    return info


def mark_of(info: Any) -> tuple[RecordKind, int]:
    """Return the kind of a record and the number in its mark, 0 without a mark."""
    found = [(each.name, each.value) for each in info.properties if each.name.startswith(_MARKS)]
    if len(found) > 1 or any(each.name == _FOREIGN for each in info.properties):
        return RecordKind.FOREIGN, 0
    if not found:
        return (RecordKind.FOREIGN, 0) if info.HasField("part") else (RecordKind.LEGACY, 0)
    name, value = found[0]
    kind = _KINDS.get(name, RecordKind.FOREIGN)
    if value < 0 or info.HasField("part") == (kind is RecordKind.LEGACY):
        return RecordKind.FOREIGN, 0
    return kind, value


def expect_kind(record: bytes, kind: RecordKind) -> tuple[Any, int]:
    """Return the PositionInfo and the mark's number of a record that must be of this kind.

    :raises CursorFormatError: the record is of another kind
    """
    info = read_record(record)
    found, value = mark_of(info)
    if found is not kind:
        raise CursorFormatError("record", f"{kind.value} was expected, not {found.value}")
    return info, value


def parse(message: Any, data: bytes, part: str) -> Any:
    """Fill a protobuf message from bytes, and return it.

    :raises CursorFormatError: the bytes are no such message
    """
    from google.protobuf.message import DecodeError

    try:
        message.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError) as error:  # the latter where protobuf runs without its extension
        raise CursorFormatError(part, f"{len(data)} bytes that cannot be read: {error}") from error
    if not message.IsInitialized():
        raise CursorFormatError(part, f"fields are missing: {message.FindInitializationErrors()[:3]}")
    return message


def add_properties(info: Any, properties: Mapping[str, int], mark: str, value: int) -> None:
    """Write the mark of a record and the properties of its position.

    :raises InvalidArgumentError: a property has the name of a mark, or is no long
    """
    info.properties.add(name=mark, value=value)
    for name, long in properties.items():
        if name.startswith(_MARKS) or name == _FOREIGN:
            raise InvalidArgumentError("properties", name, "a name that is not used to mark records")
        if not -INT64_MAX - 1 <= long <= INT64_MAX:
            raise InvalidArgumentError("properties", long, "a number of 64 bits")
        info.properties.add(name=name, value=long)


def read_properties(info: Any) -> dict[str, int]:
    """Return the properties of a position, without marks."""
    return {each.name: each.value for each in info.properties if not each.name.startswith(_MARKS)}


def add_cursor_properties(fields: Any, properties: Mapping[str, str]) -> None:
    """Write cursor properties.

    :raises InvalidArgumentError: a name or value is no text that can be written
    """
    for name, value in properties.items():
        try:
            fields.add(name=name, value=value)
        except (UnicodeError, ValueError) as error:
            raise InvalidArgumentError("cursor_properties", (name, value), "text") from error


def read_cursor_properties(fields: Sequence[Any]) -> dict[str, str]:
    """Return cursor properties.

    :raises CursorFormatError: a name or value is no text
    """
    return dict(zip(_texts(fields, "name"), _texts(fields, "value"), strict=True))


def read_words(values: Sequence[int]) -> bytes:
    """Return 64-bit words, which are signed in Java, as bytes, lowest first."""
    words = array("q", values)
    if byteorder == "big":
        words.byteswap()
    return words.tobytes()


def deltas(values: Sequence[int]) -> list[int]:
    """Return the first number, then the difference of each number to the one before."""
    return [*values[:1], *map(sub, values[1:], values)]


def _texts(fields: Sequence[Any], name: str) -> list[str]:
    """Return this text of each field; for bytes that are no text, protobuf returns them or raises."""
    try:
        found = [getattr(each, name) for each in fields]
    except UnicodeDecodeError as error:
        raise CursorFormatError("property", f"its {name} is no text: {error}") from error
    for each in found:
        if not isinstance(each, str):
            raise CursorFormatError("property", f"its {name} is no text: {each!r}")
    return found


# --- parts ------------------------------------------------------------------------------------------------------------


def split_body(body: bytes, limit: int, *, last: Envelope, others: Envelope) -> list[bytes]:
    """Return the records of a body, none of them longer than the limit.

    :param last: makes the last record
    :param others: makes the records before it
    :raises InvalidArgumentError: the limit leaves no room beside what each record needs
    """
    whole = last()
    whole.part.body = body
    if whole.ByteSize() <= limit:
        return [bytes(whole.SerializeToString())]
    room = limit - _RESERVED - max(last().ByteSize(), others().ByteSize())
    if room < _MIN_BODY:
        raise InvalidArgumentError(
            "limit", limit, f"at least {limit - room + _MIN_BODY} bytes, for what is in each record"
        )
    pieces = [body[at : at + room] for at in range(0, len(body), room)]
    checksum = zlib.crc32(body)
    records = []
    for number, piece in enumerate(pieces):
        info = last() if number == len(pieces) - 1 else others()
        part = info.part
        part.number, part.count, part.checksum, part.body = number, len(pieces), checksum, piece
        records.append(bytes(info.SerializeToString()))
    return records


def split_size(body: int, envelope: int, limit: int) -> int:
    """Return how many bytes :func:`split_body` makes of a body of this size, if all envelopes are alike. O(parts).

    :param envelope: bytes of a PositionInfo without its part
    """
    size = envelope + _part_size(body, 0)
    if size <= limit:
        return size
    room = max(limit - _RESERVED - envelope, 1)
    count = -(-body // room)
    rest = body - (count - 1) * room
    total = count * envelope
    for number in range(count):
        description = 1 + varint_bytes(number) + 1 + varint_bytes(count) + 5
        total += _part_size(room if number < count - 1 else rest, description)
    return total


def join_parts(records: Sequence[bytes], last: RecordKind, others: RecordKind) -> tuple[bytes, Any, int]:
    """Return the body that some records are the parts of, the last PositionInfo, and the number of its mark.

    :param last: what the last record must be
    :param others: what the records before it must be
    :raises CursorFormatError: they are something else, or not exactly the parts of one body, in order
    """
    if not records:
        raise CursorFormatError(last.value, "there is no record")
    found = [expect_kind(record, others) for record in records[:-1]]
    found.append(expect_kind(records[-1], last))
    parts = [info.part for info, _ in found]
    final = parts[-1]
    for number, (info, mark) in enumerate(found):
        part = info.part
        if part.version > VERSION:
            raise CursorFormatError(last.value, f"it has version {part.version}, which a later release wrote")
        if (part.number, part.count) != (number, len(records)):
            raise CursorFormatError(
                last.value, f"part {part.number + 1} of {part.count} instead of part {number + 1} of {len(records)}"
            )
        if (mark, part.checksum) != (found[-1][1], final.checksum):
            raise CursorFormatError(last.value, "its parts do not belong together")
    body = b"".join(part.body for part in parts)
    if len(records) > 1 and zlib.crc32(body) != final.checksum:
        raise CursorFormatError(last.value, "the checksum of its parts does not match")
    return body, found[-1][0], found[-1][1]


def empty_record() -> Any:
    """Return a PositionInfo that acknowledges nothing."""
    return messages().PositionInfo(ledgerId=0, entryId=-1)


def _part_size(body: int, description: int) -> int:
    part = description + 1 + varint_bytes(body) + body
    return 2 + varint_bytes(part) + part
