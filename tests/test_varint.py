"""Varints are written and read as protobuf does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack._varint import read_varint, write_varint
from tests.for_each import for_each


def varint(number: int) -> bytes:
    """Return a number as a varint."""
    written = bytearray()
    write_varint(written, number)
    return bytes(written)


@for_each(("number", "data"), [(0, b"\0"), (127, b"\x7f"), (128, b"\x80\x01"), (2**63 - 1, b"\xff" * 8 + b"\x7f")])
def test_varint(number: int, data: bytes) -> None:
    """Numbers are written in groups of 7 bits, the lowest first."""
    assert varint(number) == data


@given(st.integers(0, 2**70 - 1), st.binary(max_size=3), st.binary(max_size=3))
def test_read_varint(number: int, before: bytes, after: bytes) -> None:
    """A varint is read from its first byte to its last; one that is cut off or endless is refused."""
    data = before + varint(number)
    assert read_varint(data + after, len(before)) == (number, len(data))
    with pytest.raises(IndexError):
        read_varint(data[:-1], len(before))
    with pytest.raises(ValueError, match="more than 10 bytes"):
        read_varint(before + b"\xff" * 11, len(before))
