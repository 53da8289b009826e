"""The records of a durable consumer's log, and their bytes.

A *change* is appended when it happens. A *page*, a *batch* and *ranges* are parts of the snapshot that replaces many
changes. All numbers are little endian; the first byte of a record is the version (4 bits) and the kind. A record has
the fields that make ids equal, and the topic; the other fields of an id are known when its message arrives.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from ..._varint import read_varint, write_varint
from ...ids import MessageId

RECORD_VERSION: Final = 1
NO_ID: Final = MessageId(-1, -1)
DEFERRED_FIRST: Final = (1 << 32) - 1
"""The stored count of a message that was deferred in its first attempt: -1, as its next delivery has the count 0."""
_CHANGE: Final = struct.Struct("<BqqIqqiii")
_PAGE: Final = struct.Struct("<BqiqII")
_BATCH: Final = struct.Struct("<BqqqiiI")
_RANGES: Final = struct.Struct("<BqqiII")
MAX_RANGES: Final = 1 << 11
"""The maximum of ranges in a record."""
MAX_BATCH: Final = 1 << 20
"""Far more messages than a broker takes in a batch."""
_MAX_ENTRIES: Final = 1 << 32
"""The most entries that a record may stand for when it is read: a short record could name any number."""
_RANGE_BYTES: Final = 3
"""About what a range takes: its distance to the range before and its length, as varints."""


class RecordKind(IntEnum):
    """The kind of a record; the numbers are on storage."""

    NACKED = 1
    """Negatively acknowledged: ``time_ms`` is the deadline."""
    DELIVERED = 2
    """Delivered to the application, at ``time_ms``."""
    ACKED = 3
    """Acknowledged."""
    CUMULATIVE_ACK = 4
    """Acknowledged up to and including this id."""
    CLEARED = 5
    """The whole state is dropped: the subscription was moved."""
    OPENED = 6
    """The consumer was opened."""
    PAGE = 7
    BATCH = 8
    RANGES = 9
    DISCONNECTED = 10
    """There was no connection from ``time_ms`` on."""
    CONFIRMED = 11
    """The broker has stored all acknowledgements."""


class Change(NamedTuple):
    """An event at ``at_ms`` (epoch); ``redeliveries`` counts the deliveries before this one; -1: deferred at first."""

    kind: RecordKind
    id: MessageId
    at_ms: int
    time_ms: int
    redeliveries: int = 0

    def encode(self) -> bytes:
        """Return the bytes of the record."""
        kind, message_id, at_ms, time_ms, count = self
        ledger, entry, partition, batch_index = message_id
        head = (RECORD_VERSION << 4 | kind, at_ms, time_ms, stored_count(count), ledger, entry, partition, batch_index)
        return _CHANGE.pack(*head, message_id.batch_size) + (message_id.topic or "").encode()


class PendingPage(NamedTuple):
    """The pending messages of up to 256 entries, in columns: keys, times and redelivery counts."""

    ledger: int
    partition: int
    number: int
    topic: str | None
    keys: array[int]
    times: array[int]
    counts: array[int]

    def encode(self) -> bytes:
        """Return the bytes of the record."""
        topic = (self.topic or "").encode()
        head = (RECORD_VERSION << 4 | RecordKind.PAGE, self.ledger, self.partition, self.number)
        columns = map(_column_bytes, (self.keys, self.times, self.counts))
        return b"".join([_PAGE.pack(*head, len(self.keys), len(topic)), topic, *columns])


class BatchAcks(NamedTuple):
    """The acknowledged messages of a batch, a bit for each."""

    id: MessageId
    at_ms: int
    acked: int

    @property
    def is_done(self) -> bool:
        """Return whether the whole batch is acknowledged."""
        return self.acked.bit_count() >= self.id.batch_size

    def encode(self) -> bytes:
        """Return the bytes of the record."""
        topic = (self.id.topic or "").encode()
        ledger, entry, partition, _ = self.id
        size = self.id.batch_size
        head = (RECORD_VERSION << 4 | RecordKind.BATCH, self.at_ms, ledger, entry, partition, size)
        return _BATCH.pack(*head, len(topic)) + topic + self.acked.to_bytes((size + 7) // 8, "little")


class RangeAcks(NamedTuple):
    """Acknowledged entries of a ledger, as ascending ranges (first, last), both included.

    ``at_ms`` is the time of the newest acknowledgement; ``id`` is that of any entry.
    """

    id: MessageId
    at_ms: int
    ranges: Sequence[tuple[int, int]]

    def encode(self) -> bytes:
        """Return the bytes of the record."""
        topic = (self.id.topic or "").encode()
        numbers = bytearray()
        end = 0
        for first, last in self.ranges:
            write_varint(numbers, first - end)
            write_varint(numbers, last - first)
            end = last + 1
        head = (RECORD_VERSION << 4 | RecordKind.RANGES, self.at_ms, self.id.ledger, self.id.partition)
        return _RANGES.pack(*head, len(self.ranges), len(topic)) + topic + numbers


Record = Change | PendingPage | BatchAcks | RangeAcks


class UnreadableRecordError(Exception):
    """A record that no release up to this one writes; ``version`` is its version."""

    def __init__(self, version: int, reason: str) -> None:
        self.version = version
        super().__init__(reason)


def stored_count(count: int) -> int:
    """Return a redelivery count as it is stored, in 32 bits without a sign."""
    return DEFERRED_FIRST if count < 0 else min(count, DEFERRED_FIRST - 1)


def count_of(stored: int) -> int:
    """Return the redelivery count of a stored one."""
    return -1 if stored == DEFERRED_FIRST else stored


def batch_bytes(topic: str | None, size: int) -> int:
    """Return the size of a batch's record in bytes; of a ledger's record without its ranges for size 0."""
    return _BATCH.size + len(topic or "") + (size + 7) // 8


def ranges_bytes(count: int) -> int:
    """Return about how many bytes ``count`` ranges take."""
    return _RANGE_BYTES * count


def decode_record(data: bytes) -> Record:
    """Read a record.

    :raises UnreadableRecordError: these bytes are not a record, or a later release wrote it
    """
    version, kind = divmod(data[0] if data else 0, 16)
    if version != RECORD_VERSION:
        raise UnreadableRecordError(version, f"a record of version {version}")
    try:
        if kind == RecordKind.PAGE:
            return _decode_page(data)
        if kind == RecordKind.BATCH:
            return _decode_batch(data)
        if kind == RecordKind.RANGES:
            return _decode_ranges(data)
        return _decode_change(RecordKind(kind), data)
    except (struct.error, ValueError, IndexError) as error:
        raise UnreadableRecordError(RECORD_VERSION, str(error)) from error


def _decode_change(kind: RecordKind, data: bytes) -> Change:
    _, at_ms, time_ms, count, ledger, entry, partition, batch_index, batch_size = _CHANGE.unpack_from(data)
    topic = _topic(data[_CHANGE.size :])
    message_id = MessageId(ledger, entry, partition, batch_index, batch_size=batch_size, topic=topic)
    return Change(kind, message_id, at_ms, time_ms, count_of(count))


def _decode_page(data: bytes) -> PendingPage:
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
    return PendingPage(ledger, partition, number, _topic(data[_PAGE.size : _PAGE.size + topic_length]), *columns)


def _decode_batch(data: bytes) -> BatchAcks:
    _, at_ms, ledger, entry, partition, size, topic_length = _BATCH.unpack_from(data)
    end = _BATCH.size + topic_length
    topic = _topic(data[_BATCH.size : end])
    message_id = MessageId(ledger, entry, partition, batch_size=size, topic=topic)
    acked = int.from_bytes(data[end:], "little")
    if size > MAX_BATCH or acked.bit_length() > size:
        raise ValueError("a batch that no broker has")
    return BatchAcks(message_id, at_ms, acked)


def _decode_ranges(data: bytes) -> RangeAcks:
    _, at_ms, ledger, partition, count, topic_length = _RANGES.unpack_from(data)
    at = _RANGES.size + topic_length
    topic = _topic(data[_RANGES.size : at])
    ranges = []
    end = 0
    for _ in range(count):
        gap, at = read_varint(data, at)
        length, at = read_varint(data, at)
        ranges.append((end + gap, end + gap + length))
        end += gap + length + 1
    if at != len(data) or end > 1 << 63:
        raise ValueError("ranges that end elsewhere")
    if sum(last - first + 1 for first, last in ranges) > _MAX_ENTRIES:
        raise ValueError(f"ranges of more than {_MAX_ENTRIES} entries")
    return RangeAcks(MessageId(ledger, 0, partition, topic=topic), at_ms, ranges)


def _topic(data: bytes) -> str | None:
    return sys.intern(data.decode()) if data else None


def _column_bytes(column: array[int]) -> bytes:
    return _swapped(column).tobytes()


def _swapped(column: array[int]) -> array[int]:
    """Return a column in the byte order of storage, or back, on machines with the other one."""
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column
