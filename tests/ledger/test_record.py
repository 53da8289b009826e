"""Frames of records: encoded frames are decoded, and damage is not read as a frame."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack.ledger.format import (
    FOREIGN,
    FRAME_HEADER_SIZE,
    MAX_BODY,
    SEGMENT_HEADER_SIZE,
    Damaged,
    Frame,
    Incomplete,
    NewerVersion,
    body_size,
    decode_frame,
    decode_segment_header,
    encode_frame,
    encode_segment_header,
    find_seed,
    frame_size,
    has_later_frame,
    seed_of,
)

RECORDS = st.lists(st.binary(max_size=50), max_size=6)
NUMBERS = st.integers(0, 2**63)
SALTS = st.integers(0, 2**32 - 1)


@given(NUMBERS, RECORDS, SALTS, st.binary(max_size=20), st.binary(max_size=20))
def test_frame_round_trip(first: int, records: list[bytes], salt: int, before: bytes, after: bytes) -> None:
    """A frame is read anywhere in a buffer, and has its end; without records it is the seal."""
    data = encode_frame(first, records, salt)
    assert len(data) == frame_size(records) == FRAME_HEADER_SIZE + body_size(records)
    found = decode_frame(before + data + after, len(before), first, salt)
    assert isinstance(found, Frame)
    assert (found.first, found.records(), found.end) == (first, records, len(before) + len(data))
    assert (found.length, found.is_seal) == (len(records), not records)
    for start in range(len(records) + 1):
        for stop in range(start, len(records) + 2):
            assert found.records(start, stop) == records[start:stop]


@given(NUMBERS, SALTS)
def test_segment_header_round_trip(first: int, salt: int) -> None:
    """A segment's header is equal when read."""
    data = encode_segment_header(first, salt, "a")
    assert len(data) == SEGMENT_HEADER_SIZE
    assert decode_segment_header(data + b"more", "a") == (first, seed_of(salt, "a"))


def test_a_segment_knows_its_log() -> None:
    """O26: a header and a frame of another log are distinguished from damage, and are not read."""
    salt, record = 5, [b"x"]
    data = encode_segment_header(7, salt, "a") + encode_frame(7, record, seed_of(salt, "a"))
    assert decode_segment_header(data, "b") == FOREIGN
    assert isinstance(decode_frame(data, SEGMENT_HEADER_SIZE, 7, seed_of(salt, "b")), Damaged)
    assert find_seed(data, 7, "a") == seed_of(salt, "a")
    assert find_seed(data, 7, "b") is None


@given(RECORDS, SALTS)
def test_cut_at_every_byte(records: list[bytes], salt: int) -> None:
    """A frame that is cut at any byte is incomplete, and its header, once whole, gives its size."""
    data = encode_frame(7, records, salt)
    for size in range(len(data)):
        expected = FRAME_HEADER_SIZE if size < FRAME_HEADER_SIZE else len(data)
        assert decode_frame(data[:size], 0, 7, salt) == Incomplete(expected)


@given(RECORDS, SALTS, st.data())
def test_any_flipped_bit(records: list[bytes], salt: int, draw: st.DataObject) -> None:
    """One flipped bit anywhere in a frame, or in a segment's header, is detected."""
    for data, is_header in ((encode_frame(7, records, salt), False), (encode_segment_header(7, salt, "a"), True)):
        bit = draw.draw(st.integers(0, 8 * len(data) - 1))
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        found = decode_segment_header(bytes(broken), "a") if is_header else decode_frame(bytes(broken), 0, 7, salt)
        assert isinstance(found, Damaged)


@given(st.binary(max_size=300), SALTS)
def test_garbage(data: bytes, salt: int) -> None:
    """Random bytes are neither a frame nor a segment, and take no memory."""
    assert isinstance(decode_frame(data, 0, 7, salt), Damaged | Incomplete)
    assert isinstance(decode_segment_header(data, "a"), Damaged)


def test_zeros() -> None:
    """A file that was only extended contains no frame, whatever the salt."""
    for salt in (0, 1, 2**32 - 1):
        assert isinstance(decode_frame(bytes(1000), 0, 0, salt), Damaged)
        assert not has_later_frame(bytes(1000), 0, 0, salt)


def test_wrong_place() -> None:
    """A frame with another number, or of another file, is damage."""
    data = encode_frame(7, [b"x"], 5)
    assert decode_frame(data, 0, 8, 5) == Damaged("record 7 where 8 was expected", 0)
    assert isinstance(decode_frame(data, 0, 7, 6), Damaged)


def forge(length: int, count: int, salt: int = 5) -> bytes:
    """Return a frame header with a valid checksum and wrong sizes."""
    head = (7).to_bytes(8, "big") + length.to_bytes(4, "big") + count.to_bytes(4, "big")
    return head + crc32(head, salt).to_bytes(4, "big") + bytes(4)


@pytest.mark.parametrize(("length", "count"), [(MAX_BODY + 1, 1), (2**32 - 1, 1), (7, 2), (4, 0), (0, 1)])
def test_limits_come_first(length: int, count: int) -> None:
    """Impossible sizes are damage at once, before anything is read or allocated."""
    assert decode_frame(forge(length, count), 0, 7, 5) == Damaged("checksum of a frame header", None)


def test_lengths_that_do_not_add_up() -> None:
    """Lengths beyond the body are damage even when every checksum is right."""
    head, body = forge(6, 1), (3).to_bytes(4, "big") + b"xx"
    data = head[:-4] + crc32(body, int.from_bytes(head[-8:-4], "big")).to_bytes(4, "big") + body
    assert isinstance(decode_frame(data, 0, 7, 5), Damaged)
    assert decode_frame(data, 0, 7, 5) == Damaged("checksum of the records from 7", len(data))


def test_largest_frame() -> None:
    """A body of the maximum size is equal when read."""
    record = bytes(MAX_BODY - 4)
    found = decode_frame(encode_frame(0, [record], 1), 0, 0, 1)
    assert isinstance(found, Frame)
    assert found.records() == [record]


@pytest.mark.parametrize(("version", "flags"), [(2, 0), (1, 1), (65535, 0)])
def test_newer_version(version: int, flags: int) -> None:
    """A segment of a later format is distinguished from damage."""
    data = encode_segment_header(7, 5, "a")
    data = data[:4] + version.to_bytes(2, "big") + flags.to_bytes(2, "big") + data[8:-4]
    assert decode_segment_header(data + crc32(data).to_bytes(4, "big"), "a") == NewerVersion(version)


@given(st.binary(max_size=100), st.integers(0, 2**40), RECORDS, SALTS)
def test_later_frames_are_found(garbage: bytes, first: int, records: list[bytes], salt: int) -> None:
    """A frame of later records is found after any garbage; one of earlier records is not a later one."""
    later = encode_frame(first + 3, records, salt)
    assert has_later_frame(garbage + later, 0, first, salt)
    assert not has_later_frame(garbage + encode_frame(first, records, salt), 0, first, salt)
    assert not has_later_frame(garbage + later[: FRAME_HEADER_SIZE - 1], 0, first, salt)


@pytest.mark.parametrize("first", [2**32 - 1, 2**32 - 2, 2**32])
def test_later_frames_across_a_word(first: int) -> None:
    """Numbers beyond 32 bits are found too."""
    assert has_later_frame(b"\xff" * 9 + encode_frame(first + 2, [b"x"], 1), 0, first, 1)
