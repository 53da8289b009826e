"""The segment files of one open log, and writing them; blocking, one write at a time.

The commit point of an append is the sync of its one frame. If something fails:

- *A write* (disk full): the file is cut back to its durable end and synced, and the log continues as it was.
- *A sync, or that cut*: nobody knows what of the frame is on disk, and a second sync of the same file may claim
  success for pages that the system has dropped. So the file is never written again: it is cut as well as possible, and
  the next append begins a new segment at the durable end. A segment counts only up to where its successor begins, so
  whatever is left of the failed frame is not in the log.
- *Beginning a segment*: the append fails, and the next one tries again, with a new file.

A segment is made under another name, synced, renamed and its folder synced, so a broken header is damage.
"""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from ..errors import LogCorruptedError, LogSealedError
from ._protocol import LogDamage, LogState
from .files import Files, read_all, write_all
from .format import (
    NEW,
    SEGMENT_HEADER_SIZE,
    encode_frame,
    encode_segment_header,
    frame_size,
    seed_of,
    segment_name,
)
from .segments import FrameReader, Segment, record_cost

LogLock: TypeAlias = tuple[int, ...]
"""The descriptors that lock a log: of its lock file, and of its folder if that can be locked."""


class LogFiles(LogState):
    """The files of an open log; without a lock for reading only. A damaged log has a lock, and no writer.

    :param segments: its files, in order; a writer adds a new one before a record in it becomes durable
    """

    def __init__(self, name: str, segments: list[Segment], lock: LogLock | None) -> None:
        super().__init__()
        self.name = name
        self.lock = lock
        self.damage: Sequence[LogDamage] = ()
        self.cut = 0
        """How many bytes of a torn write were cut off."""
        self._segments = segments

    def read(self, first: int, last: int, limit: int) -> list[bytes]:
        """Return records, at least one and about ``limit`` bytes at most, and none behind damage; for any thread.

        :raises LogCorruptedError: the first record is lost
        """
        segments = list(self._segments)
        at = bisect_right(segments, first, key=lambda segment: segment.first) - 1
        if at < 0:
            raise LogCorruptedError(self.name, segment_name(first), 0, "the file is missing")
        found: list[bytes] = []
        while first <= last and limit > 0:
            stop = self.length if at + 1 == len(segments) else segments[at + 1].first
            end = min(last, stop - 1)
            part = segments[at].read(first, end, limit, stop)
            found += part
            first += len(part)
            limit = limit - sum(map(record_cost, part)) if first > end else 0
            at += 1
        return found

    def close(self) -> None:
        """Close the file that is open for writing. Idempotent."""


class SegmentWriter(LogFiles):
    """Appends frames to the last segment of a log, and begins new ones."""

    def __init__(self, files: Files, name: str, segments: list[Segment], lock: LogLock, max_segment_bytes: int) -> None:
        super().__init__(name, segments, lock)
        self._files = files
        self._folder = segments[-1].path.parent
        self._max_segment_bytes = max_segment_bytes
        self._descriptor: int | None = None
        self._seed = 0
        self._end = 0
        self._is_abandoned = False
        """Whether the present file must not be written again."""

    def open(self, tail: FrameReader, size: int) -> None:
        """Continue where the reader of the last segment is: cut off a torn frame there, and make the rest durable.

        What looks good may be in the system's cache only, left there by a process that ended before its sync, or after
        a failed one. So the last frame, the only one in doubt, is rewritten before the sync, and names are synced too.
        """
        descriptor = self._files.open(self._segments[-1].path, writable=True)
        try:
            cut = self._files.size(descriptor) - tail.end
            if cut:
                self._files.truncate(descriptor, tail.end)
            last = read_all(self._files, descriptor, tail.end - tail.last, tail.last)
            write_all(self._files, descriptor, last, tail.last)
            self._files.sync(descriptor)
            self._files.sync_folder(self._folder)
            self._files.sync_folder(self._folder.parent)
        except BaseException:
            self._files.close(descriptor)
            raise
        self._descriptor, self._seed, self._end = descriptor, tail.seed, tail.end
        self.length, self.size, self.cut = tail.number, size - cut, cut
        self.is_sealed = tail.is_sealed

    def append(self, records: Sequence[bytes]) -> int:
        """Append one frame of records durably; return the number of the first. Without records, seal the log.

        :raises OSError: nothing was added
        :raises LogSealedError: the log is sealed, and there are records
        """
        if self.is_sealed:
            if records:
                raise LogSealedError(self.name)
            return self.length
        size = frame_size(records)
        is_full = self._end > SEGMENT_HEADER_SIZE and self._end + size > self._max_segment_bytes
        if self._is_abandoned or (is_full and records):
            self._begin_segment()
        first, descriptor = self.length, self._active
        self._put(encode_frame(first, records, self._seed))
        try:
            self._files.sync(descriptor)
        except OSError:
            self._is_abandoned = True
            with suppress(OSError):
                self._files.truncate(descriptor, self._end)
            raise
        self._segments[-1].note_frame(first, self._end)
        self._end += size
        self.size += size
        self.length += len(records)
        self.is_sealed = not records
        return first

    def close(self) -> None:
        """Close the file; errors are ignored, because what counts was synced. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                self._files.close(descriptor)

    @property
    def _active(self) -> int:
        if self._descriptor is None:
            raise OSError("the writer is closed")
        return self._descriptor

    def _put(self, frame: bytes) -> None:
        try:
            write_all(self._files, self._active, frame, self._end)
        except OSError:
            self._cut_back()
            raise

    def _cut_back(self) -> None:
        try:
            self._files.truncate(self._active, self._end)
            self._files.sync(self._active)
        except OSError:
            self._is_abandoned = True

    def _begin_segment(self) -> None:
        path, salt = self._folder / segment_name(self.length), secrets.randbits(32)
        self._is_abandoned = True
        self.close()
        self._descriptor = begin_segment(self._files, path, self.length, salt, self.name)
        self._seed, self._end, self._is_abandoned = seed_of(salt, self.name), SEGMENT_HEADER_SIZE, False
        segment = Segment(self._files, self.name, path, self.length)
        if self._segments[-1].first == self.length:
            self._segments[-1] = segment
        else:
            self._segments.append(segment)
            self.size += SEGMENT_HEADER_SIZE


def begin_segment(files: Files, path: Path, first: int, salt: int, log: str) -> int:
    """Make an empty segment durably, possibly in place of another empty one; return its descriptor.

    :raises OSError: the name may exist, with an empty segment
    """
    new = path.with_name(path.name + NEW)
    try:
        descriptor = files.create(new)
        try:
            write_all(files, descriptor, encode_segment_header(first, salt, log), 0)
            files.sync(descriptor)
        finally:
            files.close(descriptor)
        files.rename(new, path)
        files.sync_folder(path.parent)
    except OSError:
        with suppress(OSError):
            files.remove(new)
        raise
    return files.open(path, writable=True)
