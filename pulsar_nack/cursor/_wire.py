"""The generated classes of ``_cursor.proto``, and how records are told apart. Needs the extra ``cursor``.

PIP-81 leaves the managed ledger's format as it is and marks its records by properties, which are pairs of a name and a
long. So each record is a PositionInfo that any broker can read, and one of these properties says what it is; its value
is a number that the kind needs anyway, lest the mark costs more than it must:

``#acks.ledger``    a ledger's state, or a part of it: the ledger
``#acks.marker``    a marker, or the last part of one: its sequence number
``#acks.part``      another part of a marker: the sequence number of that
``#acks.sequence``  the old form, written here: its sequence number. A record without any mark is the old form too

What the properties cannot hold at a bearable price, a reference for each ledger or a bit set, is in a field whose
number is far above Pulsar's. A broker that does not know it skips it. What it makes of the rest is true: a marker's
position is the mark-delete position, and the other records say "ledger 0, entry -1", before the first entry of all, so
that one that is read by mistake claims nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from operator import sub
from sys import byteorder
from types import ModuleType
from typing import Any, Final

from ..errors import CursorFormatError, InvalidArgumentError, MissingExtraError
from ..ids import Position

LEDGER: Final = "#acks.ledger"
MARKER: Final = "#acks.marker"
MARKER_PART: Final = "#acks.part"
SEQUENCE: Final = "#acks.sequence"
NOWHERE: Final = Position(0, -1)
"""The position of records that have none: it claims nothing."""
INT64_MAX: Final = 2**63 - 1
_MARKS: Final = "#acks."
_FOREIGN: Final = "entry-type"
"""Marks what a later proposal of Pulsar (PIP-488) writes, whose positions mean something else."""


class Kind(Enum):
    """What a record is."""

    LEDGER = "a ledger's state"
    MARKER = "a marker"
    MARKER_PART = "a part of a marker"
    SINGLE = "the old form"
    FOREIGN = "something else"


_KINDS: Final = {LEDGER: Kind.LEDGER, MARKER: Kind.MARKER, MARKER_PART: Kind.MARKER_PART, SEQUENCE: Kind.SINGLE}


@cache
def messages() -> ModuleType:
    """Return the generated classes.

    :raises MissingExtraError: protobuf is not installed
    """
    try:
        from . import _cursor_pb2
    except ImportError as error:
        raise MissingExtraError("the cursor", "protobuf>=5", "cursor") from error
    return _cursor_pb2


def kind_of(record: bytes) -> Kind:
    """Return what a record is; the marker of several parts is the last one. Never fails.

    :raises MissingExtraError: protobuf is not installed
    """
    try:
        info = read_record(record)
    except CursorFormatError:
        return Kind.FOREIGN
    return mark_of(info)[0]


def read_record(record: bytes) -> Any:
    """Return the PositionInfo that a record is.

    :raises CursorFormatError: it is none
    """
    info = parse(messages().PositionInfo(), record, "record")
    if info.ledgerId < -1 or info.entryId < -1:
        raise CursorFormatError("record", f"there is no position {info.ledgerId}:{info.entryId}")
    _texts(info.properties, "name")
    return info


def mark_of(info: Any) -> tuple[Kind, int]:
    """Return what a PositionInfo is, and the number that its mark says, 0 without one."""
    found = [(each.name, each.value) for each in info.properties if each.name.startswith(_MARKS)]
    if len(found) > 1 or any(each.name == _FOREIGN for each in info.properties):
        return Kind.FOREIGN, 0
    if not found:
        return (Kind.FOREIGN, 0) if info.HasField("part") else (Kind.SINGLE, 0)
    name, value = found[0]
    kind = _KINDS.get(name, Kind.FOREIGN)
    if value < 0 or info.HasField("part") == (kind is Kind.SINGLE):
        return Kind.FOREIGN, 0
    return kind, value


def expect(record: bytes, kind: Kind) -> tuple[Any, int]:
    """Return the PositionInfo and the mark's number of a record that must be of this kind.

    :raises CursorFormatError: it is something else
    """
    info = read_record(record)
    found, value = mark_of(info)
    if found is not kind:
        raise CursorFormatError("record", f"{kind.value} was expected, not {found.value}")
    return info, value


def parse(message: Any, data: bytes, part: str) -> Any:
    """Fill a message from bytes, and return it.

    :raises CursorFormatError: they are not such a message
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
    """Write the properties of a position, and the mark of the record.

    :raises InvalidArgumentError: one has the name of a mark, or is no long
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


def add_strings(fields: Any, properties: Mapping[str, str]) -> None:
    """Write cursor properties.

    :raises InvalidArgumentError: one is no text that can be written
    """
    for name, value in properties.items():
        try:
            fields.add(name=name, value=value)
        except (UnicodeError, ValueError) as error:
            raise InvalidArgumentError("cursor_properties", (name, value), "text") from error


def read_strings(fields: Sequence[Any]) -> dict[str, str]:
    """Return cursor properties.

    :raises CursorFormatError: one is no text
    """
    return dict(zip(_texts(fields, "name"), _texts(fields, "value"), strict=True))


def read_words(values: Sequence[int]) -> bytes:
    """Return 64-bit words, which are signed in Java, as bytes, lowest first."""
    words = array("q", values)
    if byteorder == "big":
        words.byteswap()
    return words.tobytes()


def deltas(values: Sequence[int]) -> list[int]:
    """Return the first of some numbers, and how much higher each of the others is than the one before."""
    return [*values[:1], *map(sub, values[1:], values)]


def _texts(fields: Sequence[Any], name: str) -> list[str]:
    """Return a text of each field; protobuf gives bytes, or its own error, for what is none."""
    try:
        found = [getattr(each, name) for each in fields]
    except UnicodeDecodeError as error:
        raise CursorFormatError("property", f"its {name} is no text: {error}") from error
    for each in found:
        if not isinstance(each, str):
            raise CursorFormatError("property", f"its {name} is no text: {each!r}")
    return found
