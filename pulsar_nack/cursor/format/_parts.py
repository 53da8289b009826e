"""A body that is larger than a record may be: split into parts, and joined again.

Each part says its number, how many parts there are, and the checksum of all of them together: so neither an incomplete
set nor a mixture of two sets is taken for a whole.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from ...errors import CursorFormatError, InvalidArgumentError
from ...index import varint_bytes
from ._protobuf import RecordKind, expect_kind, messages

VERSION: Final = 1
_DESCRIPTION: Final = 2 * 4 + 5
"""At most what a part says beside its body: its number, the count, and the checksum."""
_RESERVED: Final = _DESCRIPTION + 18
"""At most what a record takes beside its envelope and its piece of the body: the description, and the lengths."""
_MIN_BODY: Final = 64
_MAX_PARTS: Final = 1 << 20

Envelope = Callable[[], Any]
"""Returns a new PositionInfo without its part."""


def split_body(body: bytes, limit: int, *, last: Envelope, others: Envelope) -> list[bytes]:
    """Return the records of a body, none of them longer than the limit.

    :param last: makes the last record
    :param others: makes the records before it
    :raises InvalidArgumentError: the limit leaves no room beside what each record needs
    """
    whole = last()
    whole.part.body = body
    if whole.ByteSize() <= limit:
        return [bytes(whole.SerializeToString())]
    room = limit - _RESERVED - max(last().ByteSize(), others().ByteSize())
    if room < _MIN_BODY:
        raise InvalidArgumentError(
            "limit", limit, f"at least {limit - room + _MIN_BODY} bytes, for what is in each record"
        )
    pieces = [body[at : at + room] for at in range(0, len(body), room)]
    checksum = zlib.crc32(body)
    records = []
    for number, piece in enumerate(pieces):
        info = last() if number == len(pieces) - 1 else others()
        part = info.part
        part.number, part.count, part.checksum, part.body = number, len(pieces), checksum, piece
        records.append(bytes(info.SerializeToString()))
    return records


def split_size(body: int, envelope: int, limit: int) -> int:
    """Return how many bytes :func:`split_body` makes of a body of this size, if all envelopes are alike. O(parts).

    :param envelope: bytes of a PositionInfo without its part
    """
    size = envelope + _part_size(body, 0)
    if size <= limit:
        return size
    room = max(limit - _RESERVED - envelope, 1)
    count = -(-body // room)
    rest = body - (count - 1) * room
    total = count * envelope
    for number in range(count):
        description = 1 + varint_bytes(number) + 1 + varint_bytes(count) + 5
        total += _part_size(room if number < count - 1 else rest, description)
    return total


def join_parts(records: Sequence[bytes], last: RecordKind, others: RecordKind) -> tuple[bytes, Any, int]:
    """Return the body that some records are the parts of, the last PositionInfo, and the number of its mark.

    :param last: what the last record must be
    :param others: what the records before it must be
    :raises CursorFormatError: they are something else, or not exactly the parts of one body, in order
    """
    if not records:
        raise CursorFormatError(last.value, "there is no record")
    found = [expect_kind(record, others) for record in records[:-1]]
    found.append(expect_kind(records[-1], last))
    parts = [info.part for info, _ in found]
    final = parts[-1]
    for number, (info, mark) in enumerate(found):
        part = info.part
        if part.version > VERSION:
            raise CursorFormatError(last.value, f"it has version {part.version}, which a later release wrote")
        if (part.number, part.count) != (number, len(records)):
            raise CursorFormatError(
                last.value, f"part {part.number + 1} of {part.count} instead of part {number + 1} of {len(records)}"
            )
        if (mark, part.checksum) != (found[-1][1], final.checksum):
            raise CursorFormatError(last.value, "its parts do not belong together")
    body = b"".join(part.body for part in parts)
    if len(records) > 1 and zlib.crc32(body) != final.checksum:
        raise CursorFormatError(last.value, "the checksum of its parts does not match")
    return body, found[-1][0], found[-1][1]


def part_number(record: bytes, kind: RecordKind) -> tuple[int, int]:
    """Return the number of a part, from 0, and the count of parts.

    :raises CursorFormatError: the record is not of this kind
    """
    part = expect_kind(record, kind)[0].part
    if part.number >= part.count or part.count > _MAX_PARTS:
        raise CursorFormatError(kind.value, f"there is no part {part.number + 1} of {part.count}")
    return part.number, part.count


def empty_record() -> Any:
    """Return a PositionInfo that acknowledges nothing."""
    return messages().PositionInfo(ledgerId=0, entryId=-1)


def _part_size(body: int, description: int) -> int:
    part = description + 1 + varint_bytes(body) + body
    return 2 + varint_bytes(part) + part
