"""The payload of a batch, after decompression, and its ack set: which of its messages are not acknowledged.

The payload has for each message its metadata's size (4), its metadata and its payload. On the wire an ack set is a list
of signed 64-bit words, the lowest first; a set bit is a message that is NOT acknowledged. Here it is one int.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from google.protobuf.message import DecodeError

from ..._foreign import shown
from ...errors import UndecodableMessageError
from . import _pulsar_pb2 as pb

DEFAULT_MAX_METADATA_BYTES: Final = 256 << 10
DEFAULT_MAX_BATCH_MESSAGES: Final = 1_000_000
MIN_PROPERTY_BYTES: Final = 6  # tags and sizes of a pair, its name and its value
_MIN_MESSAGE_BYTES: Final = 6  # the metadata's size, and the payload's in it
_WORD_BITS: Final = 64
_SIZE: Final = struct.Struct(">I")
_is_plain = re.compile(
    rb"\x18(?:[\x00-\x7f]|[\x80-\xff][\x00-\x7f])"  # payload size, below 16 KiB
    rb"(?:\x40[\x80-\xff]{0,9}[\x00-\x7f])?"  # sequence id
).fullmatch
"""Matches the metadata of a message that has nothing else: no key, no properties, no event time."""

Member = tuple[int, pb.SingleMessageMetadata | bytes, bytes]
"""Batch index, metadata and payload of a message in a batch; plain metadata is not parsed."""


def read_batch(payload: bytes, count: int, max_metadata_bytes: int = DEFAULT_MAX_METADATA_BYTES) -> Iterator[Member]:
    """Yield the ``count`` messages of a batch, including compacted ones. In line: the hot path of batches.

    :raises UndecodableMessageError: while iterating, at the first damaged message
    """
    at, end = 0, len(payload)
    size_of, is_plain, parse = _SIZE.unpack_from, _is_plain, pb.SingleMessageMetadata.FromString
    for index in range(count):
        start = at + 4
        if start > end:
            raise _damaged(index, count, f"nothing at byte {at} of {end}")
        middle = start + size_of(payload, at)[0]
        if middle > end:
            raise _damaged(index, count, f"metadata of {middle - start} bytes where {end - start} are left")
        metadata: pb.SingleMessageMetadata | bytes
        metadata = header = payload[start:middle]
        if is_plain(header):
            size = header[1]
            if size >= 0x80:
                size += (header[2] - 1) << 7
        else:
            if middle - start > max_metadata_bytes:
                problem = f"metadata of {middle - start} bytes, at most {max_metadata_bytes} are allowed"
                raise _damaged(index, count, f"{problem} (max_metadata_bytes)", is_local=True)
            metadata, size = _parsed(parse, header, index, count)
        at = middle + size
        if not middle <= at <= end:
            raise _damaged(index, count, f"{size} bytes where {end - middle} are left")
        yield index, metadata, payload[middle:at]


def encode_batch(messages: Iterable[tuple[pb.SingleMessageMetadata, bytes]]) -> bytes:
    """Return the payload of a batch, before compression; sets the ``payload_size`` of each message's metadata."""
    parts: list[bytes] = []
    for metadata, payload in messages:
        metadata.payload_size = len(payload)
        header = metadata.SerializeToString()
        parts += (_SIZE.pack(len(header)), header, payload)
    return b"".join(parts)


def check_count(count: int, size: int, most: int) -> None:
    """Raise UndecodableMessageError if ``size`` bytes cannot hold ``count`` messages, or if they are too many."""
    if count != 1 and not 0 < count <= size // _MIN_MESSAGE_BYTES:
        raise UndecodableMessageError(f"batch: {count} messages in {size} bytes")
    if count > most:
        problem = f"batch: {count} messages, at most {most} are allowed (max_batch_messages)"
        raise UndecodableMessageError(problem, is_local=True)


def _parsed(
    parse: Callable[[bytes], pb.SingleMessageMetadata], data: bytes, index: int, count: int
) -> tuple[pb.SingleMessageMetadata, int]:
    try:
        metadata = parse(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise _damaged(index, count, f"metadata: {shown(str(error))}") from error
    if len(metadata.properties) * MIN_PROPERTY_BYTES > len(data):
        raise _damaged(index, count, f"{len(metadata.properties)} properties in {len(data)} bytes of metadata")
    return metadata, metadata.payload_size


def _damaged(index: int, count: int, problem: str, *, is_local: bool = False) -> UndecodableMessageError:
    return UndecodableMessageError(f"batch: message {index} of {count}: {problem}", batch_size=count, is_local=is_local)


# --- ack sets ---------------------------------------------------------------------------------------------------------


def words_of(remaining: int) -> list[int]:
    """Return an ack set as signed words."""
    count = -(-remaining.bit_length() // _WORD_BITS)
    return list(struct.unpack(f"<{count}q", remaining.to_bytes(8 * count, "little")))


def remaining_of(words: Sequence[int], size: int | None = None) -> int:
    """Return an ack set from the broker as bits.

    :param size: the batch size, beyond which bits are ignored, however many words there are; None: all bits count
    """
    if size is not None:
        words = words[: -(-size // _WORD_BITS)]
    remaining = int.from_bytes(struct.pack(f"<{len(words)}q", *words), "little")
    return remaining if size is None or remaining.bit_length() <= size else remaining & all_of(size)


def all_of(size: int) -> int:
    """Return the ack set of a batch of which no message is acknowledged."""
    return (1 << size) - 1
