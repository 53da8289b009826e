"""Reads entries as the broker sends them, and makes a delivery of each message that is not acknowledged."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...consumer import Delivery
from ...errors import InvalidArgumentError, MissingExtraError, ProtocolError, UndecodableMessageError
from ...ids import MessageId, Position, _delivered_id
from .._protocol._batches import all_of, remaining_of
from .._protocol._chunks import ChunkAssembler
from .._protocol._compression import require_compression
from .._protocol._entries import (
    Entry,
    batch_size_of,
    plain_parts,
    readable_metadata,
    split_entry,
    unpack,
)
from .._protocol._frames import MessageCommand
from ._deliveries import NO_METADATA, DeliveryFactory, PlainMessage
from ._unread_entry import UnreadEntry

Arrival = tuple[int, Delivery | UnreadEntry | None]
"""How many permits the broker took for an entry that arrived, and its messages.

None: all are acknowledged, or the entry is a chunk of an incomplete message.
"""


class EntryReader:
    """Reads the entries of one topic or partition.

    :param factory: makes the deliveries, and knows the limits
    :param now_ms: returns the time
    """

    def __init__(self, factory: DeliveryFactory, chunks: ChunkAssembler, now_ms: Callable[[], int]) -> None:
        self.factory = factory
        self._max_bytes = factory.max_bytes
        self._now_ms = now_ms
        self._chunks = chunks
        self._first: tuple[int, int] | None = None
        self._first_index = 0

    def begin_at(self, first: MessageId | None) -> None:
        """Skip messages before this one: the broker begins with a whole entry, or one entry too early."""
        self._first = None if first is None else (first.ledger, first.entry)
        self._first_index = 0 if first is None else max(first.batch_index, 0)

    def plain(self, command: MessageCommand, headers_and_payload: bytes) -> PlainMessage | None:
        """Return the message of an entry that is one plain message, the hot path; None for other entries."""
        if self._first is not None:
            return None
        parts = plain_parts(headers_and_payload)
        if parts is None or len(parts[1]) > self._max_bytes:
            return None
        _, ledger, entry, count, _, _ = command
        if (ledger | entry) >> 63:
            return None
        return parts[1], ledger, entry, count, parts[0]

    def read_other(self, command: MessageCommand, headers_and_payload: bytes) -> Arrival:
        """Read an entry that is not one plain message. The delivery of an unreadable one has the error: a
        MissingExtraError if other processes may be able to read it.

        :raises ProtocolError: the entry has no valid id
        """
        max_metadata_bytes = self.factory.max_metadata_bytes
        try:
            try:
                entry = split_entry(headers_and_payload, max_metadata_bytes, self.factory.max_batch_messages)
                if entry.metadata.compression:
                    require_compression(entry.metadata.compression)
            except (UndecodableMessageError, MissingExtraError) as error:
                metadata = readable_metadata(headers_and_payload, max_metadata_bytes)
                size = (
                    batch_size_of(metadata or NO_METADATA) if isinstance(error, MissingExtraError) else error.batch_size
                )
                unreadable = self.factory.unreadable(command, headers_and_payload, error, metadata=metadata)
                return self._permits_of(command, size), unreadable
            if self._first is not None and (command.ledger, command.entry) < self._first:
                return self._permits_of(command, batch_size_of(entry.metadata)), None
            return self._arrival(command, entry, headers_and_payload)
        except InvalidArgumentError as error:
            raise ProtocolError(f"command MESSAGE: {error}") from error

    # --- single messages ----------------------------------------------------------------------------------------

    def _arrival(self, command: MessageCommand, entry: Entry, stored: bytes) -> Arrival:
        overhead = len(stored) - len(entry.payload)
        if entry.is_batch:
            return self._batch(command, entry, stored, overhead)
        if entry.is_chunk:
            return 1, self._chunk(command, entry, overhead)
        message_id = _delivered_id((command.ledger, command.entry, self.factory.partition, -1), self.factory.extras)
        return 1, self._single(command, entry, stored, message_id, overhead)

    def _single(
        self, command: MessageCommand, entry: Entry, stored: bytes, message_id: MessageId, overhead: int
    ) -> Delivery | UnreadEntry:
        metadata = entry.metadata
        if metadata.compression:
            return UnreadEntry(self.factory, command, entry, stored, overhead, message_id=message_id)
        try:
            payload = unpack(metadata, entry.payload, self._max_bytes)
            return self.factory.delivery(message_id, command, metadata, payload)
        except UndecodableMessageError as error:
            return self.factory.unreadable(command, stored, error, message_id, metadata=metadata)

    @staticmethod
    def _permits_of(command: MessageCommand, size: int) -> int:
        """Return how many permits the broker took for a batch: none for members that it knows to be acknowledged."""
        if not size:
            return 1
        return remaining_of(command.ack_set, size).bit_count() if command.ack_set else size

    # --- batches -----------------------------------------------------------------------------------------------------

    def _batch(self, command: MessageCommand, entry: Entry, stored: bytes, overhead: int) -> Arrival:
        size = entry.metadata.num_messages_in_batch
        whole = all_of(size)
        unacked = remaining_of(command.ack_set, size) if command.ack_set else whole
        members = unacked & ~self._before_first(command.ledger, command.entry)
        if members != whole:
            self.factory.ack_sets.intersect((command.ledger, command.entry), members)
        if not members:
            return unacked.bit_count(), None
        stored = stored if entry.metadata.compression else b""
        return unacked.bit_count(), UnreadEntry(self.factory, command, entry, stored, overhead, members=members)

    def _before_first(self, ledger: int, entry: int) -> int:
        return all_of(self._first_index) if (ledger, entry) == self._first else 0

    # --- chunks -----------------------------------------------------------------------------------------------

    def _chunk(self, command: MessageCommand, entry: Entry, overhead: int) -> Delivery | UnreadEntry | None:
        metadata = entry.metadata
        if not 0 <= metadata.chunk_id < metadata.num_chunks_from_msg:
            impossible = f"chunk: number {metadata.chunk_id} of {metadata.num_chunks_from_msg}"
            return self.factory.unreadable(
                command, entry.payload, UndecodableMessageError(impossible), metadata=metadata
            )
        position = Position(command.ledger, command.entry)
        whole = self._chunks.add(metadata, position, entry.payload, self._now_ms())
        if whole is None:
            return None
        metadata.sequence_id, payload = whole.sequence_id, whole.payload()
        try:
            message_id = self._whole_id(whole.positions())
        except InvalidArgumentError as error:
            wrong = UndecodableMessageError(f"payload: its chunks are not in the right place: {error}")
            return self.factory.unreadable(command, payload or b"", wrong, metadata=metadata)
        total, problem = metadata.total_chunk_msg_size, ""
        if payload is None:
            problem = f"payload: {total} bytes in chunks, more than max_chunked_bytes"
        elif len(payload) != total:
            problem = f"payload: {len(payload)} bytes in chunks, {total} expected"
        if problem:
            incomplete = UndecodableMessageError(problem, is_local=payload is None)
            return self.factory.unreadable(command, payload or b"", incomplete, message_id, metadata=metadata)
        return self._single(command, entry._replace(payload=payload or b""), payload or b"", message_id, overhead)

    def _whole_id(self, positions: Sequence[Position]) -> MessageId:
        """Return the id of a chunked message; its chunks may have been stored in another order than the message's.

        :param positions: of all its chunks, sorted
        """
        return MessageId(
            *positions[-1],
            self.factory.partition,
            topic=self.factory.topic,
            first_chunk=MessageId(*positions[0], self.factory.partition),
            chunks=positions,
        )
