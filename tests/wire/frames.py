"""Frames and entries, encoded independently of the code under test."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import google_crc32c

from pulsar_nack.errors import UndecodableMessageError
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from pulsar_nack.wire._protocol._batches import DEFAULT_MAX_BATCH_MESSAGES, DEFAULT_MAX_METADATA_BYTES
from pulsar_nack.wire._protocol._entries import (
    Entry,
    Metadata,
    batch_size_of,
    key_of,
    ordering_key_of,
    properties_of,
    split_entry,
    unpack,
)


def frame(command: pb.BaseCommand, rest: bytes = b"") -> bytes:
    """Return the frame of a command, with headers and payload."""
    body = command.SerializeToString()
    return struct.pack(">II", 4 + len(body) + len(rest), len(body)) + body + rest


def message_rest(metadata: pb.MessageMetadata, payload: bytes, *, checksum: int | None = None) -> bytes:
    """Return the headers and payload of a message; ``checksum`` replaces the right one."""
    header = metadata.SerializeToString()
    checked = struct.pack(">I", len(header)) + header + payload
    crc = google_crc32c.value(checked) if checksum is None else checksum
    return b"\x0e\x01" + struct.pack(">I", crc) + checked


def encode_message(command: pb.BaseCommand, metadata: pb.MessageMetadata, payload: bytes) -> bytes:
    """Return the frame of a command with a message, such as SEND or MESSAGE."""
    return frame(command, message_rest(metadata, payload))


def batch_payload(payloads: Sequence[bytes]) -> bytes:
    """Return the payload of a batch of plain messages."""
    parts = []
    for payload in payloads:
        single = pb.SingleMessageMetadata(payload_size=len(payload)).SerializeToString()
        parts.append(struct.pack(">I", len(single)) + single + payload)
    return b"".join(parts)


def read_message(rest: bytes) -> tuple[pb.MessageMetadata, bytes]:
    """Return metadata and payload of an entry."""
    if rest[:2] == b"\x0e\x01":
        assert google_crc32c.value(rest[6:]) == struct.unpack_from(">I", rest, 2)[0], "the checksum is wrong"
        rest = rest[6:]
    (size,) = struct.unpack_from(">I", rest)
    return pb.MessageMetadata.FromString(rest[4 : 4 + size]), rest[4 + size :]


def decode_entry(data: bytes | memoryview, *, max_message_bytes: int = 128 << 20) -> Entry:
    """Read an entry as consumers do, with its payload; chunks are returned as they are."""
    entry = split_entry(data, DEFAULT_MAX_METADATA_BYTES, DEFAULT_MAX_BATCH_MESSAGES)
    if entry.is_chunk:
        return entry
    try:
        return entry._replace(payload=unpack(entry.metadata, entry.payload, max_message_bytes))
    except UndecodableMessageError as error:
        error.batch_size = batch_size_of(entry.metadata)
        raise


def command(kind: str) -> pb.BaseCommand:
    """Return an empty command of a kind, such as ``"PING"``."""
    return pb.BaseCommand(type=kind)


class SingleMessage(NamedTuple):
    """One message of an entry; ``index`` is -1 if it is not in a batch."""

    index: int  # type: ignore[assignment]  # a tuple has a method of this name
    metadata: Metadata
    payload: bytes

    @property
    def properties(self) -> dict[str, str]:
        """Return the message's properties."""
        return properties_of(self.metadata)

    @property
    def key(self) -> str | None:
        """Return the key as it was sent: base64 if the producer's key was bytes."""
        return key_of(self.metadata) if self.metadata.HasField("partition_key") else None

    @property
    def ordering_key(self) -> str | None:
        """Return the ordering key; bytes that are not UTF-8 become surrogates."""
        return ordering_key_of(self.metadata) if self.metadata.HasField("ordering_key") else None

    @property
    def event_time_ms(self) -> int:
        """Return the producer's event time, epoch ms; 0 without one."""
        return self.metadata.event_time

    @property
    def is_compacted_out(self) -> bool:
        """Return whether compaction removed this message's content."""
        return isinstance(self.metadata, pb.SingleMessageMetadata) and self.metadata.compacted_out


def messages_of(entry: Entry) -> Iterator[SingleMessage]:
    """Yield an entry's message, or those of its batch, with all their metadata parsed."""
    if not entry.is_batch:
        yield SingleMessage(-1, entry.metadata, entry.payload)
        return
    for index, metadata, payload in entry.members():
        parsed = pb.SingleMessageMetadata.FromString(metadata) if isinstance(metadata, bytes) else metadata
        yield SingleMessage(index, parsed, payload)
