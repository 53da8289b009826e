"""From entries, as the broker sends them, to deliveries: one for each message that is to be shown."""

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
from ._delivery import (
    Fetched,
    Item,
    plain_delivery,
    producer_name_of,
    replicated_from_of,
    schema_version_of,
    sequence_id_of,
)
from ._unread import Unread

_NOTHING: Final = pb.MessageMetadata()


class Arrival(NamedTuple):
    """What became of an entry.

    :param permits: how many messages the broker counted it as
    :param found: its messages; None: all are acknowledged, or the entry is a chunk of an incomplete message
    """

    permits: int
    found: Delivery | Unread | None


class EntryReader:
    """Reads the entries of one topic or partition.

    :param topic: its full name
    :param ack_sets: is told what of a batch is not to be acknowledged any more
    :param options: has the limits
    :param now_ms: tells the time
    :param threads: where large payloads are decompressed, None: in those of the loop
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
        """Show nothing that comes before this: the broker begins with whole entries, or with one too many."""
        self._first = None if first is None else (first.ledger, first.entry)
        self._first_index = 0 if first is None else max(first.batch_index, 0)

    def plain(self, head: MessageHead, rest: bytes) -> Fetched | None:
        """Return a message that is only a payload, the hot path; None if the entry has more to it."""
        if self._first is not None:
            return None
        parts = plain_parts(rest)
        if parts is None or len(parts[1]) > self.max_bytes:
            return None
        _, ledger, entry, count, _, _ = head
        if (ledger | entry) >> 63:
            return None
        return parts[1], ledger, entry, count, parts[0]

    def opened(self, item: Item) -> Delivery:
        """Return the delivery of a prefetched item."""
        if not isinstance(item, tuple):
            return item
        data, ledger, entry, count, metadata = item
        message_id = _delivered_id((ledger, entry, self.partition, -1), self.extras)
        return plain_delivery(message_id, data, count, metadata, self.topic)

    def read(self, head: MessageHead, rest: bytes) -> Arrival:
        """Take an entry apart. One that cannot be read is a delivery that says so, with a MissingExtraError where that
        is for want of something in this process.

        :raises ProtocolError: its id is none
        """
        item = self.plain(head, rest)
        return self.read_other(head, rest) if item is None else Arrival(1, self.opened(item))

    def read_other(self, head: MessageHead, rest: bytes) -> Arrival:
        """The same for what is not plain."""
        try:
            try:
                entry = split_entry(rest, self.max_metadata_bytes, self._max_batch_messages)
                if entry.metadata.compression:
                    require_compression(entry.metadata.compression)
            except (UndecodableMessageError, MissingExtraError) as error:
                about = readable_metadata(rest, self.max_metadata_bytes)
                size = batch_size_of(about or _NOTHING) if isinstance(error, MissingExtraError) else error.batch_size
                return Arrival(self._counted(head, size), self.unreadable(head, rest, error, about=about))
            if self._first is not None and (head.ledger, head.entry) < self._first:
                return Arrival(self._counted(head, batch_size_of(entry.metadata)), None)
            return self._with_more(head, entry, rest)
        except InvalidArgumentError as error:
            raise ProtocolError(f"command MESSAGE: {error}") from error

    # --- one message an entry ----------------------------------------------------------------------------------------

    def _with_more(self, head: MessageHead, entry: Entry, stored: bytes) -> Arrival:
        about = len(stored) - len(entry.payload)
        if entry.is_batch:
            return self._batch(head, entry, stored, about)
        if entry.is_chunk:
            return Arrival(1, self._part(head, entry, about))
        message_id = _delivered_id((head.ledger, head.entry, self.partition, -1), self.extras)
        return Arrival(1, self._one(head, entry, stored, message_id, about))

    def _one(
        self, head: MessageHead, entry: Entry, stored: bytes, message_id: MessageId, about: int
    ) -> Delivery | Unread:
        metadata = entry.metadata
        if metadata.compression:
            return Unread(self, head, entry, stored, about=about, message_id=message_id)
        try:
            payload = unpack(metadata, entry.payload, self.max_bytes)
        except UndecodableMessageError as error:
            return self.unreadable(head, stored, error, message_id, about=metadata)
        return self.delivery(message_id, head, metadata, payload)

    def unreadable(
        self,
        head: MessageHead,
        stored: bytes,
        error: Exception,
        message_id: MessageId | None = None,
        *,
        about: pb.MessageMetadata | None = None,
    ) -> Delivery:
        """Return the delivery of what cannot be read, with what is said about it as far as that is known."""
        own = _NOTHING if about is None or is_batch(about) else about
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
            publish_time_ms=0 if about is None else about.publish_time,
            event_time_ms=own.event_time,
            topic=self.topic,
            error=error,
            is_key_encoded=own.partition_key_b64_encoded,
            producer_name=None if about is None else producer_name_of(about),
            sequence_id=None if about is None or is_batch(about) else about.sequence_id,
            schema_version=None if about is None else schema_version_of(about),
            replicated_from=None if about is None else replicated_from_of(about),
        )

    @staticmethod
    def _counted(head: MessageHead, size: int) -> int:
        """Return as how many messages the broker counted a batch: without those that it knows to be acknowledged."""
        if not size:
            return 1
        return remaining_of(head.ack_set, size).bit_count() if head.ack_set else size

    # --- several -----------------------------------------------------------------------------------------------------

    def _batch(self, head: MessageHead, entry: Entry, stored: bytes, about: int) -> Arrival:
        size = entry.metadata.num_messages_in_batch
        whole = all_of(size)
        told = remaining_of(head.ack_set, size) if head.ack_set else whole
        shown = told & ~self._before_first(head.ledger, head.entry)
        if shown != whole:
            self.ack_sets.narrow((head.ledger, head.entry), shown)
        if not shown:
            return Arrival(told.bit_count(), None)
        stored = stored if entry.metadata.compression else b""
        return Arrival(told.bit_count(), Unread(self, head, entry, stored, about=about, shown=shown))

    def _before_first(self, ledger: int, entry: int) -> int:
        return all_of(self._first_index) if (ledger, entry) == self._first else 0

    # --- a part of one -----------------------------------------------------------------------------------------------

    def _part(self, head: MessageHead, entry: Entry, about: int) -> Delivery | Unread | None:
        metadata = entry.metadata
        if not 0 <= metadata.chunk_id < metadata.num_chunks_from_msg:
            impossible = f"chunk: number {metadata.chunk_id} of {metadata.num_chunks_from_msg}"
            return self.unreadable(head, entry.payload, UndecodableMessageError(impossible), about=metadata)
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
            wrong = UndecodableMessageError(f"payload: its chunks are not where they should be: {error}")
            return self.unreadable(head, whole.payload or b"", wrong, about=metadata)
        total, payload, problem = metadata.total_chunk_msg_size, whole.payload, ""
        if payload is None:
            problem = f"payload: {total} bytes in chunks, more than max_chunked_bytes"
        elif len(payload) != total:
            problem = f"payload: {len(payload)} bytes in chunks, {total} were to come"
        if problem:
            incomplete = UndecodableMessageError(problem, is_local=payload is None)
            return self.unreadable(head, payload or b"", incomplete, message_id, about=metadata)
        return self._one(head, entry._replace(payload=payload or b""), payload or b"", message_id, about)

    def _whole_id(self, whole: Whole) -> MessageId:
        """Return the id of a message in chunks: their order is that of the message, not of their positions."""
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
