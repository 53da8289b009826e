"""The layout of logs in a folder: names of files and folders, and segment files; pure functions from and to bytes.

In the store's folder, for a log ``NAME``::

    NAME.log/                                    the log
    NAME.log/00000000000000000042.segment        its records from 42 on
    NAME.log/00000000000000000042.segment.new    a segment that is being made
    NAME.log.new/                                a log that is being made
    NAME.log.gone/                               a deleted log whose files are not removed yet
    NAME.lock                                    locked by the process that writes, makes or deletes the log

Anything else is foreign and is left alone.

A segment is a header followed by frames. A frame holds the records that became durable together, in one write and one
sync. It is the unit of damage: at most one frame of a log is unsynced, so after a crash everything before the last
frame is whole, and any bytes of the last frame may be missing, even in its middle. Layout, big endian::

    segment  magic "PNLG" | version u16 | flags u16 (0) | first record number u64 | salt u32 | crc of the log's name u32
             | crc u32
    frame    first record number u64 | body length u32 | record count u32 | crc of these u32 | crc of body u32 | body
    body     one length u32 for each record, then the records

- Both checksums of a frame start from a *seed*, the checksum of the segment's random salt and the log's name. The
  body's checksum continues the header's. So bytes of another file, log or offset never pass for a frame.
- The header has its own checksum, so that a length is verified before memory is allocated for it.
- A frame without records is the seal: nothing ever follows it.

The checksum is CRC-32 (zlib): it is in the standard library and fast.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple
from zlib import crc32

from ..errors import InvalidArgumentError

__all__ = [
    "FOREIGN",
    "FRAME_HEADER_SIZE",
    "GONE",
    "LOCK",
    "LOG",
    "MAX_BODY",
    "NEW",
    "SEGMENT_HEADER_SIZE",
    "Damaged",
    "Frame",
    "Incomplete",
    "NewerVersion",
    "body_size",
    "check_name",
    "decode_frame",
    "decode_segment_header",
    "encode_frame",
    "encode_segment_header",
    "find_heads",
    "find_seed",
    "frame_size",
    "group_records",
    "has_later_frame",
    "is_log_file",
    "log_of",
    "record_count",
    "seed_of",
    "segment_first",
    "segment_name",
]

LOG: Final = ".log"
LOCK: Final = ".lock"
NEW: Final = ".new"
GONE: Final = ".gone"
_NAME: Final = re.compile(r"[A-Za-z0-9_#][A-Za-z0-9_.#-]{0,199}")
_SEGMENT_NAME: Final = re.compile(r"(\d{20})\.segment")
MAGIC: Final = b"PNLG"
VERSION: Final = 1
_SEGMENT: Final = struct.Struct(">4sHHQIII")
_FRAME: Final = struct.Struct(">QIIII")
_CRC: Final = struct.Struct(">I")
SEGMENT_HEADER_SIZE: Final = _SEGMENT.size
FRAME_HEADER_SIZE: Final = _FRAME.size
MAX_BODY: Final = (1 << 24) - 1
"""The largest body of a frame: 16 MiB."""


def check_name(name: object) -> str:
    """Return ``name`` if a log can have it, or raise."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgumentError(
            "name", name, "1 to 200 letters, digits, or any of _ - . #, not beginning with - or ."
        )
    return name


def segment_name(first: int) -> str:
    """Return the file name of the segment whose first record is ``first``."""
    return f"{first:020}.segment"


def segment_first(name: str) -> int | None:
    """Return the number of a segment's first record, or None if this is not the name of a segment."""
    match = _SEGMENT_NAME.fullmatch(name)
    return int(match[1]) if match and int(match[1]) < 1 << 63 else None


def is_log_file(name: str) -> bool:
    """Return whether a file in a log's folder belongs to the log."""
    return segment_first(name.removesuffix(NEW)) is not None


def log_of(name: str, *suffixes: str) -> str | None:
    """Return the log's name if a name in the store's folder ends in one of these suffixes."""
    for suffix in suffixes:
        log = name.removesuffix(suffix)
        if log != name and _NAME.fullmatch(log):
            return log
    return None


class Frame(NamedTuple):
    """A whole frame: the number of its first record, its record count, its verified body, its end in the buffer."""

    first: int
    length: int
    body: memoryview
    end: int

    @property
    def is_seal(self) -> bool:
        """Return whether this frame is the seal."""
        return not self.length

    def records(self, start: int = 0, stop: int | None = None) -> list[bytes]:
        """Return copies of records ``start`` to ``stop`` of this frame, as a slice does."""
        head = 4 * self.length
        lengths = struct.unpack_from(f">{self.length}I", self.body)
        ends = list(accumulate(lengths[:stop], initial=head))
        return [bytes(self.body[begin:end]) for begin, end in pairwise(ends[start:])]


class Incomplete(NamedTuple):
    """The buffer ends before the frame, which needs at least ``size`` bytes in all."""

    size: int


class Damaged(NamedTuple):
    """There is no good frame here.

    ``size`` is that of the whole frame if its header is good, 0 if the header belongs to another place, else None.
    """

    reason: str
    size: int | None


FOREIGN: Final = Damaged("it is a segment of another log", None)


class NewerVersion(NamedTuple):
    """A later release wrote the segment, in this version of the format."""

    version: int


def seed_of(salt: int, log: str) -> int:
    """Return the start value of frame checksums for a segment of ``log`` with this salt."""
    return crc32(log.encode(), salt)


def encode_segment_header(first: int, salt: int, log: str) -> bytes:
    """Return the header of a segment file of ``log``."""
    data = _SEGMENT.pack(MAGIC, VERSION, 0, first, salt, crc32(log.encode()), 0)[: -_CRC.size]
    return data + _CRC.pack(crc32(data))


def decode_segment_header(data: bytes, log: str) -> tuple[int, int] | Damaged | NewerVersion:
    """Read the header of a segment file: the number of its first record, and the seed of its frames' checksums.

    Return :data:`FOREIGN` if the file belongs to another log.
    """
    if len(data) < _SEGMENT.size:
        return Damaged(f"only {len(data)} of the {_SEGMENT.size} bytes of a header", None)
    magic, version, flags, first, salt, owner, crc = _SEGMENT.unpack_from(data)
    if magic != MAGIC:
        return Damaged(f"it begins with {magic!r}, not {MAGIC!r}", None)
    if crc != crc32(data[: _SEGMENT.size - _CRC.size]):
        return Damaged("checksum of the segment header", None)
    if version != VERSION or flags:
        return NewerVersion(version)
    if owner != crc32(log.encode()):
        return FOREIGN
    return first, seed_of(salt, log)


def frame_size(records: Sequence[bytes]) -> int:
    """Return how many bytes a frame of these records takes."""
    return _FRAME.size + body_size(records)


def body_size(records: Sequence[bytes]) -> int:
    """Return how many bytes these records take in a frame's body; :data:`MAX_BODY` is the limit."""
    return 4 * len(records) + sum(map(len, records))


def group_records(records: Iterable[bytes], max_bytes: int) -> Iterator[list[bytes]]:
    """Group records into appends of about ``max_bytes`` each, at least one record."""
    group: list[bytes] = []
    size = 0
    for record in records:
        if group and size + len(record) + 4 > max_bytes:
            yield group
            group, size = [], 0
        group.append(record)
        size += len(record) + 4
    if group:
        yield group


def encode_frame(first: int, records: Sequence[bytes], seed: int) -> bytes:
    """Return a frame with these records; without any, the seal."""
    lengths = struct.pack(f">{len(records)}I", *map(len, records))
    body = b"".join((lengths, *records))
    head = struct.pack(">QII", first, len(body), len(records))
    head_crc = crc32(head, seed)
    return b"".join((head, _CRC.pack(head_crc), _CRC.pack(crc32(body, head_crc)), body))


def decode_frame(buffer: bytes, at: int, first: int, seed: int) -> Frame | Incomplete | Damaged:
    """Read the frame that begins at ``at``, whose first record must have the number ``first``."""
    if len(buffer) - at < _FRAME.size:
        return Incomplete(_FRAME.size)
    if not _is_head(buffer, at, seed):
        return Damaged("checksum of a frame header", None)
    number, length = _FRAME.unpack_from(buffer, at)[:2]
    if number != first:
        return Damaged(f"record {number} where {first} was expected", 0)
    size = _FRAME.size + length
    if len(buffer) - at < size:
        return Incomplete(size)
    frame = _decode_body(buffer, at)
    return Damaged(f"checksum of the records from {first}", size) if frame is None else frame


def has_later_frame(buffer: bytes, at: int, first: int, seed: int) -> bool:
    """Return whether a frame header with a record number beyond ``first`` lies anywhere from ``at`` on.

    If so, the bytes at ``at`` were durable once and are damaged; if not, a crash may have torn the last frame there.
    """
    return next((number > first for _, number in find_heads(buffer, at, first, seed)), False)


def find_heads(buffer: bytes, at: int, first: int, seed: int, size: int = 0) -> Iterator[tuple[int, int]]:
    """Find the good frame headers in a buffer from ``at`` on; yield their offsets and record numbers.

    :param first: a record number; only record numbers that can follow within ``size`` bytes are found
    :param size: how many bytes there are in all, if more than the buffer has
    """
    prefixes = {number.to_bytes(8, "big")[:4] for number in (first, first + max(len(buffer), size))}
    for prefix in sorted(prefixes):
        not_zero = b"" if any(prefix) else rb"(?!\0{4})"  # keeps long runs of zeros cheap
        likely = re.compile(b"(?=" + re.escape(prefix) + not_zero + rb"....\0...\0)", re.DOTALL)
        for match in likely.finditer(buffer, at):
            start = match.start()
            if len(buffer) - start >= _FRAME.size and _is_head(buffer, start, seed):
                yield start, int.from_bytes(buffer[start : start + 8], "big")


def find_seed(data: bytes, first: int, log: str) -> int | None:
    """Return the seed of a segment whose header is damaged; None if it cannot be found, or is that of another log.

    The salt in the header may be undamaged. If not, the seed is computed from the checksum of the first frame's header,
    because a CRC can be run backwards. A whole first frame proves either result.

    :param data: the beginning of the segment
    :param first: the number of its first record
    """
    at = SEGMENT_HEADER_SIZE
    if len(data) < at + _FRAME.size or decode_segment_header(data, log) == FOREIGN:
        return None
    salt, stored = _SEGMENT.unpack_from(data)[4], _FRAME.unpack_from(data, at)[3]
    for seed in (seed_of(salt, log), _crc_before(stored, data[at : at + _FRAME.size - 8])):
        found = decode_frame(data, at, first, seed)
        if isinstance(found, Frame) and not (found.is_seal and data[:4] != MAGIC):  # zeros look like a seal
            return int(seed)
    return None


def record_count(buffer: bytes, at: int) -> int:
    """Return the record count in a good frame header."""
    return int(_FRAME.unpack_from(buffer, at)[2])


def _crc_before(after: int, data: bytes) -> int:
    """Return the checksum that ``data`` turned into ``after``: zlib's CRC run backwards, a byte at a time."""
    table = [crc32(bytes([low]), 0xFFFFFFFF) ^ 0xFFFFFFFF for low in range(256)]
    by_high = {value >> 24: low for low, value in enumerate(table)}
    state = after ^ 0xFFFFFFFF
    for byte in reversed(data):
        low = by_high[state >> 24]
        state = (((state ^ table[low]) << 8) & 0xFFFFFFFF) | (low ^ byte)
    return state ^ 0xFFFFFFFF


def _is_head(buffer: bytes, at: int, seed: int) -> bool:
    _, length, count, head_crc, _ = _FRAME.unpack_from(buffer, at)
    fits = 4 * count <= length <= MAX_BODY and (length == 0) == (count == 0)
    return fits and crc32(buffer[at : at + _FRAME.size - 8], seed) == int(head_crc)


def _decode_body(buffer: bytes, at: int) -> Frame | None:
    first, length, count, head_crc, body_crc = _FRAME.unpack_from(buffer, at)
    body = memoryview(buffer)[at + _FRAME.size : at + _FRAME.size + length]
    if crc32(body, head_crc) != body_crc:
        return None
    if 4 * count + sum(struct.unpack_from(f">{count}I", body)) != length:
        return None
    return Frame(first, count, body, at + _FRAME.size + length)
