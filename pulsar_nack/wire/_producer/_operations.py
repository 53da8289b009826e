"""What is sent as one SEND command, with one receipt: a message, a batch, or a part of a message. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ...errors import InvalidArgumentError
from ...ids import MessageId, Position
from .. import _pulsar_pb2 as pb
from .._protocol._compression import compress
from .._protocol._entries import decode_entry, encode_batch
from .._protocol._frames import encode_command_with, encode_rest
from ._outgoing import Outgoing, epoch_ms

_METADATA_BYTES: Final = 8 << 10
"""Most that a frame may be larger than the largest payload; brokers allow 10 KiB."""


class Operation:
    """One SEND; kept until its receipt, so that it can be sent again.

    :param messages: those that it is the last part of; a part that is not the last has none
    :param sequence_id: of its first message
    :param highest_sequence_id: of its last message
    :param rest: what follows the command in the frame
    :param ends_at: loop time when it has failed, None: never
    :param message: that it is a part of, None: it is no part
    :param parts: all parts of that message in order, this one among them; shared by them
    """

    __slots__ = (
        "count",
        "ends_at",
        "highest_sequence_id",
        "is_overtaken",
        "message",
        "messages",
        "parts",
        "place",
        "rest",
        "sequence_id",
    )

    def __init__(
        self,
        messages: Sequence[Outgoing],
        rest: bytes,
        *,
        count: int,
        sequence_id: int,
        highest_sequence_id: int,
        ends_at: float | None,
        message: Outgoing | None = None,
        parts: list[Operation] | None = None,
    ) -> None:
        self.messages = messages
        self.rest = rest
        self.count = count
        self.sequence_id = sequence_id
        self.highest_sequence_id = highest_sequence_id
        self.ends_at = ends_at
        self.message = message
        self.parts = parts
        self.place: Position | None = None
        """Where a part was stored when it was last sent."""
        self.is_overtaken = False
        """Whether a later one was confirmed before it: that the broker has had it does not mean that it is stored."""

    @property
    def is_part(self) -> bool:
        """Return whether it is a part of a message only."""
        return self.parts is not None

    @property
    def is_last_part(self) -> bool:
        """Return whether its receipt is that of a message that was cut up."""
        return self.parts is not None and bool(self.messages)

    def parts_before(self) -> Sequence[Operation]:
        """Return the parts of its message that come before it."""
        return () if self.parts is None else self.parts[: self.parts.index(self)]

    def frame(self, producer_id: int) -> bytes:
        """Return the bytes to send for a producer as the broker knows it."""
        command = pb.BaseCommand(type=pb.BaseCommand.SEND)
        send = command.send
        send.producer_id = producer_id
        send.sequence_id = self.sequence_id
        if self.count > 1:
            send.num_messages = self.count
        if self.highest_sequence_id != self.sequence_id:
            send.highest_sequence_id = self.highest_sequence_id
        if self.is_part:
            send.is_chunk = True
        return encode_command_with(command, self.rest)

    def stored(self, ledger: int, entry: int, partition: int, topic: str) -> None:
        """Tell the messages their ids."""
        if self.parts is not None:
            self.place = Position(ledger, entry)
        if self.count > 1:
            for index, message in enumerate(self.messages):
                message.stored(MessageId(ledger, entry, partition, index, batch_size=self.count, topic=topic))
        elif self.messages:
            self.messages[0].stored(self._single_id(ledger, entry, partition, topic))

    def _single_id(self, ledger: int, entry: int, partition: int, topic: str) -> MessageId:
        if self.parts is None or ledger < 0:
            return MessageId(ledger, entry, partition, topic=topic)
        places = [part.place for part in self.parts if part.place is not None]
        first = MessageId(*places[0], partition, topic=topic)
        return MessageId(ledger, entry, partition, topic=topic, first_chunk=first, chunks=places)


class Encoding(NamedTuple):
    """How a producer's messages are encoded.

    :param producer_name: as the broker knows it
    :param compression: a codec
    :param max_message_bytes: most of a payload
    :param part_bytes: most of a part of a message, or None: larger messages are refused
    :param schema_version: as the broker numbers the producer's schema, empty: it has none
    """

    producer_name: str
    compression: pb.CompressionType
    max_message_bytes: int
    part_bytes: int | None
    schema_version: bytes = b""


def single(message: Outgoing, encoding: Encoding, ends_at: float | None, *, before: int) -> list[Operation]:
    """Return how a message that has its sequence id is sent by itself: as one, or in parts where it is too large.

    :param before: the sequence id of the message before it, -1: there is none
    :raises InvalidArgumentError: it is too large
    """
    metadata = _metadata(encoding, message)
    message.fill_entry(metadata)
    payload = _compressed(metadata, message.data, encoding)
    if encoding.part_bytes is not None and len(payload) + metadata.ByteSize() > encoding.part_bytes:
        return _parts(message, metadata, payload, encoding.part_bytes, ends_at, before=before)
    _check_size(metadata, payload, encoding)
    return [_operation([message], metadata, payload, metadata.sequence_id, ends_at)]


def batch(messages: Sequence[Outgoing], encoding: Encoding, ends_at: float | None) -> Operation:
    """Return how messages that have their sequence ids are sent as one entry.

    :raises InvalidArgumentError: they are too large together
    """
    metadata = _metadata(encoding, messages[0])
    highest = messages[-1].sequence_id or 0
    metadata.num_messages_in_batch = len(messages)
    if highest != metadata.sequence_id:
        metadata.highest_sequence_id = highest
    messages[0].fill_keys(metadata)
    payload = _compressed(metadata, encode_batch(map(_of_batch, messages)), encoding)
    _check_size(metadata, payload, encoding)
    return _operation(messages, metadata, payload, highest, ends_at)


def divided(operation: Operation, last: int, encoding: Encoding) -> list[Operation]:
    """Return what a batch is sent as of which the broker has had the messages up to a sequence id, and no more.

    A broker that has had the first message of a batch drops all of it.
    """
    for message, stored in zip(operation.messages, decode_entry(operation.rest).messages(), strict=True):
        message.data = stored.payload
    had = [message for message in operation.messages if (message.sequence_id or 0) <= last]
    operations: list[Operation] = []
    for messages in (had, operation.messages[len(had) :]):
        if len(messages) == 1:
            operations += single(messages[0], encoding, operation.ends_at, before=last)
        else:
            operations.append(batch(messages, encoding, operation.ends_at))
        for message in messages:
            message.data = b""
    return operations


def _of_batch(message: Outgoing) -> tuple[pb.SingleMessageMetadata, bytes]:
    metadata = pb.SingleMessageMetadata(sequence_id=message.sequence_id)
    message.fill(metadata)
    return metadata, message.data


def _metadata(encoding: Encoding, first: Outgoing) -> pb.MessageMetadata:
    metadata = pb.MessageMetadata(
        producer_name=encoding.producer_name, sequence_id=first.sequence_id, publish_time=epoch_ms()
    )
    if encoding.schema_version:
        metadata.schema_version = encoding.schema_version
    return metadata


def _compressed(metadata: pb.MessageMetadata, payload: bytes, encoding: Encoding) -> bytes:
    if not encoding.compression or not payload:
        return payload
    metadata.compression = encoding.compression
    metadata.uncompressed_size = len(payload)
    return compress(encoding.compression, payload)


def _operation(
    messages: Sequence[Outgoing], metadata: pb.MessageMetadata, payload: bytes, highest: int, ends_at: float | None
) -> Operation:
    return Operation(
        messages,
        encode_rest(metadata, payload),
        count=len(messages),
        sequence_id=metadata.sequence_id,
        highest_sequence_id=highest,
        ends_at=ends_at,
    )


def _parts(
    message: Outgoing, metadata: pb.MessageMetadata, payload: bytes, most: int, ends_at: float | None, *, before: int
) -> list[Operation]:
    """Cut a message up.

    Only the last part says which message it is. A broker that loads a topic takes the sequence ids that its entries
    have for those of whole messages: if some parts had been stored, it would drop the last one when it is sent again.
    """
    sequence_id = metadata.sequence_id
    metadata.uuid = f"{metadata.producer_name}-{sequence_id}"
    metadata.total_chunk_msg_size = len(payload)
    metadata.num_chunks_from_msg = metadata.chunk_id = len(payload)  # as many bytes as these may take
    last_size = metadata.ByteSize()
    metadata.sequence_id = before % 2**64
    if before < 0:
        metadata.highest_sequence_id = metadata.sequence_id  # 0 unless it is given, and the higher one counts
    size = most - max(metadata.ByteSize(), last_size)
    if size <= 0:
        raise InvalidArgumentError("properties", message.properties, f"with the keys fewer than {most} bytes")
    count = -(-len(payload) // size)
    metadata.num_chunks_from_msg = count
    parts: list[Operation] = []
    for number in range(count):
        is_last = number == count - 1
        if is_last:
            metadata.sequence_id = sequence_id
            metadata.ClearField("highest_sequence_id")
        metadata.chunk_id = number
        parts.append(
            Operation(
                [message] if is_last else [],
                encode_rest(metadata, payload[number * size : (number + 1) * size]),
                count=1,
                sequence_id=sequence_id,
                highest_sequence_id=sequence_id,
                ends_at=ends_at,
                message=message,
                parts=parts,
            )
        )
    return parts


def _check_size(metadata: pb.MessageMetadata, payload: bytes, encoding: Encoding) -> None:
    most, size, more = encoding.max_message_bytes, len(payload), metadata.ByteSize()
    if size > most:
        raise InvalidArgumentError("data", f"{size} bytes", f"at most {most} bytes, which the broker takes")
    if size + more > most + _METADATA_BYTES:
        raise InvalidArgumentError("properties", f"{more} bytes", f"with the keys at most {_METADATA_BYTES} bytes")
