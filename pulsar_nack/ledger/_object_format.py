"""The objects of a store of logs: their names, their bytes, and the manifest of a log; pure functions.

Below the prefix of the store::

    catalog/00000000000000000007                     the logs that exist; the highest number counts
    logs/NAME.f3a9...01/00000000000000000042         slot 42 of a log: records, or its manifest
    logs/NAME.f3a9...01/00000000000000000000-2-9c...f1.segment     many records; a manifest names it

A log that is made again under an old name gets another folder: no key is ever written twice. In the name of a folder
``#`` becomes ``_``; the catalog has the true name. Anything else is foreign and is left alone.

An object is a segment of :mod:`.format`, whose number is that of the slot or version, or of the first record. Its first
frame is one JSON text, the *head*, which says what the object is and who wrote it. The frames behind it hold records,
128 KiB each, and the head says where each frame begins, so that one record of a large object can be read alone. A store
writes an object as a whole, so its frames become durable together. The salt and the writer's name make an object differ
from all others within its first 256 bytes.

The records of a log lie in consecutive objects: slots, as they were appended, and segments, into which small objects
are merged. A manifest names these objects in order.
"""

from __future__ import annotations

import json
import re
import secrets
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from ..errors import LogCorruptedError, LogVersionError
from .format import (
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

CATALOG: Final = "catalog"
LOGS: Final = "logs"
_NUMBER: Final = re.compile(r"\d{20}")
_SEGMENT: Final = re.compile(r"\d{20}-(\d{1,20})-[0-9a-f]{16}\.segment")
_FOLDER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.[0-9a-f]{16}")
MANIFEST: Final = "manifest"
DATA: Final = "data"
SEGMENT: Final = "segment"
_TAKEOVERS: Final = 256
_FRAME: Final = 1 << 17
_LEAST: Final = SEGMENT_HEADER_SIZE + FRAME_HEADER_SIZE


def new_token() -> str:
    """Return a unique name."""
    return secrets.token_hex(8)


def slot_name(number: int) -> str:
    """Return the name of a slot, or of a version of the catalog."""
    return f"{number:020}"


def slot_number(name: str) -> int | None:
    """Return the number of a slot or version, or None if this is not the name of one."""
    return int(name) if _NUMBER.fullmatch(name) else None


def new_segment_name(first: int, epoch: int) -> str:
    """Return a new name for a segment with this first record, written in this epoch."""
    return f"{first:020}-{epoch}-{new_token()}.segment"


def segment_epoch(name: str) -> int | None:
    """Return the epoch in which a segment was written, or None if this is not the name of a segment."""
    match = _SEGMENT.fullmatch(name)
    return int(match[1]) if match else None


def folder_name(log: str, instance: str) -> str:
    """Return the name of a log's folder."""
    return f"{log.replace('#', '_')}.{instance}"


def is_log_folder(name: str) -> bool:
    """Return whether this is the name of a log's folder."""
    return _FOLDER.fullmatch(name) is not None


class ObjectLocation(NamedTuple):
    """The log and key of an object, for errors; ``owner`` is the log that it belongs to, empty: the store."""

    log: str
    key: str
    owner: str = ""

    def damage(self, offset: int, reason: str) -> LogCorruptedError:
        """Return the error for damage of the object."""
        return LogCorruptedError(self.log, self.key, offset, reason)


class Head(NamedTuple):
    """The head of an object, and the first record numbers and offsets of its frames."""

    kind: str
    number: int
    seed: int
    fields: dict[str, Any]
    firsts: tuple[int, ...]
    offsets: tuple[int, ...]

    def part(self, first: int, last: int, end: int, limit: int) -> tuple[int, int, int]:
        """Return the frames with these records, about ``limit`` bytes at most: first record, begin, end."""
        at = bisect_right(self.firsts, first) - 1
        if at < 0:
            return first, end, end
        ends = (*self.offsets[1:], end)
        until = at
        while until + 1 < len(self.firsts) and self.firsts[until + 1] <= last:
            if ends[until + 1] - self.offsets[at] > limit:
                break
            until += 1
        return self.firsts[at], self.offsets[at], ends[until]


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
    :param owner: the log that it belongs to; empty: the store
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


def decode_head(data: bytes, location: ObjectLocation, number: int) -> Head | Incomplete:
    """Read the head of an object from its first bytes; return Incomplete if more bytes are needed.

    :raises LogCorruptedError: it is damaged, or another object
    :raises LogVersionError: a later release wrote it
    """
    if len(data) < _LEAST:
        return Incomplete(_LEAST)
    header = decode_segment_header(data, location.owner)
    if isinstance(header, NewerVersion):
        raise LogVersionError(location.log, location.key, header.version)
    if isinstance(header, Damaged):
        raise location.damage(0, header.reason)
    first, seed = header
    if first != number:
        raise location.damage(0, f"it says that its number is {first}, its name says {number}")
    frame = decode_frame(data, SEGMENT_HEADER_SIZE, number, seed)
    if isinstance(frame, Incomplete):
        return Incomplete(SEGMENT_HEADER_SIZE + frame.size)
    if isinstance(frame, Damaged):
        raise location.damage(SEGMENT_HEADER_SIZE, frame.reason)
    try:
        fields = json.loads(frame.records()[0])
        index = [(int(first), int(offset) + frame.end) for first, offset in fields["frames"]]
        kind = str(fields["kind"])
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise location.damage(SEGMENT_HEADER_SIZE, f"a head that cannot be read: {error!r}") from error
    return Head(kind, number, seed, fields, tuple(first for first, _ in index), tuple(offset for _, offset in index))


def decode_whole(data: bytes, location: ObjectLocation, number: int, kind: str) -> Head:
    """Read the head of a whole object, which must be of this kind."""
    head = decode_head(data, location, number)
    if isinstance(head, Incomplete):
        raise location.damage(len(data), f"the object ends before its head, which has {head.size} bytes")
    if head.kind != kind:
        raise location.damage(SEGMENT_HEADER_SIZE, f"it is of the kind {head.kind!r}, not {kind!r}")
    return head


def decode_records(
    frames: bytes, location: ObjectLocation, first: int, last: int, *, seed: int, begin: tuple[int, int]
) -> list[bytes]:
    """Read records ``first`` to ``last`` from frames; fewer if the frames end before, and none behind damage.

    :param begin: the number of the first record in these frames, and their offset in the object
    :raises LogCorruptedError: the first record is lost
    """
    records: list[bytes] = []
    number, offset = begin
    at = 0
    while at < len(frames) and number <= last:
        frame = decode_frame(frames, at, number, seed)
        if not isinstance(frame, Frame):
            if records:
                return records
            reason = frame.reason if isinstance(frame, Damaged) else f"the object ends before record {number} does"
            raise location.damage(offset + at, reason)
        records += frame.records(max(first - number, 0), last + 1 - number)
        number += frame.length
        at = frame.end
    if not records:
        raise location.damage(offset + at, f"the object ends before record {first}")
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


class ObjectRef(NamedTuple):
    """An object with records: its name, its first record, its record count, its size in bytes, its number."""

    name: str
    first: int
    records: int
    size: int
    number: int

    @property
    def end(self) -> int:
        """Return the number of the record after the last one."""
        return self.first + self.records


class Manifest(NamedTuple):
    """The state of a log as a slot stores it; takeovers are pairs of epoch and slot, only the latest ones."""

    epoch: int
    writer: str
    objects: tuple[ObjectRef, ...]
    is_sealed: bool
    takeovers: tuple[tuple[int, int], ...]

    @property
    def length(self) -> int:
        """Return how many records the objects have."""
        return self.objects[-1].end if self.objects else 0

    def taken_over(self, epoch: int, writer: str, slot: int) -> Manifest:
        """Return this manifest with another writer, which took over in this slot."""
        takeovers = (*self.takeovers, (epoch, slot))[-_TAKEOVERS:]
        return self._replace(epoch=epoch, writer=writer, takeovers=takeovers)

    def with_objects(self, objects: Sequence[ObjectRef]) -> Manifest:
        """Return this manifest with other objects."""
        return self._replace(objects=tuple(objects))

    def fence_after(self, epoch: int, slot: int) -> int | None:
        """Return the slot that fenced the writer who took over in ``slot``; None: too long ago to know."""
        if (epoch, slot) not in self.takeovers[:-1]:
            return None
        return self.takeovers[self.takeovers.index((epoch, slot)) + 1][1]

    def fields(self) -> dict[str, Any]:
        """Return the fields of the manifest's head."""
        return {
            "epoch": self.epoch,
            "writer": self.writer,
            "sealed": self.is_sealed,
            "takeovers": self.takeovers,
            "pieces": self.objects,
        }


EMPTY_MANIFEST: Final = Manifest(epoch=0, writer="", objects=(), is_sealed=False, takeovers=())


def as_manifest(head: Head, location: ObjectLocation) -> Manifest:
    """Read a manifest from the head of its object.

    :raises LogCorruptedError: it is not a manifest
    """
    try:
        fields = head.fields
        objects = tuple(
            ObjectRef(str(name), int(first), int(records), int(size), int(number))
            for name, first, records, size, number in fields["pieces"]
        )
        takeovers = tuple((int(epoch), int(slot)) for epoch, slot in fields["takeovers"])
        manifest = Manifest(int(fields["epoch"]), str(fields["writer"]), objects, fields["sealed"] is True, takeovers)
    except (ValueError, TypeError, KeyError) as error:
        raise location.damage(0, f"a manifest that cannot be read: {error!r}") from error
    if any(ref.end != after.first for ref, after in pairwise(objects)) or (objects and objects[0].first):
        raise location.damage(0, "a manifest whose objects do not follow each other")
    return manifest
