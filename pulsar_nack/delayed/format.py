"""The stored forms of delayed messages: snapshots, their logs, and the cursor properties that name them.

A snapshot is Pulsar's protobuf form of delayed indexes (see ``_snapshot.proto``), which needs the extra ``bucket``. A
segment can be encoded piece by piece: the concatenated parts of a repeated field are one message. So nothing here
blocks the loop for long; whatever takes long is a generator that can pause after each step.

Pulsar's properties are ``#pulsar.internal.delayed.bucket_<first ledger>_<last ledger>``, with the snapshot id as value.
Here a ledger range may have several buckets. The keys of the further ones are
``#pulsar.internal.delayed.part_<first ledger>_<last ledger>_<n>``, with n from 1; Pulsar ignores them.

The log ``snapshot-<digest>-<id>`` is sealed. Its records are the entries of the snapshot, the metadata first, and then
the *footer*, which describes them in JSON: the format, the bucket's key, topic, cursor, the number of entries, and the
entries that were too large for one record and take several. The seal is the commit point: a log without it is what a
crash left behind, or a truncated file.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Container, Generator, Iterable, Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from itertools import count
from operator import gt
from types import ModuleType
from typing import Any, Final, NamedTuple

from .._check import INT64_MAX
from ..config import DELAYED_PREFIX
from ..errors import LogVersionError, MissingExtraError, SnapshotFormatError
from ..index import MAX_ENTRY

__all__ = [
    "SNAPSHOT_LOG_NAME",
    "STEP",
    "Columns",
    "Footer",
    "Index",
    "NamedSnapshot",
    "SegmentRow",
    "bucket_key",
    "decode_footer",
    "decode_metadata",
    "decode_segment",
    "encode_indexes",
    "encode_metadata",
    "free_key",
    "named_snapshots",
    "read_metadata",
    "snapshot_log_name",
    "snapshot_protobuf",
    "split_entries",
    "subscription_digest",
]

STEP: Final = 256
"""How many indexes are processed before other tasks run: some tenths of a millisecond.

Only this many objects exist at a time, and they are released before other tasks run. More would trigger Python's
garbage collector, which blocks the loop for up to 20 ms.
"""

_SEGMENT: Final = "snapshot segment"
_METADATA: Final = "snapshot metadata"
_FORMAT: Final = 1
_BUCKET: Final = re.compile(re.escape(DELAYED_PREFIX) + r"bucket_(\d{1,19})_(\d{1,19})")
_PART: Final = re.compile(re.escape(DELAYED_PREFIX) + r"part_(\d{1,19})_(\d{1,19})_\d{1,9}")
_ID: Final = re.compile(r"\d{1,19}")
SNAPSHOT_LOG_NAME: Final = re.compile(r"snapshot-([0-9a-f]{32})-(\d{1,19})")
"""Matches the name of a snapshot's log; the groups are digest and snapshot id."""
Index = tuple[int, int, int]
"""Delivery time (epoch ms), ledger, entry. Messages come out in this order."""


class Columns:
    """Columns of times (epoch ms), ledgers and entries, of equal length; the caller appends in order."""

    __slots__ = ("entries", "ledgers", "times")

    def __init__(self, indexes: Iterable[Index] = ()) -> None:
        self.times: array[int] = array("q")
        self.ledgers: array[int] = array("q")
        self.entries: array[int] = array("q")
        for index in indexes:
            self.append(index)

    @classmethod
    def of_ledger(cls, ledger: int, entries: array[int], times: array[int]) -> Columns:
        """Return the indexes of one ledger, given in any order. 40 ns each in order, up to 300 ns otherwise."""
        columns = cls()
        if any(map(gt, entries, entries[1:])):
            order = sorted(range(len(entries)), key=entries.__getitem__)
            entries, times = _in_order(entries, order), _in_order(times, order)
        if any(map(gt, times, times[1:])):
            order = sorted(range(len(times)), key=times.__getitem__)  # stable: entries of equal times stay in order
            entries, times = _in_order(entries, order), _in_order(times, order)
        columns.times, columns.entries = array("q", times), array("q", entries)
        columns.ledgers = array("q", (ledger,)) * len(times)
        return columns

    def __len__(self) -> int:
        return len(self.times)

    def __getitem__(self, at: int) -> Index:
        return self.times[at], self.ledgers[at], self.entries[at]

    def __iter__(self) -> Iterator[Index]:
        return self.rest(0)

    def rest(self, at: int) -> Iterator[Index]:
        """Return the indexes from offset ``at`` on."""
        yield from zip(self.times[at:], self.ledgers[at:], self.entries[at:], strict=True)

    def part(self, at: int, to: int) -> Columns:
        """Return a copy of the indexes from offset ``at`` to before ``to``."""
        part = Columns()
        part.times, part.ledgers, part.entries = self.times[at:to], self.ledgers[at:to], self.entries[at:to]
        return part

    def extend(self, indexes: Sequence[Index]) -> None:
        """Append indexes."""
        self.times.fromlist([index[0] for index in indexes])
        self.ledgers.fromlist([index[1] for index in indexes])
        self.entries.fromlist([index[2] for index in indexes])

    def append(self, index: Index) -> None:
        """Append an index."""
        self.times.append(index[0])
        self.ledgers.append(index[1])
        self.entries.append(index[2])

    @property
    def bytes(self) -> int:
        """Return about how much memory the columns take."""
        return 24 * len(self.times) + 300


class SegmentRow(NamedTuple):
    """The metadata of one segment.

    ``min_at`` is None in snapshots of older brokers. ``bitmaps`` has a portable bitmap for each ledger.
    """

    min_at: int | None
    max_at: int
    bitmaps: Mapping[int, bytes]


@cache
def snapshot_protobuf() -> ModuleType:
    """Return the module of the generated protobuf classes.

    :raises MissingExtraError: protobuf is not installed
    """
    try:
        from . import _snapshot_pb2
    except ImportError as error:
        raise MissingExtraError("the bucket tracker", "protobuf>=5", "bucket") from error
    return _snapshot_pb2


def encode_indexes(indexes: Iterable[Index]) -> bytes:
    """Return a part of a segment; concatenated parts are a segment."""
    part = snapshot_protobuf().SnapshotSegment()
    add = part.indexes.add
    for at, ledger, entry in indexes:
        index = add()  # passing the fields as arguments takes a third longer
        index.timestamp = at
        index.ledger_id = ledger
        index.entry_id = entry
    return bytes(part.SerializeToString())


def encode_metadata(rows: Iterable[SegmentRow]) -> bytes:
    """Return entry 0 of a snapshot, or a part of it: concatenated parts are an entry, and equal rows equal bytes."""
    metadata = snapshot_protobuf().SnapshotMetadata()
    for row in rows:
        segment = metadata.metadata_list.add(max_schedule_timestamp=row.max_at)
        if row.min_at is not None:
            segment.min_schedule_timestamp = row.min_at
        for ledger, bitmap in row.bitmaps.items():
            segment.delayed_index_bit_map[ledger] = bitmap
    return bytes(metadata.SerializeToString(deterministic=True))


def decode_segment(data: bytes) -> Generator[None, None, Columns]:
    """Read a segment in steps and return its indexes in order of time.

    :raises SnapshotFormatError: the bytes are not a sound segment
    """
    read = _parse(snapshot_protobuf().SnapshotSegment(), data, _SEGMENT).indexes
    columns = Columns()
    for at in range(0, len(read), STEP):
        part = read[at : at + STEP]
        columns.times.extend(_column(part, "timestamp", INT64_MAX))
        columns.ledgers.extend(_column(part, "ledger_id", INT64_MAX))
        columns.entries.extend(_column(part, "entry_id", MAX_ENTRY))
        del part
        yield
    if any(map(gt, columns.times, columns.times[1:])):
        return Columns(sorted(columns))
    return columns


def decode_metadata(data: bytes) -> list[SegmentRow]:
    """Read entry 0 of a snapshot at once; it raises what :func:`read_metadata` raises."""
    steps = read_metadata(data)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            rows: list[SegmentRow] = done.value
            return rows


def read_metadata(data: bytes) -> Generator[None, None, list[SegmentRow]]:
    """Read entry 0 of a snapshot in steps. The bitmaps are not checked.

    :raises SnapshotFormatError: the bytes are not sound metadata
    """
    rows: list[SegmentRow] = []
    bitmaps = 0
    for read in _parse(snapshot_protobuf().SnapshotMetadata(), data, _METADATA).metadata_list:
        min_at = read.min_schedule_timestamp if read.HasField("min_schedule_timestamp") else None
        row = SegmentRow(min_at, read.max_schedule_timestamp, dict(read.delayed_index_bit_map))
        _check_row(row, len(rows))
        rows.append(row)
        bitmaps += 1 + len(row.bitmaps)
        if bitmaps >= STEP:
            bitmaps = 0
            yield
    if not rows:
        raise SnapshotFormatError(_METADATA, "there is no segment in it")
    return rows


def _parse(message: Any, data: bytes, part: str) -> Any:
    from google.protobuf.message import DecodeError

    if not data:
        raise SnapshotFormatError(part, "empty")
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise SnapshotFormatError(part, f"{len(data)} bytes that cannot be read: {error}") from error
    if not message.IsInitialized():
        raise SnapshotFormatError(part, f"fields are missing: {message.FindInitializationErrors()[:3]}")
    return message


def _column(indexes: Sequence[Any], field: str, highest: int) -> list[int]:
    values = [getattr(index, field) for index in indexes]
    if max(values) > highest:
        raise SnapshotFormatError(_SEGMENT, f"{field} {max(values)} is above {highest}")
    return values


def _check_row(row: SegmentRow, number: int) -> None:
    if row.max_at > INT64_MAX or (row.min_at is not None and row.min_at > row.max_at):
        raise SnapshotFormatError(_METADATA, f"segment {number + 1} is from {row.min_at} to {row.max_at}")
    if any(ledger > INT64_MAX for ledger in row.bitmaps):
        raise SnapshotFormatError(_METADATA, f"segment {number + 1} has a ledger above {INT64_MAX}")


def _in_order(values: array[int], order: Sequence[int]) -> array[int]:
    return array(values.typecode, map(values.__getitem__, order))


class NamedSnapshot(NamedTuple):
    """A cursor property that names a snapshot, and the snapshot's first and last ledger."""

    key: str
    snapshot_id: int
    start: int
    end: int


def bucket_key(start: int, end: int, number: int) -> str:
    """Return the key of a bucket: the ``number``-th of its ledger range, counted from 0."""
    return f"{DELAYED_PREFIX}part_{start}_{end}_{number}" if number else f"{DELAYED_PREFIX}bucket_{start}_{end}"


def free_key(start: int, end: int, taken: Container[str]) -> str:
    """Return the first key of a ledger range that is not taken."""
    keys = (bucket_key(start, end, number) for number in count())
    return next(key for key in keys if key not in taken)


def named_snapshots(properties: Mapping[str, str]) -> list[NamedSnapshot]:
    """Return the snapshots that cursor properties name, the widest first, so that a merged one precedes its sources.

    Malformed keys and values are skipped.
    """
    found = []
    for key, value in properties.items():
        match = _BUCKET.fullmatch(key) or _PART.fullmatch(key)
        if match and _ID.fullmatch(value) and int(match[1]) <= int(match[2]):
            found.append(NamedSnapshot(key, int(value), int(match[1]), int(match[2])))
    return sorted(found, key=lambda each: (each.start - each.end, each.start, -each.snapshot_id))


def snapshot_log_name(topic_name: str, cursor_name: str, snapshot_id: int) -> str:
    """Return the name of a snapshot's log."""
    return f"snapshot-{subscription_digest(topic_name, cursor_name)}-{snapshot_id}"


def subscription_digest(topic_name: str, cursor_name: str) -> str:
    """Return the digest of topic and cursor in the names of their snapshots' logs."""
    return sha256(json.dumps([topic_name, cursor_name]).encode()).hexdigest()[:32]


class Footer(NamedTuple):
    """The last record of a snapshot's log; ``parts`` has the number of records of each entry that takes several."""

    key: str
    topic: str
    cursor: str
    entries: int
    parts: Mapping[int, int]

    @property
    def records(self) -> int:
        """Return the number of records before the footer."""
        return self.entries + sum(self.parts.values()) - len(self.parts)

    def encode(self) -> bytes:
        """Return the footer's record."""
        parts = {str(entry): count for entry, count in self.parts.items()}
        return json.dumps({"format": _FORMAT, **self._asdict(), "parts": parts}).encode()


def decode_footer(data: bytes, log: str) -> Footer:
    """Read a footer.

    :raises ValueError: the record is not a sound footer
    :raises LogVersionError: a later release wrote it
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not _is_count(version := found.pop("format", None)):
        raise ValueError("its last record is not a footer")
    if version > _FORMAT:
        raise LogVersionError(log, "the footer", version)
    try:
        parts = {int(entry): count for entry, count in found.pop("parts").items()}
        footer = Footer(**found, parts=parts)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError("its footer is incomplete") from error
    if not all(map(_is_count, (footer.entries, *parts.values()))) or any(entry >= footer.entries for entry in parts):
        raise ValueError("its footer contradicts itself")
    return footer


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def split_entries(entries: Iterable[bytes], max_bytes: int) -> tuple[list[bytes], dict[int, int]]:
    """Return the records of some entries, each at most ``max_bytes``, and the footer's ``parts``."""
    records: list[bytes] = []
    parts: dict[int, int] = {}
    for number, entry in enumerate(entries):
        if len(entry) <= max_bytes:
            records.append(bytes(entry))
            continue
        pieces = [bytes(entry[at : at + max_bytes]) for at in range(0, len(entry), max_bytes)]
        records += pieces
        parts[number] = len(pieces)
    return records, parts
