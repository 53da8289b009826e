"""What a consumer's log holds, and how it is written.

A *change* is appended as it happens; a *page* and an *entry* are parts of the picture that compaction writes in place
of many changes. All numbers are little endian; the first byte of a record is the version (4 bits) and the kind. An id
is kept by what makes it equal to itself, with its topic: the rest of it comes again with the message.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from ...ids import MessageId

VERSION: Final = 1
NO_ID: Final = MessageId(-1, -1)
_MOST_COUNT: Final = (1 << 32) - 1
_CHANGE: Final = struct.Struct("<BqqIqqiii")
_PAGE: Final = struct.Struct("<BqiqII")
_ENTRY: Final = struct.Struct("<BqqqiiI")
_RANGES: Final = struct.Struct("<BqqiII")
MOST_RANGES: Final = 1 << 11
"""In one record."""
_RANGE_BYTES: Final = 3
"""What a range takes, about: the entries before it and in it, 7 bits of a number in a byte."""


class Kind(IntEnum):
    """What a record says; the numbers are on storage."""

    NACKED = 1
    """Negatively acknowledged: ``time_ms`` is the deadline."""
    SHOWN = 2
    """Given to the user; ``time_ms`` is when."""
    SETTLED = 3
    """Acknowledged."""
    THROUGH = 4
    """Acknowledged up to and including this id."""
    CLEARED = 5
    """Everything forgotten: the subscription was moved."""
    OPENED = 6
    """The consumer came back."""
    PAGE = 7
    ENTRY = 8
    RANGES = 9
    AWAY = 10
    """There was no connection, from ``time_ms`` on."""
    CONFIRMED = 11
    """The broker keeps what was acknowledged."""


class Change(NamedTuple):
    """Something that happened, at ``at_ms`` (epoch); ``redeliveries`` counts the times that it was shown before."""

    kind: Kind
    id: MessageId
    at_ms: int
    time_ms: int
    redeliveries: int = 0


class Page(NamedTuple):
    """Unsettled messages of up to 256 entries: a column for each of what is known of them."""

    ledger: int
    partition: int
    number: int
    topic: str | None
    keys: array[int]
    times: array[int]
    counts: array[int]


class EntryAcks(NamedTuple):
    """Which members of a batch are acknowledged: a bit for each."""

    id: MessageId
    at_ms: int
    acked: int

    @property
    def is_done(self) -> bool:
        """Return whether all of them are."""
        return self.acked.bit_count() >= self.id.batch_size


class RangeAcks(NamedTuple):
    """Entries of a ledger that are acknowledged as a whole: (first, last), ascending, both included.

    The time is that of the youngest acknowledgement; ``id`` is any entry's.
    """

    id: MessageId
    at_ms: int
    ranges: Sequence[tuple[int, int]]


Item = Change | Page | EntryAcks | RangeAcks


class UnreadableRecordError(Exception):
    """A record that no release up to this one writes; ``version`` is what it says of itself."""

    def __init__(self, version: int, reason: str) -> None:
        self.version = version
        super().__init__(reason)


def encode_change(change: Change) -> bytes:
    """Return a change as bytes."""
    kind, message_id, at_ms, time_ms, count = change
    ledger, entry, partition, batch_index = message_id
    topic = message_id.topic
    return _CHANGE.pack(
        VERSION << 4 | kind,
        at_ms,
        time_ms,
        min(count, _MOST_COUNT),
        ledger,
        entry,
        partition,
        batch_index,
        message_id.batch_size,
    ) + (topic.encode() if topic else b"")


def encode_page(page: Page) -> bytes:
    """Return a page as bytes."""
    topic = (page.topic or "").encode()
    head = _PAGE.pack(VERSION << 4 | Kind.PAGE, page.ledger, page.partition, page.number, len(page.keys), len(topic))
    return b"".join([head, topic, *map(_column_bytes, (page.keys, page.times, page.counts))])


def encode_entry(entry: EntryAcks) -> bytes:
    """Return the acknowledged members of a batch as bytes."""
    topic = (entry.id.topic or "").encode()
    ledger, number, partition, _ = entry.id
    size = entry.id.batch_size
    head = _ENTRY.pack(VERSION << 4 | Kind.ENTRY, entry.at_ms, ledger, number, partition, size, len(topic))
    return head + topic + entry.acked.to_bytes((size + 7) // 8, "little")


def encode_ranges(acks: RangeAcks) -> bytes:
    """Return ranges as bytes."""
    topic = (acks.id.topic or "").encode()
    numbers = bytearray()
    end = 0
    for first, last in acks.ranges:
        _write_number(numbers, first - end)
        _write_number(numbers, last - first)
        end = last + 1
    head = VERSION << 4 | Kind.RANGES, acks.at_ms, acks.id.ledger, acks.id.partition, len(acks.ranges), len(topic)
    return _RANGES.pack(*head) + topic + numbers


def batch_bytes(topic: str | None, size: int) -> int:
    """Return what the acknowledgements of a batch of this size take, or a ledger's without its ranges: size 0."""
    return _ENTRY.size + len(topic or "") + (size + 7) // 8


def ranges_bytes(count: int) -> int:
    """Return about what so many ranges take."""
    return _RANGE_BYTES * count


def decode(data: bytes) -> Item:
    """Return what a record says.

    :raises UnreadableRecordError: it is none of ours, or of a later release
    """
    version, kind = divmod(data[0] if data else 0, 16)
    if version != VERSION:
        raise UnreadableRecordError(version, f"a record of version {version}")
    try:
        if kind == Kind.PAGE:
            return _decode_page(data)
        if kind == Kind.ENTRY:
            return _decode_entry(data)
        if kind == Kind.RANGES:
            return _decode_ranges(data)
        return _decode_change(Kind(kind), data)
    except (struct.error, ValueError, IndexError) as error:
        raise UnreadableRecordError(VERSION, str(error)) from error


def _decode_change(kind: Kind, data: bytes) -> Change:
    _, at_ms, time_ms, count, ledger, entry, partition, batch_index, batch_size = _CHANGE.unpack_from(data)
    topic = _topic(data[_CHANGE.size :])
    message_id = MessageId(ledger, entry, partition, batch_index, batch_size=batch_size, topic=topic)
    return Change(kind, message_id, at_ms, time_ms, count)


def _decode_page(data: bytes) -> Page:
    _, ledger, partition, number, length, topic_length = _PAGE.unpack_from(data)
    at = _PAGE.size + topic_length
    columns = []
    for code in ("Q", "q", "I"):
        column = array(code)
        end = at + length * column.itemsize
        column.frombytes(data[at:end])
        if len(column) != length:
            raise ValueError("a page that ends too soon")
        columns.append(_swapped(column))
        at = end
    return Page(ledger, partition, number, _topic(data[_PAGE.size : _PAGE.size + topic_length]), *columns)


def _decode_entry(data: bytes) -> EntryAcks:
    _, at_ms, ledger, entry, partition, size, topic_length = _ENTRY.unpack_from(data)
    end = _ENTRY.size + topic_length
    topic = _topic(data[_ENTRY.size : end])
    message_id = MessageId(ledger, entry, partition, batch_size=size, topic=topic)
    return EntryAcks(message_id, at_ms, int.from_bytes(data[end:], "little"))


def _decode_ranges(data: bytes) -> RangeAcks:
    _, at_ms, ledger, partition, count, topic_length = _RANGES.unpack_from(data)
    at = _RANGES.size + topic_length
    topic = _topic(data[_RANGES.size : at])
    ranges = []
    end = 0
    for _ in range(count):
        gap, at = _read_number(data, at)
        length, at = _read_number(data, at)
        ranges.append((end + gap, end + gap + length))
        end += gap + length + 1
    if at != len(data) or end > 1 << 63:
        raise ValueError("ranges that end elsewhere")
    return RangeAcks(MessageId(ledger, 0, partition, topic=topic), at_ms, ranges)


def _write_number(into: bytearray, number: int) -> None:
    """Append a number, 7 bits in each byte, the lowest first; the last byte is below 128."""
    while number > 127:
        into.append(number & 127 | 128)
        number >>= 7
    into.append(number)


def _read_number(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and where the next one begins."""
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return number, at
        shift += 7


def _topic(data: bytes) -> str | None:
    return sys.intern(data.decode()) if data else None


def _column_bytes(column: array[int]) -> bytes:
    return _swapped(column).tobytes()


def _swapped(column: array[int]) -> array[int]:
    """Return a column in the other byte order where this machine's is not that of storage."""
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column
