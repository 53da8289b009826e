"""Varints: unsigned integers in groups of 7 bits, the lowest first, as protobuf writes them."""

from __future__ import annotations


def write_varint(into: bytearray, number: int) -> None:
    """Append a number from 0 on as a varint."""
    while number > 127:
        into.append(number & 127 | 128)
        number >>= 7
    into.append(number)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number of the varint at an offset, and the offset after it.

    :raises IndexError: the data ends before it
    :raises ValueError: it has more than 10 bytes
    """
    number = data[at]
    at += 1
    if number < 128:
        return number, at
    number, shift = number & 127, 7
    while shift < 70:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
    raise ValueError("a varint of more than 10 bytes")
