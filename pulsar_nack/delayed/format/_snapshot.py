"""Delayed indexes, and Pulsar's protobuf form of a snapshot (see ``_snapshot.proto``). Needs the extra ``bucket``.

A segment can be encoded piece by piece: the concatenated parts of a repeated field are one message. So nothing here
blocks the loop for long; whatever takes long is a generator that can pause after each step.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from functools import cache
from operator import gt
from types import ModuleType
from typing import Any, Final, NamedTuple

from ..._check import INT64_MAX
from ...errors import MissingExtraError, SnapshotFormatError
from ...index import MAX_ENTRY

STEP: Final = 256
"""How many indexes are processed before other tasks run: some tenths of a millisecond.

Only this many objects exist at a time, and they are released before other tasks run. More would trigger Python's
garbage collector, which blocks the loop for up to 20 ms.
"""

_SEGMENT: Final = "snapshot segment"
_METADATA: Final = "snapshot metadata"
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
