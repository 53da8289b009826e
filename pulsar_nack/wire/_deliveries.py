"""From entries, as the broker sends them, to deliveries: one for each message that is to be shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ..consumer import Delivery
from ..errors import InvalidArgumentError, MissingExtraError, ProtocolError, UndecodableMessageError
from ..ids import MessageId, Position, _delivered_id
from . import _pulsar_pb2 as pb
from ._ack_sets import AckSets, all_of, remaining_of
from ._chunks import Chunks, Part, Whole
from ._delivery import (
    Fetched,
    Item,
    plain_delivery,
    plain_member,
    producer_name_of,
    replicated_from_of,
    schema_version_of,
    sequence_id_of,
)
from ._entries import (
    Entry,
    batch_size_of,
    decode_entry,
    is_batch,
    key_of,
    ordering_key_of,
    plain_parts,
    properties_of,
    readable_metadata,
    unpack,
)
from ._heads import MessageHead

_NOTHING: Final = pb.MessageMetadata()


class Arrival(NamedTuple):
    """What became of an entry.

    :param permits: how many messages the broker counted it as
    :param deliveries: those to be shown; fewer, where some are acknowledged already, or the entry is a part of one
    """

    permits: int
    deliveries: list[Delivery]


class EntryReader:
    """Reads the entries of one topic or partition.

    :param topic: its full name
    :param ack_sets: is told what of a batch is not to be acknowledged any more
    :param max_bytes: a message that is larger when it is unpacked is not
    :param now_ms: tells the time
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        ack_sets: AckSets,
        chunks: Chunks,
        *,
        max_bytes: int,
        now_ms: Callable[[], int],
    ) -> None:
        self._max_bytes = max_bytes
        self._now_ms = now_ms
        self._topic = topic
        self._extras: dict[str, Any] = {"topic": topic}
        self._partition = partition
        self._ack_sets = ack_sets
        self._chunks = chunks
        self._first: tuple[int, int] | None = None
        self._first_index = 0

    def begin_at(self, first: MessageId | None) -> None:
        """Show nothing that comes before this: the broker begins with whole entries, or with one too many."""
        self._first = None if first is None else (first.ledger, first.entry)
        self._first_index = 0 if first is None else max(first.batch_index, 0)

    def plain(self, head: MessageHead, rest: bytes) -> Fetched | None:
        """Return a message that has nothing but its payload: the hot path. None: it has more."""
        if self._first is not None:
            return None
        parts = plain_parts(rest)
        if parts is None or len(parts[1]) > self._max_bytes:
            return None
        _, ledger, entry, count, _, _ = head
        if (ledger | entry) >> 63:
            return None
        return parts[1], ledger, entry, count, parts[0]

    def opened(self, item: Item) -> Delivery:
        """Return the delivery of what was fetched ahead."""
        if not isinstance(item, tuple):
            return item
        data, ledger, entry, count, metadata = item
        message_id = _delivered_id((ledger, entry, self._partition, -1), self._extras)
        return plain_delivery(message_id, data, count, metadata, self._topic)

    def read(self, head: MessageHead, rest: bytes) -> Arrival:
        """Take an entry apart. One that cannot be read is a delivery that says so, with a MissingExtraError where that
        is for want of something in this process.

        :raises ProtocolError: its id is none
        """
        item = self.plain(head, rest)
        return self.read_other(head, rest) if item is None else Arrival(1, [self.opened(item)])

    def read_other(self, head: MessageHead, rest: bytes) -> Arrival:
        """The same for what is not plain."""
        try:
            try:
                entry = decode_entry(rest, max_message_bytes=self._max_bytes)
            except UndecodableMessageError as error:
                unreadable = self._unreadable(head, rest, error, about=readable_metadata(rest))
                return Arrival(self._counted(head, error.batch_size), [unreadable])
            except MissingExtraError as error:
                about = readable_metadata(rest) or _NOTHING
                return Arrival(
                    self._counted(head, batch_size_of(about)), [self._unreadable(head, rest, error, about=about)]
                )
            if self._first is not None and (head.ledger, head.entry) < self._first:
                size = entry.metadata.num_messages_in_batch if entry.is_batch else 0
                return Arrival(self._counted(head, size), [])
            return self._with_more(head, entry)
        except InvalidArgumentError as error:
            raise ProtocolError(f"command MESSAGE: {error}") from error

    # --- one message an entry ----------------------------------------------------------------------------------------

    def _with_more(self, head: MessageHead, entry: Entry) -> Arrival:
        if entry.is_batch:
            return self._batch(head, entry)
        if entry.is_chunk:
            return Arrival(1, self._part(head, entry))
        return Arrival(1, [self._lone(head, entry)])

    def _lone(self, head: MessageHead, entry: Entry) -> Delivery:
        metadata = entry.metadata
        message_id = _delivered_id((head.ledger, head.entry, self._partition, -1), self._extras)
        return self._delivery(message_id, head, metadata, metadata, entry.payload)

    def _unreadable(
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
        return Delivery(
            id=message_id or _delivered_id((head.ledger, head.entry, self._partition, -1), self._extras),
            data=stored,
            properties=properties_of(own),
            key=key_of(own) if own.HasField("partition_key") else None,
            ordering_key=ordering_key_of(own) if own.HasField("ordering_key") else None,
            redelivery_count=head.redelivery_count,
            publish_time_ms=0 if about is None else about.publish_time,
            event_time_ms=own.event_time,
            topic=self._topic,
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
        return (remaining_of(head.ack_set) & all_of(size)).bit_count() if head.ack_set else size

    # --- several -----------------------------------------------------------------------------------------------------

    def _batch(self, head: MessageHead, entry: Entry) -> Arrival:
        size = entry.metadata.num_messages_in_batch
        whole = all_of(size)
        told = whole & remaining_of(head.ack_set) if head.ack_set else whole
        ledger, number = head.ledger, head.entry
        shown = told & ~self._before_first(ledger, number)
        is_shown = None if shown == whole else _flags(shown, size)
        hidden: list[int] = []
        deliveries: list[Delivery] = []
        read = 0
        partition, topic = self._partition, self._topic
        extras = {**self._extras, "batch_size": size}
        count, of_entry = head.redelivery_count, entry.metadata
        try:
            for index, metadata, payload in entry.members():
                read = index + 1
                if is_shown is not None and not is_shown[index]:
                    continue
                if isinstance(metadata, bytes):
                    member = _delivered_id((ledger, number, partition, index), extras)
                    deliveries.append(plain_member(member, payload, count, of_entry, metadata, topic))
                elif metadata.compacted_out:
                    hidden.append(index)
                else:
                    member = _delivered_id((ledger, number, partition, index), extras)
                    deliveries.append(self._delivery(member, head, entry.metadata, metadata, payload))
        except UndecodableMessageError as error:  # the others too: where they begin is not known
            left = [each for each in range(read, size) if is_shown is None or is_shown[each]]
            deliveries.extend(
                self._unreadable(
                    head,
                    b"" if at else entry.payload,  # once is enough
                    error,
                    _delivered_id((ledger, number, partition, each), extras),
                )
                for at, each in enumerate(left)
            )
        shown &= ~_bits(hidden, size)
        if shown != whole:
            self._ack_sets.narrow((ledger, number), shown)
        return Arrival(told.bit_count(), deliveries)

    def _before_first(self, ledger: int, entry: int) -> int:
        return all_of(self._first_index) if (ledger, entry) == self._first else 0

    # --- a part of one -----------------------------------------------------------------------------------------------

    def _part(self, head: MessageHead, entry: Entry) -> list[Delivery]:
        metadata = entry.metadata
        if not 0 <= metadata.chunk_id < metadata.num_chunks_from_msg:
            impossible = f"chunk: number {metadata.chunk_id} of {metadata.num_chunks_from_msg}"
            return [self._unreadable(head, entry.payload, UndecodableMessageError(impossible), about=metadata)]
        part = Part(
            uuid=metadata.uuid,
            index=metadata.chunk_id,
            count=metadata.num_chunks_from_msg,
            total_bytes=metadata.total_chunk_msg_size,
            position=Position(head.ledger, head.entry),
            payload=entry.payload,
            sequence_id=metadata.sequence_id,
        )
        whole = self._chunks.add(part, self._now_ms())
        if whole is None:
            return []
        metadata.sequence_id = whole.sequence_id
        try:
            message_id = self._whole_id(whole)
        except InvalidArgumentError as error:
            wrong = UndecodableMessageError(f"payload: its chunks are not where they should be: {error}")
            return [self._unreadable(head, whole.payload or b"", wrong, about=metadata)]
        try:
            payload = self._put_together(entry, whole)
        except (UndecodableMessageError, MissingExtraError) as error:
            return [self._unreadable(head, whole.payload or b"", error, message_id, about=metadata)]
        return [self._delivery(message_id, head, metadata, metadata, payload)]

    def _whole_id(self, whole: Whole) -> MessageId:
        """Return the id of a message in chunks: their order is that of the message, not of their positions."""
        positions = sorted(whole.positions)
        return MessageId(
            *positions[-1],
            self._partition,
            topic=self._topic,
            first_chunk=MessageId(*positions[0], self._partition),
            chunks=positions,
        )

    def _put_together(self, entry: Entry, whole: Whole) -> bytes:
        total = entry.metadata.total_chunk_msg_size
        if whole.payload is None:
            problem = f"payload: {total} bytes in chunks, more than max_chunked_bytes"
            raise UndecodableMessageError(problem, is_local=True)
        if len(whole.payload) != total:
            raise UndecodableMessageError(f"payload: {len(whole.payload)} bytes in chunks, {total} were to come")
        return unpack(entry.metadata, whole.payload, self._max_bytes)

    def _delivery(
        self,
        message_id: MessageId,
        head: MessageHead,
        of_entry: pb.MessageMetadata,
        own: pb.MessageMetadata | pb.SingleMessageMetadata,
        payload: bytes,
    ) -> Delivery:
        return Delivery(
            message_id,
            payload,
            properties=properties_of(own) if own.properties else {},
            key=key_of(own) if own.HasField("partition_key") else None,
            ordering_key=ordering_key_of(own) if own.HasField("ordering_key") else None,
            redelivery_count=head.redelivery_count,
            publish_time_ms=of_entry.publish_time,
            event_time_ms=own.event_time,
            topic=self._topic,
            is_key_encoded=own.partition_key_b64_encoded,
            is_null=own.null_value,
            producer_name=producer_name_of(of_entry),
            sequence_id=sequence_id_of(own, of_entry),
            schema_version=schema_version_of(of_entry),
            replicated_from=replicated_from_of(of_entry),
        )


def _flags(bits: int, size: int) -> list[bool]:
    """Return the lowest bits one by one; asking a large number for each would be quadratic."""
    return [bit == "1" for bit in reversed(f"{bits:0{size}b}")]


def _bits(indexes: list[int], size: int) -> int:
    """Return a number of which these bits are set; likewise in linear time."""
    if not indexes:
        return 0
    data = bytearray((size + 7) // 8)
    for index in indexes:
        data[index >> 3] |= 1 << (index & 7)
    return int.from_bytes(data, "little")
