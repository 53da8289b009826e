"""``MessageIdData`` of Pulsar's binary protocol: seven numeric fields, read and written without a protobuf runtime.

The core does not depend on protobuf, and this one message needs only varints and one nested message. Field numbers:
ledgerId 1, entryId 2, partition 3, batch_index 4, ack_set 5 (skipped), batch_size 6, first_chunk_message_id 7. Negative
int32 values take ten bytes, as protobuf writes them; when read they are cut to their lowest 32 bits, as protobuf reads
them. A first chunk that is chunked itself is refused, so that no input can nest.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ._varint import read_varint, write_varint
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
        write_varint(out, _FIRST_CHUNK << 3 | _BYTES)
        write_varint(out, len(first_chunk))
        out += first_chunk
    return bytes(out)


def decode_id(data: object) -> tuple[IdFields, IdFields | None]:
    """Read the wire form; return the fields of the message and of its first chunk. Unknown fields are skipped.

    :raises InvalidArgumentError: truncated bytes, a missing ledger or entry, or a first chunk that is chunked
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise InvalidArgumentError("data", data, "the bytes of a message id")
    data = bytes(data)
    try:
        numbers, first = _fields(data)
        first_numbers, nested = ({}, None) if first is None else _fields(first)
    except (IndexError, ValueError):
        raise InvalidArgumentError("data", data, "the bytes of a message id") from None
    if first is None:
        return _id_fields(data, numbers), None
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
        tag, at = read_varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = read_varint(data, at)
            numbers[tag >> 3] = (value + 2**63) % 2**64 - 2**63
            continue
        length = {_FIXED64: 8, _FIXED32: 4}.get(kind)
        if kind == _BYTES:
            length, at = read_varint(data, at)
        if length is None or at + length > len(data):
            raise ValueError("a field that does not end")
        if tag >> 3 == _FIRST_CHUNK and kind == _BYTES:
            first = data[at : at + length]
        at += length
    return numbers, first


def _put(out: bytearray, field: int, value: int) -> None:
    write_varint(out, field << 3 | _VARINT)
    write_varint(out, value & _MASK64)
