"""The rows of a build, where their buckets end, and the logs that hold them: all as the bucket tracker has it. Pure.

*Buckets.* Before it adds an index, the tracker seals a bucket that has the least size if a new ledger begins, and one
that has the greatest size always. Whole arrays of rows are cut by these rules here, with at most one bucket and one
array in memory.

*Units.* The same rules divide the index into units that are built separately, with the same result as a build in one
go. A *block* is 65 536 entries of a ledger. The number of rows in each block determines at which blocks a bucket ends,
no matter who computes it and in how many parts. So a *unit* of work begins only where a bucket does, and knows how many
buckets come before it. A unit ends at the first such block after its target of rows. In a ledger so long that no bucket
ends at a block, a bucket with the least size is ended there, as the tracker ends an old one.

*Snapshots.* Segments are cut as the tracker cuts them, and encoded with numpy. The wire form is that of
``delayed/_snapshot.proto``. An index is at most 29 bytes and its length one byte, so all indexes of a bucket are
written into a table of bytes, a row each, and unused bytes are left out at the end. It takes about 0.1 us an index;
protobuf's objects take 0.5.

*Logs.* The logs of snapshots and of the cursor have the records that the tracker writes, but nothing is random: ids
count from 1 in order of position (the tracker's ids are times, which are larger), and the salt of a segment file is
computed from its name and content.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import pairwise
from typing import Final, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from .._check import INT64_MAX
from ..config import BucketConfig, CursorConfig
from ..cursor.format import Marker, MarkerContents, delayed_cursor, encode_marker, log_names
from ..delayed.format import Footer, SegmentRow, encode_metadata, snapshot_log_name, split_entries
from ..delayed.ticks import LATEST
from ..errors import InvalidArgumentError
from ..ids import Position
from ..index import MAX_ENTRY, portable_bitmap
from ..ledger.format import LOG, encode_frame, encode_segment_header, group_records, seed_of, segment_name

BLOCK_BITS: Final = 16
UNIT_ROWS: Final = 1_000_000
"""The target size of a unit: large enough that its start costs nothing, small enough that all cores have work."""

_APPEND: Final = 1 << 18
"""Bytes that the tracker writes, and later reads, together in a folder."""
SEGMENT_FILE: Final = segment_name(0)
CURSOR: Final = log_names(delayed_cursor("cursor")).log(1) + LOG

_INDEX: Final = 0x0A
"""Field 1 of a segment, a message with a length."""
_FIELDS: Final = (0x08, 0x10, 0x18)
"""Fields 1, 2 and 3 of an index, whole numbers: time, ledger, entry."""

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
"""A column of whole numbers."""
Block = tuple[int, int, int]
"""A ledger, the number of a block in it, and the number of rows in the block."""

BOUNDS: Final = {"ledger_id": INT64_MAX, "entry_id": MAX_ENTRY, "deliver_at": LATEST}
"""The highest value of each column; the lowest is 0."""
_EXPECTED: Final = {
    "ledger_id": "a ledger id from 0 to 2**63 - 1",
    "entry_id": "an entry id from 0 to 2**32 - 1",
    "deliver_at": "an epoch time in ms from 0 to 2**56 (leave out what is not delayed)",
}


class Rows(NamedTuple):
    """Delayed messages in order of position: ledgers, entries, and when each is due (epoch ms)."""

    ledgers: Longs
    entries: Longs
    times: Longs

    @property
    def length(self) -> int:
        """Return the number of rows."""
        return len(self.times)

    def part(self, at: int, to: int) -> Rows:
        """Return the rows from index ``at`` to before ``to``, not copied."""
        return Rows(self.ledgers[at:to], self.entries[at:to], self.times[at:to])


def refused(ledger: int | None, entry: int | None, deliver_at: int | None) -> InvalidArgumentError:
    """Return the error for a row; it names the first column with an invalid value."""
    values = {"ledger_id": ledger, "entry_id": entry, "deliver_at": deliver_at}
    field = next(name for name, value in values.items() if value is None or not 0 <= value <= BOUNDS[name])
    where = ", ".join(f"{name} {value}" for name, value in values.items() if name != field)
    return InvalidArgumentError(field, values[field], f"{_EXPECTED[field]} in the row with {where}")


def _duplicate(ledger: int, entry: int) -> InvalidArgumentError:
    """Return the error for a position of several rows."""
    expected = "each position once (a batch is one entry, and its messages are not delayed)"
    return InvalidArgumentError("df", f"ledger_id {ledger}, entry_id {entry} more than once", expected)


# --- buckets --------------------------------------------------------------------------------------------------------


def buckets_of(batches: Iterable[Rows], config: BucketConfig) -> Iterator[Rows]:
    """Yield rows that come in order of position a bucket at a time; the last one may be small.

    :raises InvalidArgumentError: two rows have the same position
    """
    waiting: list[Rows] = []
    length = 0
    for rows in _without_duplicates(batches):
        waiting.append(rows)
        length += rows.length
        if length > config.largest_bucket:
            rest = yield from _cut(_joined(waiting), config, keep=config.largest_bucket)
            waiting, length = [rest], rest.length
    if waiting:
        yield from _cut(_joined(waiting), config, keep=0)


def _without_duplicates(batches: Iterable[Rows]) -> Iterator[Rows]:
    last = (-1, -1)
    for rows in batches:
        if not rows.length:
            continue
        ledgers, entries = rows.ledgers, rows.entries
        if last == (int(ledgers[0]), int(entries[0])):
            raise _duplicate(*last)
        same = (ledgers[1:] == ledgers[:-1]) & (entries[1:] == entries[:-1])
        if same.any():
            at = int(np.argmax(same))
            raise _duplicate(int(ledgers[at]), int(entries[at]))
        last = int(ledgers[-1]), int(entries[-1])
        yield rows


def _joined(parts: list[Rows]) -> Rows:
    if len(parts) == 1:
        return parts[0]
    return Rows(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _cut(rows: Rows, config: BucketConfig, *, keep: int) -> Generator[Rows, None, Rows]:
    """Yield buckets until at most ``keep`` rows are left, and return those."""
    at = 0
    while rows.length - at > keep:
        end = at + _bucket_size(rows.ledgers[at:], config)
        yield rows.part(at, end)
        at = end
    return rows.part(at, rows.length)


def _bucket_size(ledgers: Longs, config: BucketConfig) -> int:
    """Return the size of the next bucket, which begins with the first of these rows."""
    min_size = config.delayed_delivery_min_index_count_per_bucket
    longest = min(config.largest_bucket, len(ledgers))
    window = ledgers[min_size - 1 : longest + 1]
    begins = np.flatnonzero(window[1:] != window[:-1])
    return min_size + int(begins[0]) if len(begins) else longest


# --- units ----------------------------------------------------------------------------------------------------------


class Unit(NamedTuple):
    """A range of positions that begins with ``(ledger, entry)`` and ends before the next unit does.

    :param first_id: the id of its first snapshot
    :param part: how many earlier buckets lie in its first ledger alone
    :param rows: the number of its rows
    :param last_ledger: the ledger of its last row
    """

    ledger: int
    entry: int
    first_id: int
    part: int
    rows: int
    last_ledger: int


def make_units(blocks: Iterable[Block], config: BucketConfig, target: int = UNIT_ROWS) -> list[Unit]:
    """Return the units of blocks, which are in order of position."""
    min_size, max_size = config.delayed_delivery_min_index_count_per_bucket, config.largest_bucket
    units: list[Unit] = []
    last_ledger = -1
    in_bucket = 0
    begins_here = True  # whether the current bucket began in the current ledger
    ended = 0  # how many buckets have ended
    parts = 0  # how many of them lie in the current ledger alone
    for ledger, number, rows in blocks:
        is_next = ledger != last_ledger
        is_long = bool(units) and units[-1].rows >= target
        if in_bucket >= min_size and (is_next or is_long):
            ended += 1
            parts += begins_here
            in_bucket, begins_here = 0, True
        if is_next:
            last_ledger, parts, begins_here = ledger, 0, not in_bucket
        if not units or (is_long and not in_bucket):
            units.append(Unit(ledger, 0 if is_next else number << BLOCK_BITS, ended + 1, parts, 0, ledger))
        units[-1] = units[-1]._replace(rows=units[-1].rows + rows, last_ledger=ledger)
        in_bucket += rows
        full = max(in_bucket - 1, 0) // max_size  # buckets of the greatest size; one of just that size goes on
        if full:
            ended += full
            parts += full - (not begins_here)
            in_bucket, begins_here = in_bucket - full * max_size, True
    return units


def split_evenly(units: Sequence[Unit], max_parts: int) -> list[Sequence[Unit]]:
    """Return units in at most ``max_parts`` parts of consecutive units."""
    each = -(-len(units) // max_parts) if units else 1
    return [units[at : at + each] for at in range(0, len(units), each)]


# --- snapshots --------------------------------------------------------------------------------------------------------


def encode_bucket(rows: Rows, config: BucketConfig) -> tuple[bytes, list[bytes]]:
    """Return the snapshot of a bucket: its metadata and its segments.

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
    return encode_metadata(metadata), segments


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


def snapshot_log(key: str, snapshot_id: int, metadata: bytes, segments: Sequence[bytes]) -> bytes:
    """Return the only segment file of a snapshot's log, which is sealed."""
    records, parts = split_entries((metadata, *segments), _APPEND)
    records.append(Footer(key, "", "", len(segments) + 1, parts).encode())
    salt = crc32(metadata, crc32(key.encode()))
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
