"""SEND commands and their encoding: a message, a batch, or a chunk of a message, with one receipt each. No I/O."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

from ...errors import InvalidArgumentError
from ...ids import MessageId, Position
from .._protocol import _pulsar_pb2 as pb
from .._protocol._batches import encode_batch, read_batch
from .._protocol._compression import compress
from .._protocol._entries import split_entry, unpack
from .._protocol._frames import encode_frame, encode_headers_and_payload
from ._outgoing import OutgoingMessage, epoch_ms

_METADATA_BYTES: Final = 8 << 10
"""How much larger than the largest payload an entry may be; brokers allow 10 KiB."""


class EntryEncoding(NamedTuple):
    """How a producer's messages are encoded.

    :param producer_name: the name at the broker
    :param compression: a codec
    :param max_message_bytes: most bytes of a payload
    :param chunk_bytes: most bytes of a chunk; None: larger messages are refused
    :param schema_version: the broker's number of the producer's schema; empty: it has none
    """

    producer_name: str
    compression: pb.CompressionType
    max_message_bytes: int
    chunk_bytes: int | None
    schema_version: bytes = b""


class SendOp:
    """One SEND command; kept until its receipt, so that it can be sent again.

    :param messages: of the entry; for a chunk the message that it is a part of
    :param headers_and_payload: what follows the command in the frame; empty while the payload is being compressed
    :param ends_at: loop time when it fails; None: never
    :param encoding: how it was encoded
    :param chunks: all chunks of the message in order; one list, shared by them; None: it is not a chunk
    """

    __slots__ = (
        "chunks",
        "count",
        "ends_at",
        "headers_and_payload",
        "highest_sequence_id",
        "is_overtaken",
        "max_message_bytes",
        "messages",
        "position",
        "sequence_id",
    )

    def __init__(
        self,
        messages: Sequence[OutgoingMessage],
        headers_and_payload: bytes,
        ends_at: float | None,
        encoding: EntryEncoding,
        chunks: list[SendOp] | None = None,
    ) -> None:
        self.messages = messages
        self.headers_and_payload = headers_and_payload
        self.count = len(messages)
        self.sequence_id = messages[0].sequence_id or 0
        self.highest_sequence_id = messages[-1].sequence_id or 0
        self.ends_at = ends_at
        self.max_message_bytes = encoding.max_message_bytes
        """The limit of the broker for which it was encoded."""
        self.chunks = chunks
        self.position: Position | None = None
        """Where a chunk was stored when it was last sent."""
        self.is_overtaken = False
        """Whether the broker takes a later op first: then it may call this one received, and not store it."""

    @property
    def is_chunk(self) -> bool:
        """Return whether it is a chunk of a message."""
        return self.chunks is not None

    @property
    def is_last(self) -> bool:
        """Return whether its receipt confirms its messages: it is no chunk, or the last one."""
        return self.chunks is None or self.chunks[-1] is self

    def previous_chunks(self) -> Sequence[SendOp]:
        """Return the chunks of its message that come before it."""
        return () if self.chunks is None else self.chunks[: self.chunks.index(self)]

    def is_too_large(self, encoding: EntryEncoding) -> bool:
        """Return whether it may be too large for a broker that allows less than the one that it was encoded for."""
        most = encoding.max_message_bytes
        return most < self.max_message_bytes and most < len(self.headers_and_payload)

    def overtake(self) -> None:
        """Note that the broker takes a later op first, for all chunks of a message."""
        for each in self.chunks or (self,):
            each.is_overtaken = True

    def frame(self, producer_id: int) -> bytes:
        """Return the frame to send."""
        command = pb.BaseCommand(type=pb.BaseCommand.SEND)
        send = command.send
        send.producer_id = producer_id
        send.sequence_id = self.sequence_id
        if self.count > 1:
            send.num_messages = self.count
        if self.highest_sequence_id != self.sequence_id:
            send.highest_sequence_id = self.highest_sequence_id
        if self.is_chunk:
            send.is_chunk = True
        return encode_frame(command, self.headers_and_payload)

    def resolve(self, ledger: int, entry: int, partition: int, topic: str) -> None:
        """Set the receipts of its messages to their ids."""
        if self.chunks is not None:
            self.position = Position(ledger, entry)
        if self.count > 1:
            for index, message in enumerate(self.messages):
                message.resolve(MessageId(ledger, entry, partition, index, batch_size=self.count, topic=topic))
        elif self.is_last:
            self.messages[0].resolve(self._single_id(ledger, entry, partition, topic))

    def _single_id(self, ledger: int, entry: int, partition: int, topic: str) -> MessageId:
        if self.chunks is None or ledger < 0:
            return MessageId(ledger, entry, partition, topic=topic)
        positions = [chunk.position for chunk in self.chunks if chunk.position is not None]
        first = MessageId(*positions[0], partition, topic=topic)
        return MessageId(ledger, entry, partition, topic=topic, first_chunk=first, chunks=positions)


def payload_of(messages: Sequence[OutgoingMessage]) -> bytes:
    """Return the payload of an entry with one message, or with several as a batch, before compression."""
    return messages[0].data if len(messages) == 1 else encode_batch(map(_member, messages))


def send_ops(
    messages: Sequence[OutgoingMessage],
    size: int,
    payload: bytes,
    encoding: EntryEncoding,
    ends_at: float | None,
    *,
    before: int = -1,
) -> list[SendOp]:
    """Encode messages that have their sequence ids as an entry; one that is too large for an entry in chunks.

    :param size: of the payload before compression
    :param payload: compressed
    :param before: the sequence id of the previous message; -1: this is the first, or there are no chunks
    :raises InvalidArgumentError: they are too large
    """
    first, last = messages[0], messages[-1]
    metadata = pb.MessageMetadata(
        producer_name=encoding.producer_name, sequence_id=first.sequence_id, publish_time=epoch_ms()
    )
    if encoding.schema_version:
        metadata.schema_version = encoding.schema_version
    if first is last:
        first.write_entry_to(metadata)
    else:
        metadata.num_messages_in_batch = len(messages)
        if last.sequence_id != first.sequence_id:
            metadata.highest_sequence_id = last.sequence_id or 0
        first.write_keys_to(metadata)
    if encoding.compression and size:
        metadata.compression = encoding.compression
        metadata.uncompressed_size = size
    if encoding.chunk_bytes is not None and len(payload) + metadata.ByteSize() > encoding.chunk_bytes:
        return _chunked(first, metadata, payload, encoding, ends_at, before=before)
    _check_size(metadata, payload, encoding)
    return [SendOp(messages, encode_headers_and_payload(metadata, payload), ends_at, encoding)]


# --- sending again ---------------------------------------------------------------------------------------------------


def encode_again(
    op: SendOp, last: int, encoding: EntryEncoding
) -> tuple[list[SendOp], list[tuple[OutgoingMessage, InvalidArgumentError]]]:
    """Encode an op for another session that cannot take it as it is; return ops, and messages that are too large now.

    It is larger than the broker of this session allows; or it is a batch of which the broker has received the messages
    up to the sequence id ``last``: it would drop the whole batch, as it has received the first one.

    :param op: of a chunked message any chunk; it stands for all of them
    """
    failed: list[tuple[OutgoingMessage, InvalidArgumentError]] = []
    entry, *others = [split_entry(each.headers_and_payload, sys.maxsize, sys.maxsize) for each in op.chunks or (op,)]
    if op.count == 1:
        payload = b"".join((entry.payload, *(each.payload for each in others)))
        size, before = entry.metadata.uncompressed_size, op.sequence_id - 1
        try:
            return send_ops(op.messages, size, payload, encoding, op.ends_at, before=before), failed
        except InvalidArgumentError as error:
            return [], [(op.messages[0], error)]
    batch = unpack(entry.metadata, entry.payload, sys.maxsize)
    for message, (_, _, payload) in zip(op.messages, read_batch(batch, op.count, len(batch)), strict=True):
        message.data = payload
    had = [message for message in op.messages if (message.sequence_id or 0) <= last]
    ops = _fitting(had, encoding, op.ends_at, failed) + _fitting(op.messages[len(had) :], encoding, op.ends_at, failed)
    for message in op.messages:
        message.data = b""
    return ops, failed


def _fitting(
    messages: Sequence[OutgoingMessage],
    encoding: EntryEncoding,
    ends_at: float | None,
    failed: list[tuple[OutgoingMessage, InvalidArgumentError]],
) -> list[SendOp]:
    """Encode messages in batches that are not too large; add messages that are too large alone to ``failed``."""
    if not messages:
        return []
    payload = payload_of(messages)
    size = len(payload)
    try:
        payload = compress(encoding.compression, payload) if size else payload
        return send_ops(messages, size, payload, encoding, ends_at)
    except InvalidArgumentError as error:
        if len(messages) == 1:
            failed.append((messages[0], error))
            return []
    middle = len(messages) // 2
    return [
        each for part in (messages[:middle], messages[middle:]) for each in _fitting(part, encoding, ends_at, failed)
    ]


# --- encoding --------------------------------------------------------------------------------------------------------


def _member(message: OutgoingMessage) -> tuple[pb.SingleMessageMetadata, bytes]:
    metadata = pb.SingleMessageMetadata(sequence_id=message.sequence_id)
    message.write_to(metadata)
    return metadata, message.data


def _chunked(
    message: OutgoingMessage,
    metadata: pb.MessageMetadata,
    payload: bytes,
    encoding: EntryEncoding,
    ends_at: float | None,
    *,
    before: int,
) -> list[SendOp]:
    """Cut a message into chunks.

    Only the last chunk has the message's sequence id, the others the previous one. A broker that loads a topic takes
    the sequence ids of its entries for those of whole messages: if some chunks had been stored with the id, it would
    drop the last one when it is sent again.
    """
    most, sequence_id = encoding.chunk_bytes or 0, metadata.sequence_id
    metadata.uuid = f"{metadata.producer_name}-{sequence_id}"
    metadata.total_chunk_msg_size = len(payload)
    metadata.num_chunks_from_msg = metadata.chunk_id = len(payload)  # the longest encoding that these may need
    last_size = metadata.ByteSize()
    metadata.sequence_id = before % 2**64
    if before < 0:
        metadata.highest_sequence_id = metadata.sequence_id  # the higher id counts, and this is 0 if not set
    size = most - max(metadata.ByteSize(), last_size)
    if size <= 0:
        raise InvalidArgumentError("properties", message.properties, f"with the keys fewer than {most} bytes")
    count = -(-len(payload) // size)
    metadata.num_chunks_from_msg = count
    chunks: list[SendOp] = []
    for number in range(count):
        if number == count - 1:
            metadata.sequence_id = sequence_id
            metadata.ClearField("highest_sequence_id")
        metadata.chunk_id = number
        part = encode_headers_and_payload(metadata, payload[number * size : (number + 1) * size])
        chunks.append(SendOp([message], part, ends_at, encoding, chunks))
    return chunks


def _check_size(metadata: pb.MessageMetadata, payload: bytes, encoding: EntryEncoding) -> None:
    most, size, more = encoding.max_message_bytes, len(payload), metadata.ByteSize()
    if size > most:
        raise InvalidArgumentError("data", f"{size} bytes", f"at most {most} bytes, the limit of the broker")
    if size + more > most + _METADATA_BYTES:
        raise InvalidArgumentError("properties", f"{more} bytes", f"with the keys at most {_METADATA_BYTES} bytes")
