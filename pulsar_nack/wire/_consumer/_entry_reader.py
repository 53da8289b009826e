"""Reads entries as the broker sends them, and makes a delivery of each message that is not acknowledged."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Final, NamedTuple

from ...consumer import Delivery
from ...errors import InvalidArgumentError, MissingExtraError, ProtocolError, UndecodableMessageError
from ...ids import MessageId, Position, _delivered_id
from .. import _pulsar_pb2 as pb
from .._connection._options import ClientOptions
from .._protocol._chunks import Chunks, Part, Whole, short_uuid
from .._protocol._compression import require_compression
from .._protocol._entries import (
    Entry,
    batch_size_of,
    is_batch,
    key_of,
    ordering_key_of,
    plain_parts,
    properties_of,
    readable_metadata,
    split_entry,
    text_of,
    unpack,
)
from .._protocol._heads import MessageHead
from ._ack_sets import AckSets, all_of, remaining_of
from ._plain_delivery import (
    PlainMessage,
    QueuedMessage,
    plain_delivery,
    producer_name_of,
    replicated_from_of,
    schema_version_of,
    sequence_id_of,
)
from ._unread_entry import UnreadEntry

_NOTHING: Final = pb.MessageMetadata()


class Arrival(NamedTuple):
    """The messages of an entry that arrived.

    :param permits: how many permits the broker took for it
    :param found: its messages; None: all are acknowledged, or the entry is a chunk of an incomplete message
    """

    permits: int
    found: Delivery | UnreadEntry | None


class EntryReader:
    """Reads the entries of one topic or partition.

    :param topic: its full name
    :param ack_sets: gets the members of each batch that are acknowledged already
    :param options: the client's, with the limits
    :param now_ms: returns the time
    :param threads: decompress large payloads; None: the loop's threads
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        ack_sets: AckSets,
        chunks: Chunks,
        *,
        options: ClientOptions,
        now_ms: Callable[[], int],
        threads: Executor | None = None,
    ) -> None:
        self.threads = threads
        self.max_bytes = options.max_frame_bytes
        self.max_metadata_bytes = options.max_metadata_bytes
        self._max_batch_messages = options.max_batch_messages
        self._now_ms = now_ms
        self.topic = topic
        self.extras: dict[str, Any] = {"topic": topic}
        """The fields that all message ids of this topic or partition share."""
        self.partition = partition
        self.ack_sets = ack_sets
        self._chunks = chunks
        self._first: tuple[int, int] | None = None
        self._first_index = 0

    def begin_at(self, first: MessageId | None) -> None:
        """Skip messages before this one: the broker begins with a whole entry, or one entry too early."""
        self._first = None if first is None else (first.ledger, first.entry)
        self._first_index = 0 if first is None else max(first.batch_index, 0)

    def plain(self, head: MessageHead, rest: bytes) -> PlainMessage | None:
        """Return the message of an entry that is one plain message, the hot path; None for other entries."""
        if self._first is not None:
            return None
        parts = plain_parts(rest)
        if parts is None or len(parts[1]) > self.max_bytes:
            return None
        _, ledger, entry, count, _, _ = head
        if (ledger | entry) >> 63:
            return None
        return parts[1], ledger, entry, count, parts[0]

    def opened(self, item: QueuedMessage) -> Delivery:
        """Return the delivery of a prefetched item."""
        if not isinstance(item, tuple):
            return item
        data, ledger, entry, count, metadata = item
        message_id = _delivered_id((ledger, entry, self.partition, -1), self.extras)
        return plain_delivery(message_id, data, count, metadata, self.topic)

    def read(self, head: MessageHead, rest: bytes) -> Arrival:
        """Read an entry. The delivery of an unreadable one has the error: a MissingExtraError if other processes may be
        able to read it.

        :raises ProtocolError: the entry has no valid id
        """
        item = self.plain(head, rest)
        return self.read_other(head, rest) if item is None else Arrival(1, self.opened(item))

    def read_other(self, head: MessageHead, rest: bytes) -> Arrival:
        """Read an entry that is not one plain message; see :meth:`read`."""
        try:
            try:
                entry = split_entry(rest, self.max_metadata_bytes, self._max_batch_messages)
                if entry.metadata.compression:
                    require_compression(entry.metadata.compression)
            except (UndecodableMessageError, MissingExtraError) as error:
                metadata = readable_metadata(rest, self.max_metadata_bytes)
                size = batch_size_of(metadata or _NOTHING) if isinstance(error, MissingExtraError) else error.batch_size
                return Arrival(self._permits_of(head, size), self.unreadable(head, rest, error, metadata=metadata))
            if self._first is not None and (head.ledger, head.entry) < self._first:
                return Arrival(self._permits_of(head, batch_size_of(entry.metadata)), None)
            return self._arrival(head, entry, rest)
        except InvalidArgumentError as error:
            raise ProtocolError(f"command MESSAGE: {error}") from error

    # --- single messages ----------------------------------------------------------------------------------------

    def _arrival(self, head: MessageHead, entry: Entry, stored: bytes) -> Arrival:
        overhead = len(stored) - len(entry.payload)
        if entry.is_batch:
            return self._batch(head, entry, stored, overhead)
        if entry.is_chunk:
            return Arrival(1, self._chunk(head, entry, overhead))
        message_id = _delivered_id((head.ledger, head.entry, self.partition, -1), self.extras)
        return Arrival(1, self._single(head, entry, stored, message_id, overhead))

    def _single(
        self, head: MessageHead, entry: Entry, stored: bytes, message_id: MessageId, overhead: int
    ) -> Delivery | UnreadEntry:
        metadata = entry.metadata
        if metadata.compression:
            return UnreadEntry(self, head, entry, stored, overhead, message_id=message_id)
        try:
            payload = unpack(metadata, entry.payload, self.max_bytes)
        except UndecodableMessageError as error:
            return self.unreadable(head, stored, error, message_id, metadata=metadata)
        return self.delivery(message_id, head, metadata, payload)

    def unreadable(
        self,
        head: MessageHead,
        stored: bytes,
        error: Exception,
        message_id: MessageId | None = None,
        *,
        metadata: pb.MessageMetadata | None = None,
    ) -> Delivery:
        """Return the delivery of an unreadable message, with as much of its metadata as is known."""
        own = _NOTHING if metadata is None or is_batch(metadata) else metadata
        for raised in (error, error.__cause__, error.__context__):
            if raised is not None:
                raised.__traceback__ = None  # its frames would keep another copy of the entry
        return Delivery(
            id=message_id or _delivered_id((head.ledger, head.entry, self.partition, -1), self.extras),
            data=stored,
            properties=properties_of(own),
            key=key_of(own) if own.HasField("partition_key") else None,
            ordering_key=ordering_key_of(own) if own.HasField("ordering_key") else None,
            redelivery_count=head.redelivery_count,
            publish_time_ms=0 if metadata is None else metadata.publish_time,
            event_time_ms=own.event_time,
            topic=self.topic,
            error=error,
            is_key_encoded=own.partition_key_b64_encoded,
            producer_name=None if metadata is None else producer_name_of(metadata),
            sequence_id=None if metadata is None or is_batch(metadata) else metadata.sequence_id,
            schema_version=None if metadata is None else schema_version_of(metadata),
            replicated_from=None if metadata is None else replicated_from_of(metadata),
        )

    @staticmethod
    def _permits_of(head: MessageHead, size: int) -> int:
        """Return how many permits the broker took for a batch: none for members that it knows to be acknowledged."""
        if not size:
            return 1
        return remaining_of(head.ack_set, size).bit_count() if head.ack_set else size

    # --- batches -----------------------------------------------------------------------------------------------------

    def _batch(self, head: MessageHead, entry: Entry, stored: bytes, overhead: int) -> Arrival:
        size = entry.metadata.num_messages_in_batch
        whole = all_of(size)
        unacked = remaining_of(head.ack_set, size) if head.ack_set else whole
        members = unacked & ~self._before_first(head.ledger, head.entry)
        if members != whole:
            self.ack_sets.intersect((head.ledger, head.entry), members)
        if not members:
            return Arrival(unacked.bit_count(), None)
        stored = stored if entry.metadata.compression else b""
        return Arrival(unacked.bit_count(), UnreadEntry(self, head, entry, stored, overhead, members=members))

    def _before_first(self, ledger: int, entry: int) -> int:
        return all_of(self._first_index) if (ledger, entry) == self._first else 0

    # --- chunks -----------------------------------------------------------------------------------------------

    def _chunk(self, head: MessageHead, entry: Entry, overhead: int) -> Delivery | UnreadEntry | None:
        metadata = entry.metadata
        if not 0 <= metadata.chunk_id < metadata.num_chunks_from_msg:
            impossible = f"chunk: number {metadata.chunk_id} of {metadata.num_chunks_from_msg}"
            return self.unreadable(head, entry.payload, UndecodableMessageError(impossible), metadata=metadata)
        part = Part(
            uuid=short_uuid(text_of(metadata.uuid)),
            index=metadata.chunk_id,
            count=metadata.num_chunks_from_msg,
            total_bytes=metadata.total_chunk_msg_size,
            position=Position(head.ledger, head.entry),
            payload=entry.payload,
            sequence_id=metadata.sequence_id,
        )
        whole = self._chunks.add(part, self._now_ms())
        if whole is None:
            return None
        metadata.sequence_id = whole.sequence_id
        try:
            message_id = self._whole_id(whole)
        except InvalidArgumentError as error:
            wrong = UndecodableMessageError(f"payload: its chunks are not in the right place: {error}")
            return self.unreadable(head, whole.payload or b"", wrong, metadata=metadata)
        total, payload, problem = metadata.total_chunk_msg_size, whole.payload, ""
        if payload is None:
            problem = f"payload: {total} bytes in chunks, more than max_chunked_bytes"
        elif len(payload) != total:
            problem = f"payload: {len(payload)} bytes in chunks, {total} expected"
        if problem:
            incomplete = UndecodableMessageError(problem, is_local=payload is None)
            return self.unreadable(head, payload or b"", incomplete, message_id, metadata=metadata)
        return self._single(head, entry._replace(payload=payload or b""), payload or b"", message_id, overhead)

    def _whole_id(self, whole: Whole) -> MessageId:
        """Return the id of a chunked message; its chunks may have been stored in another order than the message's."""
        positions = sorted(whole.positions)
        return MessageId(
            *positions[-1],
            self.partition,
            topic=self.topic,
            first_chunk=MessageId(*positions[0], self.partition),
            chunks=positions,
        )

    def delivery(
        self,
        message_id: MessageId,
        head: MessageHead,
        own: Any,
        payload: bytes,
        of_entry: pb.MessageMetadata | None = None,
    ) -> Delivery:
        """Return the delivery of a message.

        :param own: the metadata of the message
        :param of_entry: the metadata of its batch
        """
        of_entry = of_entry or own
        return Delivery(
            message_id,
            payload,
            properties=properties_of(own) if own.properties else {},
            key=key_of(own) if own.HasField("partition_key") else None,
            ordering_key=ordering_key_of(own) if own.HasField("ordering_key") else None,
            redelivery_count=head.redelivery_count,
            publish_time_ms=of_entry.publish_time,
            event_time_ms=own.event_time,
            topic=self.topic,
            is_key_encoded=own.partition_key_b64_encoded,
            is_null=own.null_value,
            producer_name=producer_name_of(of_entry),
            sequence_id=sequence_id_of(own, of_entry),
            schema_version=schema_version_of(of_entry),
            replicated_from=replicated_from_of(of_entry),
        )
