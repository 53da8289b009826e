"""Encodes the snapshots of buckets and the logs of an index, in the forms of the bucket tracker. Pure.

Segments of a snapshot are cut as the tracker cuts them, and encoded with numpy. The wire form is that of
``delayed/format/_snapshot.proto``. An index is at most 29 bytes and its length one byte, so all indexes of a bucket are
written into a table of bytes, a row each, and unused bytes are left out at the end. It takes about 0.1 us an index;
protobuf's objects take 0.5.

The logs of snapshots and of the cursor have the records that the tracker writes, but nothing is random: ids count from
1 in order of position (the tracker's ids are times, which are larger), and the salt of a segment file is computed from
its name and content.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import pairwise
from typing import Final, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from ..config import BucketConfig, CursorConfig
from ..cursor.format import Marker, MarkerContents, delayed_cursor, encode_marker, log_names
from ..delayed.format import (
    Footer,
    SegmentRow,
    encode_metadata,
    snapshot_log_name,
    split_entries,
)
from ..ids import Position
from ..index import portable_bitmap
from ..ledger.format import LOG, encode_frame, encode_segment_header, group_records, seed_of, segment_name
from ._build_buckets import Longs, Rows

_APPEND: Final = 1 << 18
"""Bytes that the tracker writes, and later reads, together in a folder."""
SEGMENT_FILE: Final = segment_name(0)
CURSOR: Final = log_names(delayed_cursor("cursor")).log(1) + LOG

_INDEX: Final = 0x0A
"""Field 1 of a segment, a message with a length."""
_FIELDS: Final = (0x08, 0x10, 0x18)
"""Fields 1, 2 and 3 of an index, whole numbers: time, ledger, entry."""

Bytes = npt.NDArray[np.uint8]


class BucketSnapshot(NamedTuple):
    """A snapshot: its metadata, its segments, and its earliest and latest time."""

    metadata: bytes
    segments: list[bytes]
    first_at: int
    last_at: int


def encode_bucket(rows: Rows, config: BucketConfig) -> BucketSnapshot:
    """Return the snapshot of a bucket.

    :param rows: at least one row, in order of position, without duplicates
    """
    order = _order(rows.times)
    times, ledgers, entries = rows.times[order], rows.ledgers[order], rows.entries[order]
    packed, starts = _encode_indexes(times, ledgers, entries)
    segments, metadata = [], []
    max_indexes = config.delayed_delivery_max_indexes_per_bucket_snapshot_segment
    for at, to in _segments(times, config.segment_step_ms, max_indexes):
        segments.append(packed[starts[at] : starts[to]].tobytes())
        places = np.sort(order[at:to])  # back in order of position
        bitmaps = dict(_bitmaps(rows.ledgers[places], rows.entries[places]))
        metadata.append(SegmentRow(int(times[at]), int(times[to - 1]), bitmaps))
    return BucketSnapshot(encode_metadata(metadata), segments, int(times[0]), int(times[-1]))


def _order(times: Longs) -> Longs:
    """Return the indexes that sort the times; equal times keep their order."""
    lowest, bits = int(times.min()), len(times).bit_length()
    if (int(times.max()) - lowest) >> (62 - bits):
        return np.argsort(times, kind="stable")
    keys = (times - lowest << bits) | np.arange(len(times))
    keys.sort()
    places: Longs = keys & (1 << bits) - 1
    return places


def _segments(times: Longs, step_ms: int, max_indexes: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each segment."""
    at, end = 0, len(times)
    while at < end:
        to = at + int(
            np.searchsorted(times[at : at + max_indexes] if max_indexes > 0 else times[at:], times[at] + step_ms)
        )
        yield at, to
        at = to


def _encode_indexes(times: Longs, ledgers: Longs, entries: Longs) -> tuple[Bytes, Longs]:
    """Return all encoded indexes, and the byte at which each begins, followed by the end."""
    columns = [(column, _widths(column)) for column in (times, ledgers, entries)]
    max_widths = [int(widths.max()) for _, widths in columns]
    length = sum(widths for _, widths in columns) + len(_FIELDS)
    table = np.empty((len(times), 2 + len(_FIELDS) + sum(max_widths)), np.uint8)
    table[:, 0] = _INDEX
    table[:, 1] = length
    is_used = np.ones(table.shape, np.bool_) if any(int(each.min()) != each.max() for _, each in columns) else None
    at = 2
    for field, (column, widths), width in zip(_FIELDS, columns, max_widths, strict=True):
        table[:, at] = field
        _fill(table[:, at + 1 : at + 1 + width], column, widths)
        if is_used is not None:
            is_used[:, at + 1 : at + 1 + width] = np.arange(width, dtype=np.uint8) < widths[:, None]
        at += 1 + width
    starts = np.zeros(len(times) + 1, np.int64)
    np.cumsum(length, out=starts[1:], dtype=np.int64)
    starts += 2 * np.arange(len(starts))
    return table.ravel() if is_used is None else table[is_used], starts


def _widths(numbers: Longs) -> Bytes:
    """Return the size of each number as a varint."""
    widths = np.ones(len(numbers), np.uint8)
    highest, bits = int(numbers.max()), 7
    while highest >> bits:
        widths += numbers >= 1 << bits
        bits += 7
    return widths


def _fill(table: Bytes, numbers: Longs, widths: Bytes) -> None:
    for byte in range(table.shape[1]):
        low = (numbers >> 7 * byte).astype(np.uint8)
        table[:, byte] = np.where(widths > byte + 1, low | 0x80, low & 0x7F)


def _bitmaps(ledgers: Longs, entries: Longs) -> Iterator[tuple[int, bytes]]:
    """Yield each ledger with a portable bitmap of its entries."""
    begins = [0, *(np.flatnonzero(ledgers[1:] != ledgers[:-1]) + 1).tolist(), len(ledgers)]
    numbers = array("I", entries.astype(np.uint32).tobytes())
    for at, to in pairwise(begins):
        yield int(ledgers[at]), portable_bitmap(numbers[at:to])


# --- logs -------------------------------------------------------------------------------------------------------------


def snapshot_folder(snapshot_id: int) -> str:
    """Return the name of the folder of a snapshot's log."""
    return snapshot_log_name("", "", snapshot_id) + LOG


def snapshot_log(key: str, snapshot_id: int, snapshot: BucketSnapshot) -> bytes:
    """Return the only segment file of a snapshot's log, which is sealed."""
    records, parts = split_entries((snapshot.metadata, *snapshot.segments), _APPEND)
    records.append(Footer(key, "", "", len(snapshot.segments) + 1, parts).encode())
    salt = crc32(snapshot.metadata, crc32(key.encode()))
    return b"".join(_frames(snapshot_folder(snapshot_id), records, salt, is_sealed=True))


def cursor_log(named: Iterable[tuple[str, int]]) -> bytes:
    """Return the only segment file of the cursor's log: it names these snapshots, and nothing is acknowledged."""
    properties = {key: str(snapshot_id) for key, snapshot_id in named}
    marker = Marker(1, MarkerContents(Position(0, -1), {}, properties))
    records = encode_marker(marker, limit=CursorConfig().max_entry_bytes)
    salt = int.from_bytes(sha256(b"".join(records)).digest()[:4])
    return b"".join(_frames(CURSOR, records, salt, is_sealed=False))


def _frames(folder: str, records: Sequence[bytes], salt: int, *, is_sealed: bool) -> Iterator[bytes]:
    log = folder.removesuffix(LOG)
    yield encode_segment_header(0, salt, log)
    first, seed = 0, seed_of(salt, log)
    for group in group_records(records, _APPEND):
        yield encode_frame(first, group, seed)
        first += len(group)
    if is_sealed:
        yield encode_frame(first, (), seed)
