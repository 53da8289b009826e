"""SEND commands and their encoding: a message, a batch, or a chunk of a message, with one receipt each. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ...errors import InvalidArgumentError
from ...ids import MessageId, Position
from .._protocol import _pulsar_pb2 as pb
from .._protocol._batches import encode_batch
from .._protocol._compression import compress
from .._protocol._entries import decode_entry
from .._protocol._frames import encode_frame, encode_headers_and_payload
from ._outgoing import OutgoingMessage, epoch_ms

_METADATA_BYTES: Final = 8 << 10
"""How much larger than the largest payload an entry may be; brokers allow 10 KiB."""


class SendOp:
    """One SEND command; kept until its receipt, so that it can be sent again.

    :param messages: the messages that its receipt confirms: none for a chunk that is not the last
    :param headers_and_payload: what follows the command in the frame
    :param count: number of messages in the entry
    :param sequence_id: of its first message
    :param highest_sequence_id: of its last message
    :param ends_at: loop time when it fails; None: never
    :param message: the message that it is a chunk of; None: it is not a chunk
    :param chunks: all chunks of that message in order; one list, shared by them
    """

    __slots__ = (
        "chunks",
        "count",
        "ends_at",
        "headers_and_payload",
        "highest_sequence_id",
        "is_overtaken",
        "message",
        "messages",
        "position",
        "sequence_id",
    )

    def __init__(
        self,
        messages: Sequence[OutgoingMessage],
        headers_and_payload: bytes,
        *,
        count: int,
        sequence_id: int,
        highest_sequence_id: int,
        ends_at: float | None,
        message: OutgoingMessage | None = None,
        chunks: list[SendOp] | None = None,
    ) -> None:
        self.messages = messages
        self.headers_and_payload = headers_and_payload
        self.count = count
        self.sequence_id = sequence_id
        self.highest_sequence_id = highest_sequence_id
        self.ends_at = ends_at
        self.message = message
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
    def is_last_chunk(self) -> bool:
        """Return whether its receipt confirms a chunked message."""
        return self.chunks is not None and bool(self.messages)

    def previous_chunks(self) -> Sequence[SendOp]:
        """Return the chunks of its message that come before it."""
        return () if self.chunks is None else self.chunks[: self.chunks.index(self)]

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
        elif self.messages:
            self.messages[0].resolve(self._single_id(ledger, entry, partition, topic))

    def _single_id(self, ledger: int, entry: int, partition: int, topic: str) -> MessageId:
        if self.chunks is None or ledger < 0:
            return MessageId(ledger, entry, partition, topic=topic)
        positions = [chunk.position for chunk in self.chunks if chunk.position is not None]
        first = MessageId(*positions[0], partition, topic=topic)
        return MessageId(ledger, entry, partition, topic=topic, first_chunk=first, chunks=positions)


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


def message_ops(
    message: OutgoingMessage, encoding: EntryEncoding, ends_at: float | None, *, before: int
) -> list[SendOp]:
    """Encode one message that has its sequence id, in chunks if it is too large for one entry.

    :param before: the sequence id of the previous message; -1: this is the first
    :raises InvalidArgumentError: it is too large
    """
    metadata = _metadata(encoding, message)
    message.write_entry_to(metadata)
    payload = _compressed(metadata, message.data, encoding)
    if encoding.chunk_bytes is not None and len(payload) + metadata.ByteSize() > encoding.chunk_bytes:
        return _chunked(message, metadata, payload, encoding.chunk_bytes, ends_at, before=before)
    _check_size(metadata, payload, encoding)
    return [_send_op([message], metadata, payload, metadata.sequence_id, ends_at)]


def batch_op(messages: Sequence[OutgoingMessage], encoding: EntryEncoding, ends_at: float | None) -> SendOp:
    """Encode messages that have their sequence ids as a batch.

    :raises InvalidArgumentError: they are too large together
    """
    metadata = _metadata(encoding, messages[0])
    highest = messages[-1].sequence_id or 0
    metadata.num_messages_in_batch = len(messages)
    if highest != metadata.sequence_id:
        metadata.highest_sequence_id = highest
    messages[0].write_keys_to(metadata)
    payload = _compressed(metadata, encode_batch(map(_member, messages)), encoding)
    _check_size(metadata, payload, encoding)
    return _send_op(messages, metadata, payload, highest, ends_at)


def split_batch(op: SendOp, last: int, encoding: EntryEncoding) -> list[SendOp]:
    """Divide a batch of which the broker has received the messages up to the sequence id ``last``, and not the others.

    It would drop the whole batch, as it has received the first message.
    """
    for message, (_, _, payload) in zip(op.messages, decode_entry(op.headers_and_payload).members(), strict=True):
        message.data = payload
    had = [message for message in op.messages if (message.sequence_id or 0) <= last]
    ops: list[SendOp] = []
    for messages in (had, op.messages[len(had) :]):
        if len(messages) == 1:
            ops += message_ops(messages[0], encoding, op.ends_at, before=last)
        else:
            ops.append(batch_op(messages, encoding, op.ends_at))
        for message in messages:
            message.data = b""
    return ops


def _member(message: OutgoingMessage) -> tuple[pb.SingleMessageMetadata, bytes]:
    metadata = pb.SingleMessageMetadata(sequence_id=message.sequence_id)
    message.write_to(metadata)
    return metadata, message.data


def _metadata(encoding: EntryEncoding, first: OutgoingMessage) -> pb.MessageMetadata:
    metadata = pb.MessageMetadata(
        producer_name=encoding.producer_name, sequence_id=first.sequence_id, publish_time=epoch_ms()
    )
    if encoding.schema_version:
        metadata.schema_version = encoding.schema_version
    return metadata


def _compressed(metadata: pb.MessageMetadata, payload: bytes, encoding: EntryEncoding) -> bytes:
    if not encoding.compression or not payload:
        return payload
    metadata.compression = encoding.compression
    metadata.uncompressed_size = len(payload)
    return compress(encoding.compression, payload)


def _send_op(
    messages: Sequence[OutgoingMessage],
    metadata: pb.MessageMetadata,
    payload: bytes,
    highest: int,
    ends_at: float | None,
) -> SendOp:
    return SendOp(
        messages,
        encode_headers_and_payload(metadata, payload),
        count=len(messages),
        sequence_id=metadata.sequence_id,
        highest_sequence_id=highest,
        ends_at=ends_at,
    )


def _chunked(
    message: OutgoingMessage,
    metadata: pb.MessageMetadata,
    payload: bytes,
    most: int,
    ends_at: float | None,
    *,
    before: int,
) -> list[SendOp]:
    """Cut a message into chunks.

    Only the last chunk has the message's sequence id, the others the previous one. A broker that loads a topic takes
    the sequence ids of its entries for those of whole messages: if some chunks had been stored with the id, it would
    drop the last one when it is sent again.
    """
    sequence_id = metadata.sequence_id
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
        is_last = number == count - 1
        if is_last:
            metadata.sequence_id = sequence_id
            metadata.ClearField("highest_sequence_id")
        metadata.chunk_id = number
        chunks.append(
            SendOp(
                [message] if is_last else [],
                encode_headers_and_payload(metadata, payload[number * size : (number + 1) * size]),
                count=1,
                sequence_id=sequence_id,
                highest_sequence_id=sequence_id,
                ends_at=ends_at,
                message=message,
                chunks=chunks,
            )
        )
    return chunks


def _check_size(metadata: pb.MessageMetadata, payload: bytes, encoding: EntryEncoding) -> None:
    most, size, more = encoding.max_message_bytes, len(payload), metadata.ByteSize()
    if size > most:
        raise InvalidArgumentError("data", f"{size} bytes", f"at most {most} bytes, the limit of the broker")
    if size + more > most + _METADATA_BYTES:
        raise InvalidArgumentError("properties", f"{more} bytes", f"with the keys at most {_METADATA_BYTES} bytes")
