"""Scanning a damaged log: which records are lost, and where the log ends; blocking.

Nothing can be appended to a damaged log: nobody knows how many records it had. :meth:`Segment.read` passes over damage
and returns all but the lost records.

Where damage reaches the end of the log, only good headers show how many records there were. At least one counts as lost
then, so that a reader that reads to the end meets the damage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...errors import LogCorruptedError
from .._protocol import LogDamage
from ..files import Files, read_all
from ._names import segment_name
from ._record import FRAME_HEADER_SIZE, MAX_BODY, SEGMENT_HEADER_SIZE, Frame, find_seed
from ._segment import FrameReader, Segment


class ScanResult(NamedTuple):
    """How many records the log had at least, whether it was sealed, and the damage."""

    length: int
    is_sealed: bool
    damage: Sequence[LogDamage]


def scan(files: Files, segments: Sequence[Segment]) -> ScanResult:
    """Scan all segments, and prepare them for reading.

    :raises LogVersionError: a later release wrote one
    """
    damage: list[LogDamage] = []
    length, is_sealed = 0, False
    for at, segment in enumerate(segments):
        if segment.first > length:
            damage.append(_missing(length, segment.first - 1))
        stop = segments[at + 1].first if at + 1 < len(segments) else None
        length, is_sealed = _scan_segment(files, segment, stop, damage)
    if not segments:
        damage.append(_missing(0, 0))
        length = 1
    return ScanResult(length, is_sealed, tuple(damage))


def recover_seed(files: Files, segment: Segment) -> None:
    """Set ``segment.seed`` if the header is damaged and the seed can be found.

    :raises LogCorruptedError: the header is damaged
    """
    try:
        with FrameReader(segment, segment.first, SEGMENT_HEADER_SIZE):
            return
    except LogCorruptedError:
        descriptor = files.open(segment.path)
        try:
            most = SEGMENT_HEADER_SIZE + FRAME_HEADER_SIZE + MAX_BODY
            segment.seed = find_seed(read_all(files, descriptor, most, 0), segment.first, segment.log)
        finally:
            files.close(descriptor)
        raise


def _missing(first: int, last: int) -> LogDamage:
    return LogDamage(segment_name(first), 0, first, last, "the file is missing")


def _scan_segment(files: Files, segment: Segment, stop: int | None, damage: list[LogDamage]) -> tuple[int, bool]:
    """Scan a segment whose successor begins with record ``stop``; return where it ends, and whether by a seal."""
    file = segment.path.name
    try:
        recover_seed(files, segment)
    except LogCorruptedError as error:
        last = segment.first - 1 if segment.seed is not None else (segment.first if stop is None else stop - 1)
        damage.append(LogDamage(file, error.offset, segment.first, last, error.reason))
        if segment.seed is None:
            return last + 1, False
    is_sealed = False
    with FrameReader(segment, segment.first, SEGMENT_HEADER_SIZE) as reader:
        while reader.end < reader.size and (stop is None or reader.number < stop):
            begin, number, found = reader.end, reader.number, reader.read_frame()
            if isinstance(found, Frame):
                is_sealed = found.is_seal
                if is_sealed:
                    break
            elif stop is None and reader.is_torn(found):
                break
            else:
                reason = reader.damage(found).reason
                reader.skip(found)
                end = reader.number if stop is None else min(reader.number, stop)
                damage.append(LogDamage(file, begin, number, end - 1, reason))
        if is_sealed and reader.end < reader.size:
            damage.append(LogDamage(file, reader.end, reader.number, reader.number - 1, "bytes after the seal"))
        if stop is not None and reader.number < stop:
            damage.append(LogDamage(file, reader.end, reader.number, stop - 1, "the file ends too early"))
        return reader.number if stop is None else stop, is_sealed
