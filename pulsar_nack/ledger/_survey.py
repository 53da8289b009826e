"""Looking through a damaged log: what of it is lost, and where it ends; blocking.

A log that is damaged cannot be appended to: nobody knows how many records it had. It can be read, by
:meth:`~pulsar_nack.ledger._segment.Segment.read`, which passes over damage, all but the lost records.

Where damage reaches the end of the log, how many records were there can be told from good headers only. At least one
counts as lost then, so that whoever reads to the end of the log meets the damage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import LogCorruptedError
from ._files import Files
from ._names import segment_name
from ._protocol import LogDamage
from ._record import FRAME_HEADER_SIZE, MAX_BODY, SEGMENT_HEADER_SIZE, Frame, find_seed
from ._segment import Segment, Walk, read_all


class Survey(NamedTuple):
    """How many records the log had at least, whether it was sealed, and what of it is damaged."""

    length: int
    is_sealed: bool
    damage: Sequence[LogDamage]


def survey(files: Files, segments: Sequence[Segment]) -> Survey:
    """Look through all segments, and prepare them to be read.

    :raises LogVersionError: a later release wrote one
    """
    damage: list[LogDamage] = []
    length, is_sealed = 0, False
    for at, segment in enumerate(segments):
        if segment.first > length:
            damage.append(_missing(length, segment.first - 1))
        stop = segments[at + 1].first if at + 1 < len(segments) else None
        length, is_sealed = _survey(files, segment, stop, damage)
    if not segments:
        damage.append(_missing(0, 0))
        length = 1
    return Survey(length, is_sealed, tuple(damage))


def _missing(first: int, last: int) -> LogDamage:
    return LogDamage(segment_name(first), 0, first, last, "the file is missing")


def _survey(files: Files, segment: Segment, stop: int | None, damage: list[LogDamage]) -> tuple[int, bool]:
    """Look through one segment, whose successor begins with record ``stop``; return where it ends, and if by a seal."""
    file = segment.path.name
    try:
        with Walk(segment, segment.first, SEGMENT_HEADER_SIZE):
            pass
    except LogCorruptedError as error:
        segment.seed = seed_of(files, segment)
        last = segment.first - 1 if segment.seed is not None else (segment.first if stop is None else stop - 1)
        damage.append(LogDamage(file, error.offset, segment.first, last, error.reason))
        if segment.seed is None:
            return last + 1, False
    is_sealed = False
    with Walk(segment, segment.first, SEGMENT_HEADER_SIZE) as walk:
        while walk.end < walk.size and (stop is None or walk.number < stop):
            begin, number, found = walk.end, walk.number, walk.step()
            if isinstance(found, Frame):
                is_sealed = found.is_seal
                if is_sealed:
                    break
            elif stop is None and walk.is_torn(found):
                break
            else:
                reason = walk.damage(found).reason
                walk.skip(found)
                end = walk.number if stop is None else min(walk.number, stop)
                damage.append(LogDamage(file, begin, number, end - 1, reason))
        if is_sealed and walk.end < walk.size:
            damage.append(LogDamage(file, walk.end, walk.number, walk.number - 1, "bytes after the seal"))
        if stop is not None and walk.number < stop:
            damage.append(LogDamage(file, walk.end, walk.number, stop - 1, "the file ends too early"))
        return walk.number if stop is None else stop, is_sealed


def seed_of(files: Files, segment: Segment) -> int | None:
    """Return the seed of a segment whose header is damaged; None if it cannot be found."""
    descriptor = files.open(segment.path)
    try:
        most = SEGMENT_HEADER_SIZE + FRAME_HEADER_SIZE + MAX_BODY
        return find_seed(read_all(files, descriptor, most, 0), segment.first, segment.log)
    finally:
        files.close(descriptor)
