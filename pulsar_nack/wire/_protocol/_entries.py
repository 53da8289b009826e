"""Entries: the headers and payload of a message, read. No I/O.

::

    [0x0e02 | size (4) | broker entry metadata] [0x0e01 | CRC-32C of the rest (4)] size (4) | metadata | payload

An entry is one message, a batch (see ``_batches.py``), or one chunk of a message. A chunk's payload stays compressed,
since a message is compressed before it is cut into chunks.

A fault in an entry concerns that entry only. It is an :class:`~pulsar_nack.errors.UndecodableMessageError` that says
how many messages the broker counted the entry as, if that can be read.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from functools import cache
from typing import Any, Final, NamedTuple

import google_crc32c
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from ..._foreign import shown
from ...errors import UndecodableMessageError
from . import _pulsar_pb2 as pb
from ._batches import (
    DEFAULT_MAX_METADATA_BYTES,
    MIN_PROPERTY_BYTES,
    Member,
    check_count,
    read_batch,
)
from ._compression import decompress
from ._frames import MAGIC_CHECKSUM, wrong_text

_MAGIC_BROKER: Final = b"\x0e\x02"
_crc32c = google_crc32c.value
_SIZE: Final = struct.Struct(">I")
_HEADERS: Final = struct.Struct(">2sII")  # magic, checksum, size of the metadata
_PLAIN_HEADERS: Final = struct.Struct(">2sIIBB")  # magic, checksum, size of the metadata, tag and size of its name
_PLAIN_SIZE: Final = _PLAIN_HEADERS.size
_plain_headers = _PLAIN_HEADERS.unpack_from
_unchecked_headers = struct.Struct(">IBB").unpack_from  # the last three of these
_NAME: Final = 0x0A  # begins metadata: the producer's name, of less than 128 bytes
_is_after_name = re.compile(
    rb"\x10[\x80-\xff]{0,9}[\x00-\x7f]"  # sequence id
    rb"\x18[\x80-\xff]{0,9}[\x00-\x7f]"  # publish time
    rb"(?:\x48[\x80-\xff]{0,4}[\x00-\x7f])?"  # size before compression
).fullmatch
"""Matches the metadata after the name if a message has no other fields: faster than to ask for each other field."""
_FEW_BYTES: Final = 1_000  # metadata of this size cannot hold many properties
_MAX_KEYS: Final = 10  # named in the error about an encrypted payload
_NO_BROKER_METADATA: Final = pb.BrokerEntryMetadata()

Metadata = pb.MessageMetadata | pb.SingleMessageMetadata
"""Of a message; one in a batch has the second kind."""


class Entry(NamedTuple):
    """An entry with a valid checksum.

    :param metadata: of the entry; has ``producer_name``, ``sequence_id`` and ``publish_time``
    :param payload: of the message or batch, decompressed; that of a chunk as it came
    :param broker_metadata: what the broker added when it stored the entry, empty if nothing
    """

    metadata: pb.MessageMetadata
    payload: bytes
    broker_metadata: pb.BrokerEntryMetadata

    @property
    def is_batch(self) -> bool:
        """Return whether its messages have batch indexes, even if it is a batch of one."""
        return is_batch(self.metadata)

    @property
    def is_chunk(self) -> bool:
        """Return whether it is one chunk of a message."""
        return self.metadata.num_chunks_from_msg > 1

    def members(self, max_metadata_bytes: int = DEFAULT_MAX_METADATA_BYTES) -> Iterator[Member]:
        """Yield the messages of a batch, including compacted ones.

        :raises UndecodableMessageError: while iterating, at the first damaged message
        """
        return read_batch(self.payload, self.metadata.num_messages_in_batch, max_metadata_bytes)


def properties_of(metadata: Metadata, errors: str = "replace") -> dict[str, str]:
    """Return the properties of a message.

    :param errors: ``"replace"`` bytes that are not UTF-8, or ``"strict"``: raise UnicodeDecodeError
    """
    return {text_of(pair.key, errors): text_of(pair.value, errors) for pair in metadata.properties}


def key_of(metadata: Metadata, errors: str = "replace") -> str:
    """Return the key of a message that has one; ``errors`` as for :func:`properties_of`."""
    return text_of(metadata.partition_key, errors)


def ordering_key_of(metadata: Metadata) -> str:
    """Return the ordering key of a message that has one."""
    return metadata.ordering_key.decode("utf-8", "surrogateescape")


def is_batch(metadata: pb.MessageMetadata) -> bool:
    """Return whether the messages of an entry have batch indexes, even if it is a batch of one."""
    return metadata.num_messages_in_batch != 1 or metadata.HasField("num_messages_in_batch")


def split_entry(data: bytes | memoryview, max_metadata_bytes: int, max_batch_messages: int) -> Entry:
    """Read the headers of an entry and leave its payload as it came.

    Sizes and counts in the headers are checked against the limits, and against the size of the payload if known.

    :raises UndecodableMessageError: names what is wrong; ``batch_size`` says how many messages the broker counted
    """
    if type(data) is not bytes:
        data = bytes(data)
    broker_metadata, at = _NO_BROKER_METADATA, 0
    if data.startswith(_MAGIC_BROKER):
        broker_metadata, at = _broker_metadata(data, max_metadata_bytes)
    metadata, payload = _usual_parts(data, max_metadata_bytes) or _checked(data, at, max_metadata_bytes)
    try:
        _check_required(metadata)
        if metadata.encryption_keys:
            raise _encrypted(metadata)
        if metadata.num_chunks_from_msg <= 1:
            size = metadata.uncompressed_size if metadata.compression else len(payload)
            check_count(metadata.num_messages_in_batch, size, max_batch_messages)
    except UndecodableMessageError as error:
        error.batch_size = batch_size_of(metadata)
        raise
    return tuple.__new__(Entry, (metadata, payload, broker_metadata))


def readable_metadata(data: bytes | memoryview, max_metadata_bytes: int) -> pb.MessageMetadata | None:
    """Return the metadata of an entry with an unreadable payload; None if the metadata is unreadable or damaged too."""
    data = bytes(data)
    try:
        at = _broker_metadata(data, max_metadata_bytes)[1] if data.startswith(_MAGIC_BROKER) else 0
        return _checked(data, at, max_metadata_bytes)[0]
    except UndecodableMessageError:
        return None


def plain_parts(data: bytes) -> tuple[bytes, bytes] | None:
    """Return metadata and payload of a plain entry without parsing the metadata; None if the entry is not plain.

    A plain entry is one message with a valid checksum or none, without key, properties, other optional fields and
    broker entry metadata. :func:`split_entry` reads all entries.
    """
    if len(data) < _PLAIN_SIZE:
        return None
    magic, expected, size, tag, length = _plain_headers(data)
    begin = 10
    if magic != MAGIC_CHECKSUM:  # a broker may leave the checksum out
        begin, (size, tag, length) = 4, _unchecked_headers(data)
    end = begin + size
    middle = begin + 2 + length
    if tag != _NAME or length > 0x7F or end > len(data) or _is_after_name(data, middle, end) is None:
        return None
    if not (name := data[begin + 2 : middle]).isascii() and not _is_text(name):
        return None
    if begin == 10 and _crc32c(data[6:]) != expected:
        return None
    return data[begin:end], data[end:]


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def unpack(metadata: pb.MessageMetadata, payload: bytes, max_message_bytes: int) -> bytes:
    """Return the payload of an entry, or of all chunks of a message together, decompressed.

    :raises UndecodableMessageError: the payload is too large, damaged, or compressed with an unknown codec
    :raises MissingExtraError: the codec is not installed here; other programs may be able to read the payload
    """
    if metadata.compression:
        return decompress(metadata.compression, payload, metadata.uncompressed_size, max_message_bytes)
    if len(payload) > max_message_bytes:
        problem = f"payload: {len(payload)} bytes, at most {max_message_bytes} are allowed"
        raise UndecodableMessageError(problem, is_local=True)
    return payload


def _usual_parts(data: bytes, max_metadata_bytes: int) -> tuple[pb.MessageMetadata, bytes] | None:
    """Return metadata and payload in one step, or None if anything is unusual, for :func:`_checked` to handle."""
    if len(data) < _HEADERS.size:
        return None
    magic, expected, size = _HEADERS.unpack_from(data)
    end = _HEADERS.size + size
    if magic != MAGIC_CHECKSUM or end > len(data) or size > max_metadata_bytes or _crc32c(data[6:]) != expected:
        return None
    try:
        metadata = pb.MessageMetadata.FromString(data[_HEADERS.size : end])
    except (DecodeError, UnicodeDecodeError):
        return None
    if size > _FEW_BYTES:
        _check_properties(metadata, size)
    return metadata, data[end:]


def _broker_metadata(data: bytes, most: int) -> tuple[pb.BrokerEntryMetadata, int]:
    """Return the metadata that the broker added, and where it ends."""
    if len(data) < 6:
        raise UndecodableMessageError(f"broker entry metadata: {len(data)} bytes, too few for its size")
    end = 6 + _SIZE.unpack_from(data, 2)[0]
    if end > len(data):
        raise UndecodableMessageError(f"broker entry metadata: {end - 6} bytes where {len(data) - 6} are left")
    if end - 6 > most:
        raise UndecodableMessageError(f"broker entry metadata: {end - 6} bytes, at most {most} are allowed")
    try:
        return pb.BrokerEntryMetadata.FromString(data[6:end]), end
    except DecodeError as error:
        raise UndecodableMessageError(f"broker entry metadata: {shown(str(error))}") from error


def _checked(data: bytes, at: int, most: int) -> tuple[pb.MessageMetadata, bytes]:
    """Return metadata and payload that begin at ``at``, after checking their checksum, if they have one."""
    if not data.startswith(MAGIC_CHECKSUM, at):
        return _split(data, at, most)
    if len(data) < at + 6:
        raise UndecodableMessageError(f"checksum: {len(data) - at} bytes, too few to have one")
    expected = _SIZE.unpack_from(data, at + 2)[0]
    found = _crc32c(data[at + 6 :])
    if expected != found:
        problem = f"checksum: {found:#010x} instead of {expected:#010x}, over {len(data) - at - 6} bytes"
        raise _damaged(data, at + 6, problem, most)
    return _split(data, at + 6, most)


def _split(data: bytes, at: int, most: int) -> tuple[pb.MessageMetadata, bytes]:
    if len(data) < at + 4:
        raise UndecodableMessageError(f"metadata: {len(data) - at} bytes, too few for its size")
    end = at + 4 + _SIZE.unpack_from(data, at)[0]
    if end > len(data):
        raise UndecodableMessageError(f"metadata: {end - at - 4} bytes where {len(data) - at - 4} are left")
    header = data[at + 4 : end]
    _check_metadata_size(header, most)
    try:
        metadata = pb.MessageMetadata.FromString(header)
    except (DecodeError, UnicodeDecodeError) as error:
        problem = f"metadata: {shown(str(error))}"
        raise UndecodableMessageError(problem, batch_size=_batch_size_in(header)) from error
    _check_properties(metadata, len(header))
    return metadata, data[end:]


def _damaged(data: bytes, at: int, problem: str, most: int) -> UndecodableMessageError:
    """Return the error of an entry with a wrong checksum; the broker has still counted it by its metadata."""
    try:
        batch_size = batch_size_of(_split(data, at, most)[0])
    except UndecodableMessageError as error:
        batch_size = error.batch_size
    return UndecodableMessageError(problem, batch_size=batch_size)


def batch_size_of(metadata: pb.MessageMetadata) -> int:
    """Return how many messages a batch claims to have; 0 if the entry is not a batch."""
    return max(metadata.num_messages_in_batch, 1) if is_batch(metadata) else 0


def _check_properties(metadata: pb.MessageMetadata, size: int) -> None:
    """Refuse more properties than fit into ``size`` bytes: invalid ones, without name and value, take only two."""
    count = len(metadata.properties)
    if count * MIN_PROPERTY_BYTES > size:
        problem = f"metadata: {count} properties in {size} bytes"
        raise UndecodableMessageError(problem, batch_size=batch_size_of(metadata))


def _check_metadata_size(data: bytes, most: int) -> None:
    if len(data) > most:
        problem = f"metadata: {len(data)} bytes, at most {most} are allowed (max_metadata_bytes)"
        raise UndecodableMessageError(problem, batch_size=_batch_size_in(data), is_local=True)


def _batch_size_in(data: bytes) -> int:
    """Return the batch size from metadata without reading any other field; 0: not a batch."""
    try:
        found = _only_batch_size().FromString(data)
    except (DecodeError, UnicodeDecodeError):
        return 0
    return max(int(found.num_messages_in_batch), 1) if found.HasField("num_messages_in_batch") else 0


@cache
def _only_batch_size() -> Any:
    """Return a message class that has only the batch size, so that parsing skips all other fields quickly."""
    field = pb.MessageMetadata.DESCRIPTOR.fields_by_name["num_messages_in_batch"]
    file = descriptor_pb2.FileDescriptorProto(name="batch_size.proto", syntax="proto2")
    made = file.message_type.add(name="BatchSize").field.add()
    made.name, made.number = field.name, field.number
    made.type, made.label = made.TYPE_INT32, made.LABEL_OPTIONAL
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file) if hasattr(pool, "Add") else pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("BatchSize"))


def _check_required(metadata: pb.MessageMetadata) -> None:
    """Check the required fields, and the texts that all messages of an entry have in common."""
    if not (metadata.publish_time and metadata.sequence_id and metadata.producer_name):
        for name in ("producer_name", "sequence_id", "publish_time"):
            if not metadata.HasField(name):
                raise UndecodableMessageError(f"metadata: without {name}")
    if type(metadata.producer_name) is not str or type(metadata.replicated_from) is not str:
        raise UndecodableMessageError(f"metadata: {wrong_text(metadata)}")


def _encrypted(metadata: pb.MessageMetadata) -> UndecodableMessageError:
    keys = ", ".join(text_of(key.key) for key in metadata.encryption_keys[:_MAX_KEYS])
    return UndecodableMessageError(f"payload: encrypted with the key {shown(keys)}", is_local=True)


def text_of(value: str | bytes, errors: str = "replace") -> str:
    """Return a text of the protocol; protobuf returns bytes if it is not valid UTF-8."""
    return value if isinstance(value, str) else value.decode("utf-8", errors)
