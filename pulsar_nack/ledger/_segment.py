"""Reading one segment file: walking its frames, finding a record, and telling a torn tail from damage.

A frame that a crash tore is the last thing in the last segment: either its header is good and the file ends where the
frame would at the latest, or its header is not, no later frame follows, and no more is there than one frame can have.
Everything else is damage. Of a segment that has a successor only the records before the successor's first one count:
what lies beyond them was never durable (an append failed there, and the log went on in a new file).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple, Self

from ..errors import LogCorruptedError, LogVersionError
from ._files import Files
from ._record import (
    FRAME_HEADER_SIZE,
    MAX_BODY,
    SEGMENT_HEADER_SIZE,
    Damaged,
    Frame,
    Incomplete,
    NewerVersion,
    decode_frame,
    decode_segment_header,
    has_later_frame,
)

_CHUNK: Final = 1 << 18
_INDEX_STEP: Final = 1 << 16


class Tail(NamedTuple):
    """Where the good part of the last segment ends, where its last frame begins, and what going on from there needs."""

    length: int
    last: int
    end: int
    is_sealed: bool
    salt: int


def cost(record: bytes) -> int:
    """Return about how many bytes a record takes in memory."""
    return len(record) + 64


class Index:
    """Where to start reading in a segment: one entry for each 64 KiB at most, 16 bytes each; for any thread."""

    def __init__(self, first: int) -> None:
        self._numbers = array("Q", [first])
        self._offsets = array("Q", [SEGMENT_HEADER_SIZE])
        self._lock = Lock()

    def add(self, number: int, offset: int) -> None:
        """Note that a frame begins here; it is kept when it is far enough behind the last one."""
        if offset < self._offsets[-1] + _INDEX_STEP:
            return
        with self._lock:
            if offset >= self._offsets[-1] + _INDEX_STEP:
                self._numbers.append(number)
                self._offsets.append(offset)

    def start_for(self, number: int) -> tuple[int, int]:
        """Return record number and offset of the last noted frame that does not begin after this record."""
        with self._lock:
            at = bisect_right(self._numbers, number) - 1
            return self._numbers[at], self._offsets[at]


class Segment:
    """One segment file of a log; blocking, for any thread: each reading has a descriptor of its own."""

    def __init__(self, files: Files, log: str, path: Path, first: int) -> None:
        self.files = files
        self.log = log
        self.path = path
        self.first = first
        self.index = Index(first)

    def read(self, first: int, last: int, limit: int) -> list[bytes]:
        """Return records ``first`` to ``last``, which are durable here; stop before ``limit`` bytes, but not at none.

        :raises LogCorruptedError: they are not there as they should be
        """
        records: list[bytes] = []
        with Walk(self, *self.index.start_for(first)) as walk:
            while walk.number <= last:
                begin, frame = walk.number, walk.step()
                if not isinstance(frame, Frame):
                    raise walk.damage(frame)
                for record in frame.records(max(first - begin, 0), last + 1 - begin):
                    limit -= cost(record)
                    if records and limit < 0:
                        return records
                    records.append(record)
        return records

    def find_tail(self) -> Tail:
        """Walk the whole file, the last of its log; what lies behind the returned end is a torn frame.

        :raises LogCorruptedError: there is damage that no crash explains
        """
        is_sealed, last = False, SEGMENT_HEADER_SIZE
        with Walk(self, self.first, SEGMENT_HEADER_SIZE) as walk:
            while walk.end < walk.size:
                if is_sealed:
                    raise walk.damage(Damaged("bytes after the seal", None))
                begin, frame = walk.end, walk.step()
                if isinstance(frame, Frame):
                    is_sealed, last = frame.is_seal, begin
                elif walk.is_torn(frame):
                    break
                else:
                    raise walk.damage(frame)
            return Tail(walk.number, last, walk.end, is_sealed, walk.salt)


class Walk:
    """Goes from frame to frame; ``end`` is the offset of the next one, ``number`` its first record."""

    def __init__(self, segment: Segment, number: int, end: int) -> None:
        self._segment = segment
        self.number = number
        self.end = end
        self._start = end
        self._buffer = b""

    def __enter__(self) -> Self:
        files = self._segment.files
        self._descriptor = files.open(self._segment.path)
        try:
            self.size = files.size(self._descriptor)
            self.salt = self._check_header()
        except BaseException:
            files.close(self._descriptor)
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        self._segment.files.close(self._descriptor)

    def step(self) -> Frame | Incomplete | Damaged:
        """Read the next frame; stay where it is not good, or not wholly there."""
        found = self._decode()
        if isinstance(found, Incomplete):
            self._fill(_CHUNK)
            found = self._decode()
        if isinstance(found, Incomplete) and found.size > _CHUNK:
            self._fill(found.size)
            found = self._decode()
        if isinstance(found, Frame):
            self._segment.index.add(self.number, self.end)
            self.number += found.length
            self.end = self._start + found.end
        return found

    def is_torn(self, found: Incomplete | Damaged) -> bool:
        """Return whether a crash while the last frame was being written explains what lies here."""
        if found.size is not None:
            return self.end + found.size >= self.size
        rest = self.size - self.end
        if rest > FRAME_HEADER_SIZE + MAX_BODY:
            return False
        return not has_later_frame(self._read(rest, self.end), 0, self.number, self.salt)

    def damage(self, found: Incomplete | Damaged) -> LogCorruptedError:
        """Return the error for what lies here."""
        reason = found.reason if isinstance(found, Damaged) else f"the file ends before the end of record {self.number}"
        return self._error(self.end, reason)

    def _decode(self) -> Frame | Incomplete | Damaged:
        return decode_frame(self._buffer, self.end - self._start, self.number, self.salt)

    def _fill(self, size: int) -> None:
        self._buffer, self._start = self._read(size, self.end), self.end

    def _check_header(self) -> int:
        segment, header = self._segment, decode_segment_header(self._read(SEGMENT_HEADER_SIZE, 0))
        if isinstance(header, NewerVersion):
            raise LogVersionError(segment.log, segment.path.name, header.version)
        if isinstance(header, Damaged):
            raise self._error(0, header.reason)
        if header.first != segment.first:
            raise self._error(0, f"it says that it begins with record {header.first}, its name says {segment.first}")
        return header.salt

    def _read(self, size: int, offset: int) -> bytes:
        return read_all(self._segment.files, self._descriptor, size, offset)

    def _error(self, offset: int, reason: str) -> LogCorruptedError:
        return LogCorruptedError(self._segment.log, self._segment.path.name, offset, reason)


def read_all(files: Files, descriptor: int, size: int, offset: int) -> bytes:
    """Read as many bytes as are there: the system may give fewer at a time."""
    parts = []
    while size and (part := files.read(descriptor, size, offset)):
        parts.append(part)
        size -= len(part)
        offset += len(part)
    return b"".join(parts)
