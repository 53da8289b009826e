"""Compression of payloads, with limits: the sizes that a message claims are checked before memory is allocated.

A message has its size before compression, so each codec gets exactly that much room; a message with more or less in it
is damaged. zlib is in the standard library, the other codecs are in cramjam (an extra).

A zstd frame's header (RFC 8878) claims a window that the decompressor allocates, whatever the message's size, and
frames can follow one another, each with its own. So the headers are read first: one frame is accepted, and a window up
to a limit.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Final, NamedTuple

from ..._foreign import shown
from ...errors import InvalidArgumentError, MissingExtraError, UndecodableMessageError
from . import _pulsar_pb2 as pb

LARGE: Final = 1 << 20
"""A payload of more bytes, compressed or not, is decompressed in a thread."""
LARGE_TO_COMPRESS: Final = 256 << 10
"""A payload of more bytes is compressed in a thread: compressing takes several times longer."""
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_WINDOW: Final = 8 << 20  # what every decompressor should support
_DICTIONARY_ID_BYTES: Final = (0, 1, 2, 4)
_CONTENT_SIZE_BYTES: Final = (0, 2, 4, 8)
_RLE: Final = 1
_RESERVED: Final = 3


class _Codec(NamedTuple):
    name: str
    compress: Callable[[bytes], bytes]
    decompress: Callable[[bytes, int, int], bytes]
    """Gets the data, the expected size and the limit of memory; may return less, but never more."""


def compress(kind: pb.CompressionType, data: bytes) -> bytes:
    """Return ``data`` compressed, as other clients read it.

    :raises InvalidArgumentError: no such codec
    :raises MissingExtraError: cramjam is not installed
    :raises MemoryError: there is not enough memory now; the data may be fine
    """
    codec = _CODECS.get(kind)
    if codec is None:
        raise InvalidArgumentError("compression", kind, f"one of {', '.join(codec.name for codec in _CODECS.values())}")
    return codec.compress(data)


def decompress(kind: int, data: bytes, size: int, max_bytes: int) -> bytes:
    """Return ``data`` decompressed, ``size`` bytes.

    :param max_bytes: a larger ``size`` is refused
    :raises UndecodableMessageError: names what is wrong: size, codec, damage
    :raises MissingExtraError: cramjam is not installed
    :raises MemoryError: there is not enough memory now; the data may be fine
    """
    codec = _CODECS.get(kind)
    if codec is None:
        raise UndecodableMessageError(f"payload: compressed by an unknown codec, number {kind}", is_local=True)
    if size > max_bytes:
        problem = f"payload: {size} bytes before compression, at most {max_bytes} are allowed"
        raise UndecodableMessageError(problem, is_local=True)
    try:
        result = codec.decompress(data, size, max_bytes)
    except (MissingExtraError, MemoryError):
        raise
    except Exception as error:
        problem = f"payload: damaged {codec.name} data, {len(data)} bytes: {shown(str(error))}"
        raise UndecodableMessageError(problem) from error
    if len(result) != size:
        raise UndecodableMessageError(f"payload: {codec.name} data of {len(result)} bytes, instead of {size}")
    return result


def require_compression(kind: int) -> None:
    """Raise MissingExtraError if what this codec needs is not installed."""
    if kind not in (pb.NONE, pb.ZLIB):
        _cramjam()


def _cramjam() -> ModuleType:
    try:
        import cramjam
    except ImportError as error:
        raise MissingExtraError("compression other than zlib", "cramjam>=2.8", "compression") from error
    return cramjam


def _unzlib(data: bytes, size: int, max_bytes: int) -> bytes:
    """Decompress; the end of the stream may be missing, as the Java client does not write it."""
    del max_bytes
    result = zlib.decompressobj().decompress(data, size + 1)
    if len(result) > size:
        raise ValueError(f"more than {size} bytes")
    return result


def _unlz4(data: bytes, size: int, max_bytes: int) -> bytes:
    del max_bytes
    room = bytearray(size)
    return bytes(memoryview(room)[: _cramjam().lz4.decompress_block_into(data, room)])


def _unzstd(data: bytes, size: int, max_bytes: int) -> bytes:
    jam = _cramjam()
    check_zstd(data, size, max_bytes)
    room = bytearray(size)
    return bytes(memoryview(room)[: jam.zstd.decompress_into(data, room)])


def _unsnappy(data: bytes, size: int, max_bytes: int) -> bytes:
    del max_bytes
    jam = _cramjam()
    claimed = jam.snappy.decompress_raw_len(data)
    if claimed != size:
        raise ValueError(f"it has {claimed} bytes instead of {size}")
    return bytes(jam.snappy.decompress_raw(data))


def check_zstd(data: bytes, size: int, max_bytes: int) -> None:
    """Raise ValueError unless ``data`` is one zstd frame that needs little memory and does not contradict ``size``.

    :param max_bytes: the largest window, but never below 8 MiB: compressors use that for short messages too
    """
    try:
        at = _check_zstd_header(data, size, max(max_bytes, _ZSTD_WINDOW))
        end = _end_of_zstd_blocks(data, at) + (4 if data[4] & 0x04 else 0)
    except IndexError:
        raise ValueError("it ends early") from None
    if end != len(data):
        raise ValueError(f"it ends at byte {end}")


def _check_zstd_header(data: bytes, size: int, max_window: int) -> int:
    """Return where the blocks of a frame begin."""
    if data[:4] != _ZSTD_MAGIC:
        raise ValueError("it does not begin with the magic number of zstd")
    descriptor = data[4]
    is_single = bool(descriptor & 0x20)
    at = 5
    if not is_single:
        base = 1 << (10 + (data[at] >> 3))
        window = base + (base >> 3) * (data[at] & 7)
        at += 1
        if window > max_window:
            raise ValueError(f"it needs {window} bytes, at most {max_window} are allowed")
    at += _DICTIONARY_ID_BYTES[descriptor & 3]
    width = _CONTENT_SIZE_BYTES[descriptor >> 6] or int(is_single)
    if width:
        content = int.from_bytes(data[at : at + width], "little") + (256 if width == 2 else 0)
        if content != size:
            raise ValueError(f"it has {content} bytes instead of {size}")
    return at + width


def _end_of_zstd_blocks(data: bytes, at: int) -> int:
    """Return where the frame's blocks, which begin at ``at``, end."""
    is_last = False
    while not is_last:
        header = data[at] | data[at + 1] << 8 | data[at + 2] << 16
        is_last = bool(header & 1)
        kind = header >> 1 & 3
        if kind == _RESERVED:
            raise ValueError(f"a block of an unknown kind at byte {at}")
        at += 3 + (1 if kind == _RLE else header >> 3)
    return at


_CODECS: Final[dict[int, _Codec]] = {
    pb.NONE: _Codec("none", lambda data: data, lambda data, _size, _max_bytes: data),
    pb.LZ4: _Codec("lz4", lambda data: bytes(_cramjam().lz4.compress_block(data, store_size=False)), _unlz4),
    pb.ZLIB: _Codec("zlib", zlib.compress, _unzlib),
    pb.ZSTD: _Codec("zstd", lambda data: bytes(_cramjam().zstd.compress(data)), _unzstd),
    pb.SNAPPY: _Codec("snappy", lambda data: bytes(_cramjam().snappy.compress_raw(data)), _unsnappy),
}
