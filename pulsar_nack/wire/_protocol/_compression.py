"""Compression of payloads, with limits: what a message claims is checked before memory is taken for it.

A message tells its size before compression, so that the room for it is known. Each codec gets just this room; a message
that has more or less in it is damaged. zlib is the standard library's, the others are cramjam's (an extra).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Final, NamedTuple

from ..._foreign import shown
from ...errors import InvalidArgumentError, MissingExtraError, UndecodableMessageError
from .. import _pulsar_pb2 as pb
from ._zstd import check_zstd


class _Codec(NamedTuple):
    name: str
    compress: Callable[[bytes], bytes]
    decompress: Callable[[bytes, int, int], bytes]
    """Of the data, the size that is to come out, and the limit of memory; may return less, but never more."""


def compress(kind: pb.CompressionType, data: bytes) -> bytes:
    """Return ``data`` compressed, as other clients read it.

    :raises InvalidArgumentError: no such codec
    :raises MissingExtraError: cramjam is not installed
    :raises MemoryError: there is no room for it at present, which is no fault of the data
    """
    codec = _CODECS.get(kind)
    if codec is None:
        raise InvalidArgumentError("compression", kind, f"one of {', '.join(codec.name for codec in _CODECS.values())}")
    return codec.compress(data)


def decompress(kind: int, data: bytes, size: int, max_bytes: int) -> bytes:
    """Return the ``size`` bytes that ``data`` is the compressed form of.

    :param max_bytes: more are not taken
    :raises UndecodableMessageError: names what is wrong: size, codec, damage
    :raises MissingExtraError: cramjam is not installed
    :raises MemoryError: there is no room for it at present, which is no fault of the data
    """
    codec = _CODECS.get(kind)
    if codec is None:
        raise UndecodableMessageError(f"payload: compressed by an unknown codec, number {kind}", is_local=True)
    if size > max_bytes:
        problem = f"payload: {size} bytes before compression, at most {max_bytes} are taken"
        raise UndecodableMessageError(problem, is_local=True)
    try:
        result = codec.decompress(data, size, max_bytes)
    except (MissingExtraError, MemoryError):
        raise
    except Exception as error:
        problem = f"payload: damaged {codec.name} data, {len(data)} bytes: {shown(str(error))}"
        raise UndecodableMessageError(problem) from error
    if len(result) != size:
        raise UndecodableMessageError(f"payload: {codec.name} data of {len(result)} bytes, {size} were to come out")
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
    """Decompress; Java's client does not write the end of the stream, so that it may be missing."""
    del max_bytes
    result = zlib.decompressobj().decompress(data, size + 1)
    if len(result) > size:
        raise ValueError(f"more than {size} bytes come out")
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


_CODECS: Final[dict[int, _Codec]] = {
    pb.NONE: _Codec("none", lambda data: data, lambda data, _size, _max_bytes: data),
    pb.LZ4: _Codec("lz4", lambda data: bytes(_cramjam().lz4.compress_block(data, store_size=False)), _unlz4),
    pb.ZLIB: _Codec("zlib", zlib.compress, _unzlib),
    pb.ZSTD: _Codec("zstd", lambda data: bytes(_cramjam().zstd.compress(data)), _unzstd),
    pb.SNAPPY: _Codec("snappy", lambda data: bytes(_cramjam().snappy.compress_raw(data)), _unsnappy),
}
