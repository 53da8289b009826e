"""Protobuf by hand, so that tests do not use the classes that they test."""

from __future__ import annotations

import functools
from collections.abc import Iterable


@functools.lru_cache(maxsize=1_000)
def varint(value: int) -> bytes:
    """Return a number as a varint; a negative one as ten bytes, as int64 is written."""
    value &= 2**64 - 1
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def number(field: int, value: int) -> bytes:
    """Return a numeric field."""
    return varint(field << 3) + varint(value)


def block(field: int, *content: bytes) -> bytes:
    """Return a field of bytes, text or a message."""
    joined = b"".join(content)
    return varint(field << 3 | 2) + varint(len(joined)) + joined


def packed(field: int, *values: int) -> bytes:
    """Return a packed repeated field."""
    return block(field, *map(varint, values))


def position(ledger: int, entry: int) -> bytes:
    """Return the two fields of a position."""
    return number(1, ledger) + number(2, entry)


def long_property(name: str, value: int) -> bytes:
    """Return one of the properties of a PositionInfo."""
    return block(4, block(1, name.encode()), number(2, value))


def words(ledger: int, *values: int) -> bytes:
    """Return a ledger's acknowledged entries as words, as Pulsar may write them in the legacy format."""
    return block(6, number(1, ledger), *(number(2, value) for value in values))


def words_of(ranges: Iterable[tuple[int, int]]) -> list[int]:
    """Return the 64-bit words of these ranges of entries."""
    bits = sum((1 << last + 1) - (1 << first) for first, last in ranges)
    return [bits >> at & 2**64 - 1 for at in range(0, bits.bit_length(), 64)]


def ledger_record(ledger: int, *body: bytes, said: bytes = b"") -> bytes:
    """Return the record of a ledger's state with this body."""
    return position(0, -1) + long_property("#acks.ledger", ledger) + block(1001, block(1, *body), said)


def marker_record(sequence: int, ledger: int, entry: int, *body: bytes, said: bytes = b"") -> bytes:
    """Return the record of a marker with this body."""
    return position(ledger, entry) + long_property("#acks.marker", sequence) + block(1001, block(1, *body), said)
