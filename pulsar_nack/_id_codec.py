"""``MessageIdData`` of Pulsar's binary protocol: seven numeric fields, read and written without a protobuf runtime.

The core does not depend on protobuf, and this one message needs only varints and one nested message. Field numbers:
ledgerId 1, entryId 2, partition 3, batch_index 4, ack_set 5 (skipped), batch_size 6, first_chunk_message_id 7. Negative
int32 values take ten bytes, as protobuf writes them; when read they are cut to their lowest 32 bits, as protobuf reads
them. A first chunk that is chunked itself is refused, so that no input can nest.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from .errors import InvalidArgumentError

_LEDGER: Final = 1
_ENTRY: Final = 2
_PARTITION: Final = 3
_BATCH_INDEX: Final = 4
_BATCH_SIZE: Final = 6
_FIRST_CHUNK: Final = 7
_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5
_MASK64: Final = 2**64 - 1


class IdFields(NamedTuple):
    """The numeric fields of a message id."""

    ledger: int
    entry: int
    partition: int
    batch_index: int
    batch_size: int


def encode_id(fields: IdFields, first_chunk: bytes | None) -> bytes:
    """Return the wire form, without fields that have their defaults; ``first_chunk`` is the one of the first chunk."""
    out = bytearray()
    _put(out, _LEDGER, fields.ledger)
    _put(out, _ENTRY, fields.entry)
    if fields.partition != -1:
        _put(out, _PARTITION, fields.partition)
    if fields.batch_index != -1:
        _put(out, _BATCH_INDEX, fields.batch_index)
    if fields.batch_size:
        _put(out, _BATCH_SIZE, fields.batch_size)
    if first_chunk is not None:
        out += _varint(_FIRST_CHUNK << 3 | _BYTES) + _varint(len(first_chunk)) + first_chunk
    return bytes(out)


def decode_id(data: object) -> tuple[IdFields, IdFields | None]:
    """Read the wire form; return the fields of the message and of its first chunk. Unknown fields are skipped.

    :raises InvalidArgumentError: truncated bytes, a missing ledger or entry, or a first chunk that is chunked
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise InvalidArgumentError("data", data, "the bytes of a message id")
    data = bytes(data)
    numbers, first = _fields(data)
    if first is None:
        return _id_fields(data, numbers), None
    first_numbers, nested = _fields(first)
    if nested is not None:
        raise InvalidArgumentError("data", first, "a first chunk that is not chunked itself")
    return _id_fields(data, numbers), _id_fields(first, first_numbers)


def _id_fields(data: bytes, numbers: dict[int, int]) -> IdFields:
    if _LEDGER not in numbers or _ENTRY not in numbers:
        raise InvalidArgumentError("data", data, "a message id with a ledger and an entry")
    return IdFields(
        numbers[_LEDGER],
        numbers[_ENTRY],
        _int32(numbers.get(_PARTITION, -1)),
        _int32(numbers.get(_BATCH_INDEX, -1)),
        max(_int32(numbers.get(_BATCH_SIZE, 0)), 0),
    )


def _int32(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


def _fields(data: bytes) -> tuple[dict[int, int], bytes | None]:
    numbers: dict[int, int] = {}
    first: bytes | None = None
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _read_varint(data, at)
            numbers[tag >> 3] = value - 2**64 if value >= 2**63 else value
            continue
        length = {_FIXED64: 8, _FIXED32: 4}.get(kind)
        if kind == _BYTES:
            length, at = _read_varint(data, at)
        if length is None or at + length > len(data):
            raise InvalidArgumentError("data", data, "the bytes of a message id")
        if tag >> 3 == _FIRST_CHUNK and kind == _BYTES:
            first = data[at : at + length]
        at += length
    return numbers, first


def _put(out: bytearray, field: int, value: int) -> None:
    out += _varint(field << 3 | _VARINT)
    out += _varint(value)


def _varint(value: int) -> bytes:
    value &= _MASK64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK64, at
    raise InvalidArgumentError("data", data, "the bytes of a message id")
