"""The hashes of keys by which clients choose a partition: those of the Java client, which has its keys at the same."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

_INT31: Final = 0x7FFF_FFFF
_INT32: Final = 0xFFFF_FFFF
_CACHED: Final = 4_096


@lru_cache(_CACHED)
def java_string_hash(key: str) -> int:
    """Return ``String.hashCode`` of Java without its sign, 0 to 2**31 - 1; the Java client's default."""
    found = 0
    data = key.encode("utf-16-le", "surrogatepass")
    for (unit,) in struct.iter_unpack("<H", data):
        found = (31 * found + unit) & _INT32
    return found & _INT31


@lru_cache(_CACHED)
def murmur3_hash(key: str) -> int:
    """Return the 32-bit MurmurHash3 of the key's UTF-8, seed 0, without its sign."""
    data = key.encode("utf-8", "surrogatepass")
    found = 0
    blocks = len(data) // 4
    for (block,) in struct.iter_unpack("<I", data[: 4 * blocks]):
        found = _rotated(found ^ _scrambled(block), 13) * 5 + 0xE6546B64 & _INT32
    tail = data[4 * blocks :]
    if tail:
        found ^= _scrambled(int.from_bytes(tail, "little"))
    return _finished(found ^ len(data)) & _INT31


def _scrambled(block: int) -> int:
    return _rotated(block * 0xCC9E2D51 & _INT32, 15) * 0x1B873593 & _INT32


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _INT32


def _finished(value: int) -> int:
    value = (value ^ value >> 16) * 0x85EBCA6B & _INT32
    value = (value ^ value >> 13) * 0xC2B2AE35 & _INT32
    return value ^ value >> 16
