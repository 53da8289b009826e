"""Reading segment files: going through their frames, finding a record, distinguishing a torn tail from damage.

A frame that a crash tore is the last thing in the last segment. Either its header is good and the file ends no later
than the frame would; or its header is not, no later frame follows, and no more bytes are left than one frame can have.
Everything else is damage. If a segment has a successor, only records before the successor's first one count: what lies
beyond was never durable (an append failed there, and the log went on in a new file).

Damage loses the frames that it lies in, and no others. Reading continues at the next whole frame, which its checksums
prove, and whose header shows how many records are missing in between (a *hole*).

:func:`scan` finds all damage of a log. Nothing can be appended to such a log: nobody knows how many records it had.
Where damage reaches the end of the log, only good headers show how many records there were. At least one counts as lost
then, so that a reader that reads to the end meets the damage.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Final, Self

from ..errors import LogCorruptedError, LogVersionError
from ._protocol import LogDamage
from .files import Files, read_all
from .format import (
    FOREIGN,
    FRAME_HEADER_SIZE,
    MAX_BODY,
    SEGMENT_HEADER_SIZE,
    Damaged,
    Frame,
    Incomplete,
    NewerVersion,
    decode_frame,
    decode_segment_header,
    find_heads,
    find_seed,
    has_later_frame,
    record_count,
    segment_name,
)

__all__ = ["FrameReader", "Segment", "record_cost", "scan"]

_CHUNK: Final = 1 << 18
_INDEX_STEP: Final = 1 << 16


def record_cost(record: bytes) -> int:
    """Return about how many bytes a record takes in memory."""
    return len(record) + 64


class Segment:
    """One segment file of a log; blocking, for any thread: each read opens its own descriptor.

    It keeps the offsets of some frames, at most one in 64 KiB, 16 bytes each.
    """

    def __init__(self, files: Files, log: str, path: Path, first: int) -> None:
        self.files = files
        self.log = log
        self.path = path
        self.first = first
        self._numbers = array("Q", [first])
        self._offsets = array("Q", [SEGMENT_HEADER_SIZE])
        self._index_lock = Lock()
        self._holes: list[tuple[int, int, int, str]] = []
        self.seed: int | None = None
        """The seed, if the header is damaged and the seed was found; None: the header is read and checked."""

    def note_frame(self, number: int, offset: int, *, step: int = _INDEX_STEP) -> None:
        """Note where a frame begins, unless it is less than ``step`` bytes behind the last noted one."""
        if offset < self._offsets[-1] + step:
            return
        with self._index_lock:
            if offset >= self._offsets[-1] + step:
                self._numbers.append(number)
                self._offsets.append(offset)

    def _start_for(self, number: int) -> tuple[int, int]:
        """Return record number and offset of the last noted frame at or before this record."""
        with self._index_lock:
            at = bisect_right(self._numbers, number) - 1
            return self._numbers[at], self._offsets[at]

    def read(self, first: int, last: int, limit: int, stop: int) -> list[bytes]:
        """Return records ``first`` to ``last``, at least one, about ``limit`` bytes at most, and none behind damage.

        :param stop: the number after the last durable record of this segment
        :raises LogCorruptedError: the first record is lost
        """
        self._check_holes(first)
        records: list[bytes] = []
        with FrameReader(self, *self._start_for(first)) as reader:
            while reader.number <= last:
                begin, frame = reader.number, reader.read_frame()
                if not isinstance(frame, Frame):
                    if records:
                        return records
                    damage = reader.damage(frame)
                    end = reader.number if reader.skip(frame) else stop
                    self._holes.append((begin, end, damage.offset, damage.reason))
                    self._check_holes(first)
                    continue
                for record in frame.records(max(first - begin, 0), last + 1 - begin):
                    limit -= record_cost(record)
                    if records and limit < 0:
                        return records
                    records.append(record)
        return records

    def _check_holes(self, number: int) -> None:
        for first, end, offset, reason in self._holes:
            if first <= number < end:
                raise LogCorruptedError(self.log, self.path.name, offset, reason)

    def file_size(self) -> int:
        """Return the size of the file in bytes."""
        descriptor = self.files.open(self.path)
        try:
            return self.files.size(descriptor)
        finally:
            self.files.close(descriptor)

    def check_owner(self) -> int:
        """Check that the file is a segment of this log, and return its size in bytes.

        :raises LogCorruptedError: it is a segment of another log
        """
        descriptor = self.files.open(self.path)
        try:
            if decode_segment_header(read_all(self.files, descriptor, SEGMENT_HEADER_SIZE, 0), self.log) == FOREIGN:
                raise LogCorruptedError(self.log, self.path.name, 0, FOREIGN.reason)
            return self.files.size(descriptor)
        finally:
            self.files.close(descriptor)

    def recover_seed(self) -> None:
        """Set ``seed`` if the header is damaged and the seed can be found.

        :raises LogCorruptedError: the header is damaged
        """
        try:
            with FrameReader(self, self.first, SEGMENT_HEADER_SIZE):
                return
        except LogCorruptedError:
            descriptor = self.files.open(self.path)
            try:
                most = SEGMENT_HEADER_SIZE + FRAME_HEADER_SIZE + MAX_BODY
                self.seed = find_seed(read_all(self.files, descriptor, most, 0), self.first, self.log)
            finally:
                self.files.close(descriptor)
            raise

    def find_tail(self) -> FrameReader:
        """Read the whole file, the last of its log; return the reader, which is where a torn frame would lie.

        :raises LogCorruptedError: there is damage that no crash explains
        """
        with FrameReader(self, self.first, SEGMENT_HEADER_SIZE) as reader:
            while reader.end < reader.size:
                if reader.is_sealed:
                    raise reader.damage(Damaged("bytes after the seal", None))
                frame = reader.read_frame()
                if not isinstance(frame, Frame):
                    if reader.is_torn(frame):
                        break
                    raise reader.damage(frame)
        return reader


class FrameReader:
    """Reads frame after frame; ``end`` is the offset of the next one, ``number`` its first record."""

    def __init__(self, segment: Segment, number: int, end: int) -> None:
        self._segment = segment
        self.number = number
        self.end = self.last = end
        """``last`` is the offset of the last whole frame."""
        self.is_sealed = False
        """Whether the last whole frame is the seal."""
        self._start = end
        self._buffer = b""

    def __enter__(self) -> Self:
        files = self._segment.files
        self._descriptor = files.open(self._segment.path)
        try:
            self.size = files.size(self._descriptor)
            self.seed = self._check_header() if self._segment.seed is None else self._segment.seed
        except BaseException:
            files.close(self._descriptor)
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        self._segment.files.close(self._descriptor)

    def read_frame(self) -> Frame | Incomplete | Damaged:
        """Read the next frame; stay in front of it if it is damaged or incomplete."""
        found = self._decode()
        if isinstance(found, Incomplete):
            self._fill(_CHUNK)
            found = self._decode()
        if isinstance(found, Incomplete) and found.size > _CHUNK:
            self._fill(found.size)
            found = self._decode()
        if isinstance(found, Frame):
            self._segment.note_frame(self.number, self.end)
            self.number += found.length
            self.last, self.end = self.end, self._start + found.end
            self.is_sealed = found.is_seal
        return found

    def skip(self, found: Incomplete | Damaged) -> bool:
        """Move to the next whole frame behind damage, or to the end of the file; return whether there is such a frame.

        ``number`` then counts the lost records too, as far as good headers show them. O(bytes skipped).
        """
        position = self.end + (found.size is None)
        if found.size and len(self._buffer) - (self.end - self._start) >= FRAME_HEADER_SIZE:
            position = self._pass_head()
        else:
            self.number += 1
        while position < self.size:
            buffer = self._read(_CHUNK, position)
            for at, number in sorted(find_heads(buffer, 0, self.number, self.seed, self.size)):
                if number < self.number or position + at < self.end:
                    continue
                self.number, self.end = number, position + at
                self._fill(_CHUNK)
                if self._is_whole():
                    self._segment.note_frame(self.number, self.end, step=1)
                    return True
                self.end = self._pass_head()
            position = max(position + _CHUNK - FRAME_HEADER_SIZE + 1, self.end)
        self.end = self.size
        return False

    def is_torn(self, found: Incomplete | Damaged) -> bool:
        """Return whether a crash during the last write explains what lies here."""
        if found.size is not None:
            return self.end + found.size >= self.size
        rest = self.size - self.end
        if rest > FRAME_HEADER_SIZE + MAX_BODY:
            return False
        return not has_later_frame(self._read(rest, self.end), 0, self.number, self.seed)

    def damage(self, found: Incomplete | Damaged) -> LogCorruptedError:
        """Return the error for the damage that lies here."""
        reason = found.reason if isinstance(found, Damaged) else f"the file ends before the end of record {self.number}"
        return self._error(self.end, reason)

    def _decode(self) -> Frame | Incomplete | Damaged:
        return decode_frame(self._buffer, self.end - self._start, self.number, self.seed)

    def _pass_head(self) -> int:
        """Count the records of a frame with a good header and a damaged body; return where the header ends.

        The next frame may begin anywhere from there on, because bytes may be missing.
        """
        self.number += record_count(self._buffer, self.end - self._start)
        return self.end + FRAME_HEADER_SIZE

    def _is_whole(self) -> bool:
        found = self._decode()
        if isinstance(found, Incomplete) and found.size > _CHUNK:
            self._fill(found.size)
            found = self._decode()
        return isinstance(found, Frame)

    def _fill(self, size: int) -> None:
        self._buffer, self._start = self._read(size, self.end), self.end

    def _check_header(self) -> int:
        segment, header = self._segment, decode_segment_header(self._read(SEGMENT_HEADER_SIZE, 0), self._segment.log)
        if isinstance(header, NewerVersion):
            raise LogVersionError(segment.log, segment.path.name, header.version)
        if isinstance(header, Damaged):
            raise self._error(0, header.reason)
        first, seed = header
        if first != segment.first:
            raise self._error(0, f"it says that it begins with record {first}, its name says {segment.first}")
        return seed

    def _read(self, size: int, offset: int) -> bytes:
        return read_all(self._segment.files, self._descriptor, size, offset)

    def _error(self, offset: int, reason: str) -> LogCorruptedError:
        return LogCorruptedError(self._segment.log, self._segment.path.name, offset, reason)


def scan(segments: Sequence[Segment]) -> tuple[int, bool, Sequence[LogDamage]]:
    """Scan all segments of a log, and prepare them for reading.

    Returns how many records the log had at least, whether it was sealed, and the damage.

    :raises LogVersionError: a later release wrote one
    """
    damage: list[LogDamage] = []
    length, is_sealed = 0, False
    for at, segment in enumerate(segments):
        if segment.first > length:
            damage.append(_missing(length, segment.first - 1))
        stop = segments[at + 1].first if at + 1 < len(segments) else None
        length, is_sealed = _scan_segment(segment, stop, damage)
    if not segments:
        damage.append(_missing(0, 0))
        length = 1
    return length, is_sealed, tuple(damage)


def _missing(first: int, last: int) -> LogDamage:
    return LogDamage(segment_name(first), 0, first, last, "the file is missing")


def _scan_segment(segment: Segment, stop: int | None, damage: list[LogDamage]) -> tuple[int, bool]:
    """Scan a segment whose successor begins with record ``stop``; return where it ends, and whether by a seal."""
    file = segment.path.name
    try:
        segment.recover_seed()
    except LogCorruptedError as error:
        last = segment.first - 1 if segment.seed is not None else (segment.first if stop is None else stop - 1)
        damage.append(LogDamage(file, error.offset, segment.first, last, error.reason))
        if segment.seed is None:
            return last + 1, False
    with FrameReader(segment, segment.first, SEGMENT_HEADER_SIZE) as reader:
        while reader.end < reader.size and (stop is None or reader.number < stop):
            begin, number, found = reader.end, reader.number, reader.read_frame()
            if isinstance(found, Frame):
                if found.is_seal:
                    break
            elif stop is None and reader.is_torn(found):
                break
            else:
                reason = reader.damage(found).reason
                reader.skip(found)
                end = reader.number if stop is None else min(reader.number, stop)
                damage.append(LogDamage(file, begin, number, end - 1, reason))
        if reader.is_sealed and reader.end < reader.size:
            damage.append(LogDamage(file, reader.end, reader.number, reader.number - 1, "bytes after the seal"))
        if stop is not None and reader.number < stop:
            damage.append(LogDamage(file, reader.end, reader.number, stop - 1, "the file ends too early"))
        return reader.number if stop is None else stop, reader.is_sealed
