"""Compression: round trips, limits before memory, and damage."""

from __future__ import annotations

import sys
import tracemalloc
import zlib

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack import InvalidArgumentError
from pulsar_nack.errors import MissingExtraError, UndecodableMessageError
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from pulsar_nack.wire._protocol._compression import check_zstd, compress, decompress, require_compression
from tests.tiers import seeds

KINDS = {name: value for name, value in pb.CompressionType.items() if value}
LIMIT = 1 << 20
TEXT = b"a message of a few words, a message of a few words. " * 200
all_kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


def refused(kind: int, data: bytes, size: int, limit: int = LIMIT) -> str:
    """Return the reason why it is not decompressed."""
    with pytest.raises(UndecodableMessageError) as caught:
        decompress(kind, data, size, limit)
    return str(caught.value)


@all_kinds
@given(data=st.binary(max_size=300) | st.integers(0, 100_000).map(bytes))
def test_what_was_compressed_comes_back(kind: pb.CompressionType, data: bytes) -> None:
    """Every payload is equal after compression and decompression, empty ones too."""
    packed = compress(kind, data)
    assert type(packed) is bytes
    result = decompress(kind, packed, len(data), LIMIT)
    assert result == data
    assert type(result) is bytes


@all_kinds
@pytest.mark.parametrize("change", [-1, 1, 10_000])
def test_another_size_than_announced_is_damage(kind: pb.CompressionType, change: int) -> None:
    """A payload with more or fewer bytes than announced is refused."""
    assert refused(kind, compress(kind, TEXT), len(TEXT) + change).startswith("payload: ")


@all_kinds
def test_what_ends_early_is_damage(kind: pb.CompressionType) -> None:
    """It is refused wherever it is cut; only zlib's checksum at the end may be missing."""
    packed = compress(kind, TEXT)
    for end in range(len(packed) - (6 if kind == pb.ZLIB else 0)):
        assert refused(kind, packed[:end], len(TEXT)).startswith("payload: ")


def test_zlib_without_its_end() -> None:
    """Java's client flushes the stream and does not end it."""
    stream = zlib.compressobj()
    packed = stream.compress(TEXT) + stream.flush(zlib.Z_SYNC_FLUSH)
    assert decompress(pb.ZLIB, packed, len(TEXT), LIMIT) == TEXT


@pytest.mark.parametrize("kind", [pb.ZLIB, pb.ZSTD])
def test_what_was_changed_does_not_grow(kind: pb.CompressionType) -> None:
    """A flipped bit anywhere gives an error or the announced number of bytes."""
    packed = compress(kind, TEXT)
    for at in range(len(packed)):
        changed = bytearray(packed)
        changed[at] ^= 0x41
        try:
            assert len(decompress(kind, bytes(changed), len(TEXT), LIMIT)) == len(TEXT)
        except UndecodableMessageError as error:
            assert str(error).startswith("payload: ")  # noqa: PT017 - either is well


@all_kinds
def test_a_bomb_takes_no_memory(kind: pb.CompressionType) -> None:
    """30 MB in a small message that announces a small size, or one beyond the limit, take hardly any memory."""
    bomb = compress(kind, bytes(30_000_000))
    tracemalloc.start()
    try:
        assert "at most 1048576 are allowed" in refused(kind, bomb, 30_000_000)
        assert refused(kind, bomb, 1_000).startswith("payload: damaged")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_an_unknown_codec() -> None:
    """It is named by its number; compressing with it is refused as well."""
    assert refused(9, b"x", 1) == "payload: compressed by an unknown codec, number 9"
    with pytest.raises(InvalidArgumentError, match="compression: expected one of none, lz4, zlib, zstd, snappy, got 9"):
        compress(9, b"x")  # type: ignore[arg-type]


def test_without_cramjam(monkeypatch: pytest.MonkeyPatch) -> None:
    """zlib and no compression work without it; the other codecs' error names the extra, and not the message."""
    packed = compress(pb.LZ4, TEXT)
    monkeypatch.setitem(sys.modules, "cramjam", None)
    assert decompress(pb.ZLIB, compress(pb.ZLIB, TEXT), len(TEXT), LIMIT) == TEXT
    require_compression(pb.ZLIB)
    require_compression(pb.NONE)
    for kind in (pb.LZ4, pb.ZSTD, pb.SNAPPY):
        with pytest.raises(MissingExtraError, match=r"pulsar-nack\[compression\]"):
            compress(kind, TEXT)
        with pytest.raises(MissingExtraError, match=r"pulsar-nack\[compression\]"):
            require_compression(kind)
        with pytest.raises(MissingExtraError, match=r"pulsar-nack\[compression\]"):
            decompress(kind, packed, len(TEXT), LIMIT)


# --- the headers of zstd ---------------------------------------------------------------------------------------------

EMPTY_BLOCK = b"\x01\x00\x00"


def frame(descriptor: int, header: bytes, blocks: bytes = EMPTY_BLOCK) -> bytes:
    """Return a zstd frame."""
    return b"\x28\xb5\x2f\xfd" + bytes([descriptor]) + header + blocks


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (frame(0x00, b"\x58"), 0),  # a window of 2 MiB, no size
        (frame(0x00, b"\x68"), 0),  # of 8 MiB, more than the limit
        (frame(0x20, b"\x05"), 5),
        (frame(0x60, b"\x01\x00"), 257),
        (frame(0xA0, b"\x01\x00\x00\x00"), 1),
        (frame(0xE0, b"\x01" + bytes(7)), 1),
        (frame(0x23, b"\x01\x02\x03\x04\x05"), 5),  # with a dictionary's id
        (frame(0x24, b"\x05", EMPTY_BLOCK + b"sum!"), 5),
        (frame(0x20, b"\x05", b"\x2b\x00\x00x"), 5),  # a block of one byte, repeated
        (frame(0x20, b"\x05", b"\x10\x00\x00xx" + EMPTY_BLOCK), 5),
    ],
    ids=lambda value: value.hex() if isinstance(value, bytes) else str(value),
)
def test_headers_that_are_well(data: bytes, size: int) -> None:
    """Every form of a header and of blocks is read."""
    check_zstd(data, size, LIMIT)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "does not begin"),
        (b"\x28\xb5\x2f\xfd", "ends early"),
        (b"\x50\x2a\x4d\x18\x00\x00\x00\x00", "does not begin"),  # a skippable frame
        (frame(0x00, b"\x69"), "needs 9437184 bytes, at most 8388608"),
        (frame(0x00, b"\xff"), "needs .* bytes, at most 8388608"),
        (frame(0x20, b"\x06"), "has 6 bytes instead of 5"),
        (frame(0xC0, b"\x58" + b"\xff" * 8), "has 18446744073709551615 bytes"),
        (frame(0x20, b"\x05", b"\x07\x00\x00"), "a block of an unknown kind at byte 6"),
        (frame(0x20, b"\x05", b"\x00\x00\x00"), "ends early"),
        (frame(0x20, b"\x05", b"\xf9\xff\xff"), "ends at byte"),
        (frame(0x20, b"\x05") + frame(0x00, b"\xff"), "ends at byte 9"),
    ],
    ids=lambda value: value.hex() if isinstance(value, bytes) else value,
)
def test_headers_that_are_not(data: bytes, problem: str) -> None:
    """Headers that need much memory, contradict the message, or are followed by other bytes are refused."""
    with pytest.raises(ValueError, match=problem):
        check_zstd(data, 5, LIMIT)


@pytest.mark.parametrize("level", seeds([1, 3, 9, 19, 22], fast=4))
def test_headers_of_all_levels(level: int) -> None:
    """Frames of compressors at all levels are read, made in one call or in a stream of unknown size."""
    check_zstd(bytes(cramjam.zstd.compress(TEXT, level)), len(TEXT), LIMIT)
    stream = cramjam.zstd.Compressor(level)
    stream.compress(TEXT)
    packed = bytes(stream.finish())
    if level < 22:
        assert decompress(pb.ZSTD, packed, len(TEXT), LIMIT) == TEXT
    else:
        assert "needs 134217728 bytes" in refused(pb.ZSTD, packed, len(TEXT))


def test_zlib_with_something_behind_it() -> None:
    """Bytes after the stream do not change that the message is complete."""
    assert decompress(pb.ZLIB, zlib.compress(TEXT) + b"more", len(TEXT), LIMIT) == TEXT


def test_want_of_memory_is_no_damage() -> None:
    """A MemoryError is raised as it is, so that the message can be read later."""
    with pytest.raises(MemoryError):
        decompress(pb.LZ4, compress(pb.LZ4, b"x"), 1 << 62, 1 << 63)
