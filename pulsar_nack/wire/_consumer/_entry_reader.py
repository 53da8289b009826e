"""Reads entries as the broker sends them, and makes a delivery of each message that is not acknowledged.

Batches and compressed messages stay unread until their messages are received. So a batch costs memory and time only as
its messages are received, a few at a time, however many it claims to have: a million empty messages take nine kilobytes
on the wire. Until then its messages count as prefetched, with the size that the entry claims, or the size that it takes
here if that is more.

Large payloads are decompressed in threads of the client, while the loop goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

from ..._tasks import retrieve_error
from ...consumer import Delivery
from ...consumer.transport import PROPERTY_BYTES
from ...errors import InvalidArgumentError, MissingExtraError, ProtocolError, UndecodableMessageError
from ...ids import MessageId, Position, _delivered_id
from .._protocol._batches import Member, all_of, remaining_of
from .._protocol._chunks import ChunkAssembler
from .._protocol._compression import LARGE, require_compression
from .._protocol._entries import (
    Entry,
    batch_size_of,
    plain_parts,
    readable_metadata,
    split_entry,
    unpack,
)
from .._protocol._frames import MessageCommand
from ._deliveries import NO_METADATA, DeliveryFactory, PlainMessage, plain_member

READ_AT_ONCE: Final = 100
"""Most messages of a batch that are read together."""
_MAX_PROPERTIES: Final = 2_000
"""Reading stops early once the messages together have this many properties."""


class UnreadEntry:
    """The unread messages of one entry.

    :param entry: the entry, its payload still compressed
    :param stored: the raw data of a message that turns out to be unreadable
    :param overhead: how many bytes the entry has beside its payload
    :param members: the members of a batch that are to be delivered, as bits
    :param message_id: the id of a single message; None: a batch
    """

    __slots__ = (
        "_damage",
        "_decompressing",
        "_entry",
        "_extras",
        "_factory",
        "_flags",
        "_members",
        "_next",
        "_overhead",
        "_size",
        "_stored",
        "bytes",
        "command",
        "id",
        "is_acked",
        "messages",
    )

    def __init__(
        self,
        factory: DeliveryFactory,
        command: MessageCommand,
        entry: Entry,
        stored: bytes,
        overhead: int,
        *,
        members: int = 1,
        message_id: MessageId | None = None,
    ) -> None:
        metadata = entry.metadata
        self.command = command
        self.messages = members.bit_count()
        """How many messages are left to deliver, as far as known."""
        self._size = min(metadata.uncompressed_size, factory.max_bytes) if metadata.compression else len(entry.payload)
        self._overhead = overhead + PROPERTY_BYTES * len(metadata.properties)
        here = self._overhead + len(entry.payload) + (0 if stored is entry.payload else len(stored))
        self.bytes = max(here, self._size)
        """Size of the messages that are left."""
        self.is_acked = False
        """Whether the whole entry counts as acknowledged."""
        self._factory = factory
        self._entry = entry
        self._stored = stored
        self._members: Iterator[Member] | None = None
        self._flags: bytes | None = None
        self._next = 0
        self._damage: UndecodableMessageError | None = None
        self._decompressing: asyncio.Future[bytes] | None = None
        self._extras = factory.extras
        if message_id is not None:
            self.id = message_id
            return
        size = metadata.num_messages_in_batch
        self._extras = {**factory.extras, "batch_size": size}
        self.id = _delivered_id((command.ledger, command.entry, factory.partition, 0), self._extras)
        if self.messages != size:
            self._flags = members.to_bytes((size + 7) // 8, "little")

    @property
    def redelivery_count(self) -> int:
        """Return how often the broker has sent the entry before."""
        return self.command.redelivery_count

    @redelivery_count.setter
    def redelivery_count(self, count: int) -> None:
        self.command = self.command._replace(redelivery_count=count)

    def is_decompressing(self, then: Callable[[], None]) -> bool:
        """Return whether a thread is decompressing the entry; start it if needed, and call ``then`` when it is done."""
        entry = self._entry
        is_large = max(self._size, len(entry.payload)) > LARGE
        if self._members is not None or not entry.metadata.compression or not is_large:
            return False
        if self._decompressing is None:
            loop = asyncio.get_running_loop()
            factory = self._factory
            self._decompressing = loop.run_in_executor(
                factory.threads, unpack, entry.metadata, entry.payload, factory.max_bytes
            )
            self._decompressing.add_done_callback(retrieve_error)
            self._decompressing.add_done_callback(lambda _: then())
        return not self._decompressing.done()

    def take(self, most: int) -> list[Delivery]:
        """Read at most this many messages, and return those to be delivered."""
        if self._members is None and self._damage is None:
            try:
                payload = self._unpacked()
                if not self._entry.is_batch:
                    delivery = self._factory.delivery(self.id, self.command, self._entry.metadata, payload)
                    self.messages = self.bytes = 0
                    return [delivery]
            except (UndecodableMessageError, MissingExtraError) as error:
                message_id = None if self._entry.is_batch else self.id
                metadata = self._entry.metadata
                unreadable = self._factory.unreadable(self.command, self._stored, error, message_id, metadata=metadata)
                self.messages = self.bytes = 0
                return [unreadable]
            self._entry, self._stored = self._entry._replace(payload=payload), b""
            self.bytes = self._overhead + len(payload)
            self._members = self._entry.members(self._factory.max_metadata_bytes)
        deliveries = self._readable(most) if self._damage is None else self._damaged(most)
        self.messages -= len(deliveries)
        if self.messages and self._next < self._entry.metadata.num_messages_in_batch:
            command = self.command
            self.id = _delivered_id((command.ledger, command.entry, self._factory.partition, self._next), self._extras)
            self.bytes = max(self.bytes - sum([len(each.data) for each in deliveries]), 0)
        else:  # messages after the last one to deliver are not read
            self.messages = self.bytes = 0
        return deliveries

    def _unpacked(self) -> bytes:
        decompressing, self._decompressing = self._decompressing, None
        if decompressing is not None:
            return decompressing.result()
        entry = self._entry
        return unpack(entry.metadata, entry.payload, self._factory.max_bytes)

    def _readable(self, most: int) -> list[Delivery]:
        factory, flags, of_entry = self._factory, self._flags, self._entry.metadata
        ledger, entry, partition, extras = self.command.ledger, self.command.entry, factory.partition, self._extras
        count, topic = self.command.redelivery_count, factory.topic
        deliveries: list[Delivery] = []
        hidden: list[int] = []
        index, properties = self._next - 1, 0
        assert self._members is not None
        try:
            for index, metadata, payload in islice(self._members, most):
                if flags is not None and not flags[index >> 3] >> (index & 7) & 1:
                    continue
                if isinstance(metadata, bytes):
                    member = _delivered_id((ledger, entry, partition, index), extras)
                    deliveries.append(plain_member(member, payload, count, of_entry, metadata, topic))
                elif metadata.compacted_out:
                    hidden.append(index)
                else:
                    member = _delivered_id((ledger, entry, partition, index), extras)
                    try:
                        delivery = factory.delivery(member, self.command, metadata, payload, of_entry)
                    except UndecodableMessageError as error:  # it alone: where the next one begins is known
                        delivery = factory.unreadable(self.command, payload, error, member)
                    deliveries.append(delivery)
                    properties += len(metadata.properties)
                    if properties >= _MAX_PROPERTIES:
                        break
        except UndecodableMessageError as error:  # later ones are unreadable too: where they begin is not known
            self._damage = error
        except BaseException:  # the next call reads these messages again
            self._members = islice(self._entry.members(factory.max_metadata_bytes), self._next, None)
            raise
        if hidden:
            self._hide(hidden)
        self._next = index + 1
        return deliveries

    def _damaged(self, most: int) -> list[Delivery]:
        """Return the remaining messages as unreadable; only the first has the raw data, so that it is stored once."""
        command, factory = self.command, self._factory
        assert self._damage is not None
        deliveries: list[Delivery] = []
        size = self._entry.metadata.num_messages_in_batch
        for index in range(self._next, min(self._next + most, size)):
            if self._flags is None or self._flags[index >> 3] >> (index & 7) & 1:
                member = _delivered_id((command.ledger, command.entry, factory.partition, index), self._extras)
                stored, self._entry = self._entry.payload, self._entry._replace(payload=b"")
                deliveries.append(factory.unreadable(command, stored, self._damage, member))
        self._next = min(self._next + most, size)
        return deliveries

    def _hide(self, hidden: list[int]) -> None:
        """Note messages that were compacted out: they are never delivered, so count them as acknowledged."""
        size = self._entry.metadata.num_messages_in_batch
        bits = bytearray((size + 7) // 8)
        for index in hidden:
            bits[index >> 3] |= 1 << (index & 7)
        remaining = all_of(size) & ~int.from_bytes(bits, "little")
        self.is_acked = not self._factory.ack_sets.intersect((self.command.ledger, self.command.entry), remaining)
        self.messages -= len(hidden)


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
        """Read an entry that is not one plain message.

        The delivery of an unreadable one has the error: a MissingExtraError if other processes may be able to read it.

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
