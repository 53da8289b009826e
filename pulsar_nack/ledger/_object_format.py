"""What lies in an object: pure functions from and to bytes.

An object is a segment of :mod:`._record`, whose number is that of the slot or version, or of the first record. Its
first frame is one JSON text, the *head*, which says what it is and by whom; the frames behind it hold records, in
pieces of 128 KiB, and the head says where each begins, so that one record of a large object can be read alone. A store
writes an object as a whole, so the frames of one object became durable together.

The salt and the writer's name make an object different from all others within its first 256 bytes.
"""

from __future__ import annotations

import json
import secrets
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from ..errors import LogCorruptedError, LogVersionError
from ._record import (
    FRAME_HEADER_SIZE,
    SEGMENT_HEADER_SIZE,
    Damaged,
    Frame,
    Incomplete,
    NewerVersion,
    decode_frame,
    decode_segment_header,
    encode_frame,
    encode_segment_header,
    frame_size,
    seed_of,
)

_FRAME: Final = 1 << 17
_LEAST: Final = SEGMENT_HEADER_SIZE + FRAME_HEADER_SIZE


class Place(NamedTuple):
    """Where an object lies, for errors: log and key; ``owner`` is the log that it belongs to, empty: the store."""

    log: str
    key: str
    owner: str = ""

    def damage(self, offset: int, reason: str) -> LogCorruptedError:
        """Return the error for what is wrong there."""
        return LogCorruptedError(self.log, self.key, offset, reason)


class Head(NamedTuple):
    """The head of an object, and where the frames with records begin: their first numbers and offsets in it."""

    kind: str
    number: int
    seed: int
    fields: dict[str, Any]
    firsts: tuple[int, ...]
    offsets: tuple[int, ...]

    def part(self, first: int, last: int, end: int, limit: int) -> tuple[int, int, int]:
        """Return the frames with these records, not many more bytes than ``limit``: number of the first, begin, end."""
        at = bisect_right(self.firsts, first) - 1
        ends = (*self.offsets[1:], end)
        until = at
        while until + 1 < len(self.firsts) and self.firsts[until + 1] <= last:
            if ends[until + 1] - self.offsets[at] > limit:
                break
            until += 1
        return self.firsts[at], self.offsets[at], ends[until]


class Frames(NamedTuple):
    """A part of an object: frames, the number of the first record in them, and where in the object they lie."""

    seed: int
    number: int
    offset: int
    data: bytes


def encode(
    kind: str,
    number: int,
    fields: dict[str, Any],
    records: Sequence[bytes] = (),
    first: int = 0,
    *,
    owner: str = "",
) -> bytes:
    """Return the bytes of an object.

    :param kind: what the object is
    :param fields: further fields of its head
    :param first: the number of the first record
    :param owner: the log that it belongs to; empty: it is the store's
    """
    salt = secrets.randbits(32)
    seed = seed_of(salt, owner)
    groups = _cut(records)
    index, at = [], 0
    for group in groups:
        index.append((first, at))
        at += frame_size(group)
        first += len(group)
    text = json.dumps({"kind": kind, **fields, "frames": index}, separators=(",", ":")).encode()
    frames = [encode_frame(number, [text], seed)]
    frames += [encode_frame(begin, group, seed) for (begin, _), group in zip(index, groups, strict=True)]
    return b"".join((encode_segment_header(number, salt, owner), *frames))


def decode_head(data: bytes, place: Place, number: int) -> Head | Incomplete:
    """Read the head of an object, of which the beginning is given, or say how many bytes that needs.

    :raises LogCorruptedError: it is damaged, or another object
    :raises LogVersionError: it is newer
    """
    if len(data) < _LEAST:
        return Incomplete(_LEAST)
    header = decode_segment_header(data, place.owner)
    if isinstance(header, NewerVersion):
        raise LogVersionError(place.log, place.key, header.version)
    if isinstance(header, Damaged):
        raise place.damage(0, header.reason)
    if header.first != number:
        raise place.damage(0, f"it says that its number is {header.first}, its name says {number}")
    frame = decode_frame(data, SEGMENT_HEADER_SIZE, number, header.seed)
    if isinstance(frame, Incomplete):
        return Incomplete(SEGMENT_HEADER_SIZE + frame.size)
    if isinstance(frame, Damaged):
        raise place.damage(SEGMENT_HEADER_SIZE, frame.reason)
    try:
        fields = json.loads(frame.records()[0])
        index = [(int(first), int(offset) + frame.end) for first, offset in fields["frames"]]
        kind = str(fields["kind"])
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise place.damage(SEGMENT_HEADER_SIZE, f"a head that cannot be read: {error!r}") from error
    return Head(
        kind, number, header.seed, fields, tuple(first for first, _ in index), tuple(offset for _, offset in index)
    )


def decode_whole(data: bytes, place: Place, number: int, kind: str) -> Head:
    """Read the head of an object of which all is given, and that must be of this kind."""
    head = decode_head(data, place, number)
    if isinstance(head, Incomplete):
        raise place.damage(len(data), f"the object ends before its head, which has {head.size} bytes")
    if head.kind != kind:
        raise place.damage(SEGMENT_HEADER_SIZE, f"it is of the kind {head.kind!r}, not {kind!r}")
    return head


def decode_records(frames: Frames, place: Place, first: int, last: int) -> list[bytes]:
    """Read records ``first`` to ``last`` from frames; there may be fewer when the frames end before."""
    records: list[bytes] = []
    number, at = frames.number, 0
    while at < len(frames.data) and number <= last:
        frame = decode_frame(frames.data, at, number, frames.seed)
        if not isinstance(frame, Frame):
            reason = frame.reason if isinstance(frame, Damaged) else f"the object ends before record {number} does"
            raise place.damage(frames.offset + at, reason)
        records += frame.records(max(first - number, 0), last + 1 - number)
        number += frame.length
        at = frame.end
    if not records:
        raise place.damage(frames.offset + at, f"the object ends before record {first}")
    return records


def _cut(records: Sequence[bytes]) -> list[list[bytes]]:
    groups: list[list[bytes]] = []
    size = _FRAME
    for record in records:
        size += len(record) + 4
        if size > _FRAME:
            groups.append([])
            size = len(record) + 4
        groups[-1].append(record)
    return groups
