"""What is larger than a record may be, cut into pieces and put together again.

Each piece says which one it is, of how many, and what checksum all of them have together: so neither a half set nor a
mixture of two is taken for a whole.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Final, Protocol

from ..errors import CursorFormatError, InvalidArgumentError
from ..index import varint_bytes
from ._wire import Kind, expect, messages

VERSION: Final = 1
_DESCRIPTION: Final = 2 * 4 + 5
"""At most what a part says beside its body: its number, of how many, and the checksum."""
_RESERVED: Final = _DESCRIPTION + 18
"""At most what a record takes beside its envelope and the piece: what the part says, and the lengths around it."""
_LEAST_BODY: Final = 64
_MOST_PARTS: Final = 1 << 20


class Envelope(Protocol):
    """Makes a PositionInfo without its part."""

    def __call__(self, *, is_last: bool) -> Any:
        """Return one, for the last record of what it is for or for another."""


def cut(body: bytes, envelope: Envelope, limit: int) -> list[bytes]:
    """Return the records of a body, none of them longer than the limit.

    :raises InvalidArgumentError: the limit leaves no room beside what each record needs
    """
    whole = envelope(is_last=True)
    whole.part.body = body
    if whole.ByteSize() <= limit:
        return [bytes(whole.SerializeToString())]
    room = limit - _RESERVED - max(envelope(is_last=True).ByteSize(), envelope(is_last=False).ByteSize())
    if room < _LEAST_BODY:
        raise InvalidArgumentError(
            "limit", limit, f"at least {limit - room + _LEAST_BODY} bytes, for what is in each record"
        )
    pieces = [body[at : at + room] for at in range(0, len(body), room)]
    checksum = zlib.crc32(body)
    records = []
    for number, piece in enumerate(pieces):
        info = envelope(is_last=number == len(pieces) - 1)
        _describe(info.part, number, len(pieces), checksum)
        info.part.body = piece
        records.append(bytes(info.SerializeToString()))
    return records


def cut_size(body: int, envelope: int, limit: int) -> int:
    """Return how many bytes :func:`cut` makes of so many, when all envelopes take the same. O(parts).

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
        said = 1 + varint_bytes(number) + 1 + varint_bytes(count) + 5
        total += _part_size(room if number < count - 1 else rest, said)
    return total


def join(records: Sequence[bytes], last: Kind, others: Kind) -> tuple[bytes, Any, int]:
    """Return the body that some records are the pieces of, the last PositionInfo, and the number of its mark.

    :param last: what the last record must be
    :param others: what those before it must be
    :raises CursorFormatError: they are something else, or not exactly the pieces of one body, in order
    """
    if not records:
        raise CursorFormatError(last.value, "there is no record")
    found = [expect(record, others) for record in records[:-1]]
    found.append(expect(records[-1], last))
    parts = [info.part for info, _ in found]
    final = parts[-1]
    for number, (info, mark) in enumerate(found):
        part = info.part
        if part.version > VERSION:
            raise CursorFormatError(last.value, f"it has version {part.version}, which a later release wrote")
        if (part.number, part.count) != (number, len(records)):
            raise CursorFormatError(
                last.value,
                f"part {part.number + 1} of {part.count} where part {number + 1} of {len(records)} has to be",
            )
        if (mark, part.checksum) != (found[-1][1], final.checksum):
            raise CursorFormatError(last.value, "its parts do not belong together")
    body = b"".join(part.body for part in parts)
    if len(records) > 1 and zlib.crc32(body) != final.checksum:
        raise CursorFormatError(last.value, "its parts have another checksum than they say")
    return body, found[-1][0], found[-1][1]


def parts_of(record: bytes, kind: Kind) -> tuple[int, int]:
    """Return which piece, from 0, of how many a record is.

    :raises CursorFormatError: it is not of this kind
    """
    part = expect(record, kind)[0].part
    if part.number >= part.count or part.count > _MOST_PARTS:
        raise CursorFormatError(kind.value, f"there is no part {part.number + 1} of {part.count}")
    return part.number, part.count


def _part_size(body: int, said: int) -> int:
    part = said + 1 + varint_bytes(body) + body
    return 2 + varint_bytes(part) + part


def _describe(part: Any, number: int, count: int, checksum: int) -> None:
    part.number, part.count, part.checksum = number, count, checksum


def empty_record() -> Any:
    """Return a PositionInfo that claims nothing."""
    return messages().PositionInfo(ledgerId=0, entryId=-1)
