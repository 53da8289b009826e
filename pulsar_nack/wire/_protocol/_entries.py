"""Entries: what follows the command of a message in its frame, read and written. No I/O.

::

    [0x0e02 | size (4) | broker entry metadata] [0x0e01 | CRC-32C of the rest (4)] size (4) | metadata | payload

An entry is one message, a batch, or a part of a message that was cut into chunks. The payload of a batch, after
decompression, is for each message its metadata's size (4), its metadata and its payload. A chunk is left compressed,
since a message is compressed before it is cut.

Nothing here knows of connections: whatever is wrong with an entry concerns that entry only, and is an
:class:`~pulsar_nack.UndecodableMessageError` that says how many messages it was counted as, as far as that can be told.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, Final, NamedTuple, cast

import google_crc32c
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from ..._foreign import shown
from ...errors import UndecodableMessageError
from .. import _pulsar_pb2 as pb
from ._compression import decompress
from ._frames import MAGIC_CHECKSUM

DEFAULT_MAX_MESSAGE_BYTES: Final = 128 << 20
"""Of a payload after decompression, which may be larger than the largest frame."""

_MAGIC_BROKER: Final = b"\x0e\x02"
_crc32c = google_crc32c.value
_SIZE: Final = struct.Struct(">I")
_HEADERS: Final = struct.Struct(">2sII")  # magic, checksum, size of the metadata
_PLAIN_HEADERS: Final = struct.Struct(">2sIIBB")  # magic, checksum, size of the metadata, tag and size of its name
_PLAIN_SIZE: Final = _PLAIN_HEADERS.size
_plain_headers = _PLAIN_HEADERS.unpack_from
_NAME: Final = 0x0A  # begins metadata: the producer's name, of less than 128 bytes
_is_after_name = re.compile(
    rb"\x10[\x80-\xff]{0,9}[\x00-\x7f]"  # sequence id
    rb"\x18[\x80-\xff]{0,9}[\x00-\x7f]"  # publish time
    rb"(?:\x48[\x80-\xff]{0,4}[\x00-\x7f])?"  # size before compression
).fullmatch
"""What follows in the metadata of a message without anything of its own: asking for each other field costs more."""
_PLAIN_MEMBER: Final = re.compile(
    rb"\x18(?:[\x00-\x7f]|[\x80-\xff][\x00-\x7f])"  # payload size, below 16 KiB
    rb"(?:\x40[\x80-\xff]{0,9}[\x00-\x7f])?"  # sequence id
)
"""The metadata of a message of a batch without anything of its own."""
_LEAST_MESSAGE: Final = 6  # bytes that a message of a batch takes: its metadata's size and its payload's
_LEAST_PROPERTY: Final = 6  # bytes of a property: tags and sizes of the pair, its name and its value
DEFAULT_MAX_METADATA_BYTES: Final = 256 << 10
DEFAULT_MAX_BATCH_MESSAGES: Final = 1_000_000
_FEW_BYTES: Final = 1_000  # metadata of this size cannot hold many properties
_MOST_KEYS: Final = 10  # named in the error about an encrypted payload
_NO_BROKER_METADATA: Final = pb.BrokerEntryMetadata()


Metadata = pb.MessageMetadata | pb.SingleMessageMetadata
"""Of a message: a batch's members have their own kind."""


class SingleMessage(NamedTuple):
    """One message of an entry; ``index`` is its place in the batch, -1 if it is not in one.

    The properties read what they are named after when they are asked for.
    """

    index: int  # type: ignore[assignment]  # a tuple has a method of this name
    metadata: Metadata
    payload: bytes

    @property
    def properties(self) -> dict[str, str]:
        """Return the message's properties."""
        return properties_of(self.metadata)

    @property
    def key(self) -> str | None:
        """Return the key as it was sent: base64 where the producer's key was bytes."""
        return key_of(self.metadata) if self.metadata.HasField("partition_key") else None

    @property
    def ordering_key(self) -> str | None:
        """Return the ordering key; bytes that are no UTF-8 as surrogates, so that they can be had back."""
        return ordering_key_of(self.metadata) if self.metadata.HasField("ordering_key") else None

    @property
    def event_time_ms(self) -> int:
        """Return the time that the producer gave, epoch ms, 0 if it gave none."""
        return self.metadata.event_time

    @property
    def is_compacted_out(self) -> bool:
        """Return whether compaction left only the place of this message: nobody is to see it."""
        return isinstance(self.metadata, pb.SingleMessageMetadata) and self.metadata.compacted_out


Member = tuple[int, pb.SingleMessageMetadata | bytes, bytes]
"""Index, metadata and payload of a message of a batch; metadata with only sizes and a sequence id is not parsed."""


class Entry(NamedTuple):
    """An entry whose checksum was right.

    :param metadata: of the entry; ``producer_name``, ``sequence_id`` and ``publish_time`` are there for sure
    :param payload: of the message or batch, decompressed; of a chunk as it came
    :param broker_metadata: what the broker added when it stored the entry, empty if nothing
    """

    metadata: pb.MessageMetadata
    payload: bytes
    broker_metadata: pb.BrokerEntryMetadata

    @property
    def is_batch(self) -> bool:
        """Return whether its messages have batch indexes; a batch of one has."""
        return is_batch(self.metadata)

    @property
    def is_chunk(self) -> bool:
        """Return whether it is a part of a message only."""
        return self.metadata.num_chunks_from_msg > 1

    def messages(self) -> Iterator[SingleMessage]:
        """Return the message, or those of the batch one by one, compacted ones too, so that all indexes are there.

        :raises UndecodableMessageError: while iterating, at the first message of a batch that is damaged
        """
        if not is_batch(self.metadata):
            return iter((SingleMessage(-1, self.metadata, self.payload),))
        members = _members(self.payload, self.metadata.num_messages_in_batch, is_plain=_is_never_plain)
        return (SingleMessage(index, cast("Metadata", metadata), payload) for index, metadata, payload in members)

    def members(self, max_metadata_bytes: int = DEFAULT_MAX_METADATA_BYTES) -> Iterator[Member]:
        """Return what :meth:`messages` does of a batch, in half the time where its messages are plain.

        :raises UndecodableMessageError: likewise
        """
        return _members(self.payload, self.metadata.num_messages_in_batch, max_metadata_bytes)


def properties_of(metadata: Metadata) -> dict[str, str]:
    """Return the properties of a message."""
    return {text_of(pair.key): text_of(pair.value) for pair in metadata.properties}


def key_of(metadata: Metadata) -> str:
    """Return the key of a message that has one."""
    return text_of(metadata.partition_key)


def ordering_key_of(metadata: Metadata) -> str:
    """Return the ordering key of a message that has one."""
    return metadata.ordering_key.decode("utf-8", "surrogateescape")


def is_batch(metadata: pb.MessageMetadata) -> bool:
    """Return whether the messages of an entry have batch indexes; a batch of one has."""
    return metadata.num_messages_in_batch != 1 or metadata.HasField("num_messages_in_batch")


def decode_entry(rest: bytes | memoryview, *, max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES) -> Entry:
    """Read the headers and the payload of an entry: checksum, metadata, decompression.

    :param max_message_bytes: of the payload after decompression; more is refused before memory is taken for it
    :raises UndecodableMessageError: names what is wrong; ``batch_size`` says how many messages the broker counted
    :raises MissingExtraError: the package that its compression needs is not installed
    """
    entry = split_entry(rest, DEFAULT_MAX_METADATA_BYTES, DEFAULT_MAX_BATCH_MESSAGES)
    if entry.is_chunk:
        return entry
    try:
        return entry._replace(payload=unpack(entry.metadata, entry.payload, max_message_bytes))
    except UndecodableMessageError as error:
        error.batch_size = batch_size_of(entry.metadata)
        raise


def split_entry(rest: bytes | memoryview, max_metadata_bytes: int, max_batch_messages: int) -> Entry:
    """Read the headers of an entry, and leave its payload as it came.

    Sizes and counts in the headers are checked against the limits, and against the size of the payload if known.

    :raises UndecodableMessageError: as :func:`decode_entry`
    """
    if type(rest) is not bytes:
        rest = bytes(rest)
    broker_metadata, at = _NO_BROKER_METADATA, 0
    if rest.startswith(_MAGIC_BROKER):
        broker_metadata, at = _broker_metadata(rest, max_metadata_bytes)
    metadata, payload = _usual_parts(rest, max_metadata_bytes) or _checked(rest, at, max_metadata_bytes)
    try:
        _check_required(metadata)
        if metadata.encryption_keys:
            raise _encrypted(metadata)
        if metadata.num_chunks_from_msg <= 1:
            size = metadata.uncompressed_size if metadata.compression else len(payload)
            _check_count(metadata.num_messages_in_batch, size, max_batch_messages)
    except UndecodableMessageError as error:
        error.batch_size = batch_size_of(metadata)
        raise
    return tuple.__new__(Entry, (metadata, payload, broker_metadata))


def readable_metadata(rest: bytes | memoryview, max_metadata_bytes: int) -> pb.MessageMetadata | None:
    """Return the metadata of an entry whose payload cannot be read; None if that cannot be either, or is damaged."""
    data = bytes(rest)
    try:
        at = _broker_metadata(data, max_metadata_bytes)[1] if data.startswith(_MAGIC_BROKER) else 0
        return _checked(data, at, max_metadata_bytes)[0]
    except UndecodableMessageError:
        return None


def plain_parts(rest: bytes) -> tuple[bytes, bytes] | None:
    """Return metadata and payload of an entry that is one message with nothing but its payload, quickly.

    Such has a checksum that is right, and neither key nor properties nor any other field, nor was anything added by the
    broker. What its metadata says is not even parsed. None: it is not such, and :func:`decode_entry` tells more.
    """
    if len(rest) < _PLAIN_SIZE:
        return None
    magic, told, size, tag, length = _plain_headers(rest)
    end = 10 + size
    if magic != MAGIC_CHECKSUM or tag != _NAME or length > 0x7F or end > len(rest):
        return None
    if _is_after_name(rest, 12 + length, end) is None or _crc32c(rest[6:]) != told:
        return None
    return rest[10:end], rest[end:]


def unpack(metadata: pb.MessageMetadata, payload: bytes, max_message_bytes: int) -> bytes:
    """Return the payload of an entry, or of all chunks of a message together, decompressed.

    :raises UndecodableMessageError: the payload is too large, damaged, or compressed with an unknown codec
    :raises MissingExtraError: the codec is not installed here; other programs may be able to read the payload
    """
    if metadata.compression:
        return decompress(metadata.compression, payload, metadata.uncompressed_size, max_message_bytes)
    if len(payload) > max_message_bytes:
        problem = f"payload: {len(payload)} bytes, at most {max_message_bytes} are taken"
        raise UndecodableMessageError(problem, is_local=True)
    return payload


def encode_batch(messages: Iterable[tuple[pb.SingleMessageMetadata, bytes]]) -> bytes:
    """Return the payload of a batch, before compression; sets the ``payload_size`` of each message's metadata."""
    parts: list[bytes] = []
    for metadata, payload in messages:
        metadata.payload_size = len(payload)
        header = metadata.SerializeToString()
        parts += (_SIZE.pack(len(header)), header, payload)
    return b"".join(parts)


def _usual_parts(rest: bytes, max_metadata_bytes: int) -> tuple[pb.MessageMetadata, bytes] | None:
    """Return metadata and payload in one step, None if anything is unusual: :func:`_checked` tells what."""
    if len(rest) < _HEADERS.size:
        return None
    magic, told, size = _HEADERS.unpack_from(rest)
    end = _HEADERS.size + size
    if magic != MAGIC_CHECKSUM or end > len(rest) or size > max_metadata_bytes or _crc32c(rest[6:]) != told:
        return None
    try:
        metadata = pb.MessageMetadata.FromString(rest[_HEADERS.size : end])
    except (DecodeError, UnicodeDecodeError):
        return None
    if size > _FEW_BYTES:
        _check_properties(metadata, size)
    return metadata, rest[end:]


def _broker_metadata(rest: bytes, most: int) -> tuple[pb.BrokerEntryMetadata, int]:
    """Return what the broker added, and where it ends."""
    if len(rest) < 6:
        raise UndecodableMessageError(f"broker entry metadata: {len(rest)} bytes, too few for its size")
    end = 6 + _SIZE.unpack_from(rest, 2)[0]
    if end > len(rest):
        raise UndecodableMessageError(f"broker entry metadata: {end - 6} bytes where {len(rest) - 6} are left")
    if end - 6 > most:
        raise UndecodableMessageError(f"broker entry metadata: {end - 6} bytes, at most {most} are taken")
    try:
        return pb.BrokerEntryMetadata.FromString(rest[6:end]), end
    except DecodeError as error:
        raise UndecodableMessageError(f"broker entry metadata: {shown(str(error))}") from error


def _checked(rest: bytes, at: int, most: int) -> tuple[pb.MessageMetadata, bytes]:
    """Return metadata and payload that begin at ``at``; their checksum is right, if they have one."""
    if not rest.startswith(MAGIC_CHECKSUM, at):
        return _split(rest, at, most)
    if len(rest) < at + 6:
        raise UndecodableMessageError(f"checksum: {len(rest) - at} bytes, too few to have one")
    told = _SIZE.unpack_from(rest, at + 2)[0]
    found = _crc32c(rest[at + 6 :])
    if told != found:
        problem = f"checksum: {found:#010x} instead of {told:#010x}, over {len(rest) - at - 6} bytes"
        raise _damaged(rest, at + 6, problem, most)
    return _split(rest, at + 6, most)


def _split(rest: bytes, at: int, most: int) -> tuple[pb.MessageMetadata, bytes]:
    if len(rest) < at + 4:
        raise UndecodableMessageError(f"metadata: {len(rest) - at} bytes, too few for its size")
    end = at + 4 + _SIZE.unpack_from(rest, at)[0]
    if end > len(rest):
        raise UndecodableMessageError(f"metadata: {end - at - 4} bytes where {len(rest) - at - 4} are left")
    data = rest[at + 4 : end]
    _check_metadata_size(data, most)
    try:
        metadata = pb.MessageMetadata.FromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise UndecodableMessageError(f"metadata: {shown(str(error))}") from error
    _check_properties(metadata, len(data))
    return metadata, rest[end:]


def _damaged(rest: bytes, at: int, problem: str, most: int) -> UndecodableMessageError:
    """Return the error of an entry with a wrong checksum; the broker has counted it by its metadata all the same."""
    try:
        batch_size = batch_size_of(_split(rest, at, most)[0])
    except UndecodableMessageError as error:
        batch_size = error.batch_size
    return UndecodableMessageError(problem, batch_size=batch_size)


def batch_size_of(metadata: pb.MessageMetadata) -> int:
    """Return how many messages a batch says that it has, 0 for an entry that is no batch."""
    return max(metadata.num_messages_in_batch, 1) if is_batch(metadata) else 0


def _check_count(count: int, size: int, most: int) -> None:
    if count != 1 and not 0 < count <= size // _LEAST_MESSAGE:
        raise UndecodableMessageError(f"batch: {count} messages in {size} bytes")
    if count > most:
        problem = f"batch: {count} messages, at most {most} are taken (max_batch_messages)"
        raise UndecodableMessageError(problem, is_local=True)


def _check_properties(metadata: pb.MessageMetadata, size: int) -> None:
    """Refuse more properties than valid ones fit into ``size`` bytes: those without name and value take only two."""
    count = len(metadata.properties)
    if count * _LEAST_PROPERTY > size:
        problem = f"metadata: {count} properties in {size} bytes"
        raise UndecodableMessageError(problem, batch_size=batch_size_of(metadata))


def _check_metadata_size(data: bytes, most: int) -> None:
    if len(data) > most:
        problem = f"metadata: {len(data)} bytes, at most {most} are taken (max_metadata_bytes)"
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
    """Return a message class that knows only the batch size, so that parsing skips all other fields quickly."""
    field = pb.MessageMetadata.DESCRIPTOR.fields_by_name["num_messages_in_batch"]
    file = descriptor_pb2.FileDescriptorProto(name="batch_size.proto", syntax="proto2")
    made = file.message_type.add(name="BatchSize").field.add()
    made.name, made.number = field.name, field.number
    made.type, made.label = made.TYPE_INT32, made.LABEL_OPTIONAL
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file) if hasattr(pool, "Add") else pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("BatchSize"))


def _check_required(metadata: pb.MessageMetadata) -> None:
    if metadata.publish_time and metadata.sequence_id and metadata.producer_name:
        return
    for name in ("producer_name", "sequence_id", "publish_time"):
        if not metadata.HasField(name):
            raise UndecodableMessageError(f"metadata: without {name}")


def _encrypted(metadata: pb.MessageMetadata) -> UndecodableMessageError:
    keys = ", ".join(text_of(key.key) for key in metadata.encryption_keys[:_MOST_KEYS])
    return UndecodableMessageError(f"payload: encrypted with the key {shown(keys)}", is_local=True)


def _members(
    payload: bytes,
    count: int,
    max_metadata_bytes: int = DEFAULT_MAX_METADATA_BYTES,
    is_plain: Callable[[bytes], object] = _PLAIN_MEMBER.fullmatch,
) -> Iterator[Member]:
    """Cut a batch up. In line: the hot path of batches."""
    at, end = 0, len(payload)
    size_of, parse = _SIZE.unpack_from, pb.SingleMessageMetadata.FromString
    for index in range(count):
        start = at + 4
        if start > end:
            raise _damaged_batch(index, count, f"nothing at byte {at} of {end}")
        middle = start + size_of(payload, at)[0]
        if middle > end:
            raise _damaged_batch(index, count, f"metadata of {middle - start} bytes where {end - start} are left")
        metadata: pb.SingleMessageMetadata | bytes
        metadata = header = payload[start:middle]
        if is_plain(header):
            size = header[1]
            if size >= 0x80:
                size += (header[2] - 1) << 7
        else:
            if middle - start > max_metadata_bytes:
                problem = f"metadata of {middle - start} bytes, at most {max_metadata_bytes} are taken"
                raise _damaged_batch(index, count, f"{problem} (max_metadata_bytes)", is_local=True)
            metadata, size = _single_metadata(parse, header, index, count)
        at = middle + size
        if not middle <= at <= end:
            raise _damaged_batch(index, count, f"{size} bytes where {end - middle} are left")
        yield index, metadata, payload[middle:at]


def _single_metadata(
    parse: Callable[[bytes], pb.SingleMessageMetadata], data: bytes, index: int, count: int
) -> tuple[pb.SingleMessageMetadata, int]:
    try:
        metadata = parse(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise _damaged_batch(index, count, f"metadata: {shown(str(error))}") from error
    if len(metadata.properties) * _LEAST_PROPERTY > len(data):
        raise _damaged_batch(index, count, f"{len(metadata.properties)} properties in {len(data)} bytes of metadata")
    return metadata, metadata.payload_size


def _is_never_plain(_metadata: bytes) -> bool:
    return False


def _damaged_batch(index: int, count: int, problem: str, *, is_local: bool = False) -> UndecodableMessageError:
    return UndecodableMessageError(f"batch: message {index} of {count}: {problem}", batch_size=count, is_local=is_local)


def text_of(value: str | bytes) -> str:
    """Return a text of the protocol; where it is none, protobuf hands out the bytes instead."""
    return value if isinstance(value, str) else value.decode("utf-8", "replace")
