"""Entries that have arrived and are not read yet: batches and compressed messages. They are read as they are received.

So a batch costs memory and time only as its messages are received, a few at a time, whatever number it claims: a
million empty messages take nine kilobytes on the wire. Until then its messages count as prefetched, with the size that
the entry claims, or what it takes here if that is more.

Large payloads are decompressed in threads of the client, while the loop goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from ...consumer import Delivery
from ...consumer._port import OF_A_PROPERTY, bytes_of
from ...errors import MissingExtraError, UndecodableMessageError
from ...ids import MessageId, _delivered_id
from .._protocol._entries import Entry, Member, unpack
from ._ack_sets import all_of
from ._delivery import plain_member

if TYPE_CHECKING:
    from .._protocol._heads import MessageHead
    from ._deliveries import EntryReader

AT_ONCE: Final = 100
"""Most messages of a batch that are read together."""
_MOST_PROPERTIES: Final = 2_000
"""Reading stops early once the messages together have so many properties."""
_LARGE: Final = 1 << 20
"""A payload of more bytes is decompressed in a thread."""


class Reading(Protocol):
    """Counts the messages and bytes that are prefetched."""

    def note_read(self, unread: Unread, messages: int, size: int) -> None:
        """Note by how many messages and bytes reading an entry has changed the queue."""


class Unread:
    """The unread messages of one entry; read them with :func:`read_some`.

    :param entry: the entry, its payload still compressed
    :param stored: the raw data of a message that turns out to be unreadable
    :param about: how many bytes the entry has beside its payload
    :param shown: the messages of a batch that are to be delivered, as bits
    :param message_id: the id of a single message; None: a batch
    """

    __slots__ = (
        "_about",
        "_damage",
        "_entry",
        "_extras",
        "_flags",
        "_members",
        "_next",
        "_opening",
        "_reader",
        "_size",
        "_stored",
        "bytes",
        "head",
        "id",
        "is_acked",
        "messages",
    )

    def __init__(
        self,
        reader: EntryReader,
        head: MessageHead,
        entry: Entry,
        stored: bytes,
        *,
        about: int,
        shown: int = 1,
        message_id: MessageId | None = None,
    ) -> None:
        metadata = entry.metadata
        self.head = head
        self.messages = shown.bit_count()
        """How many messages are left, as far as known."""
        self._size = min(metadata.uncompressed_size, reader.max_bytes) if metadata.compression else len(entry.payload)
        self._about = about + OF_A_PROPERTY * len(metadata.properties)
        here = self._about + len(entry.payload) + (0 if stored is entry.payload else len(stored))
        self.bytes = max(here, self._size)
        """Size of the messages that are left."""
        self.is_acked = False
        """Whether no message of the entry remains to be acknowledged."""
        self._reader = reader
        self._entry = entry
        self._stored = stored
        self._members: Iterator[Member] | None = None
        self._flags: bytes | None = None
        self._next = 0
        self._damage: UndecodableMessageError | None = None
        self._opening: asyncio.Future[bytes] | None = None
        self._extras = reader.extras
        if message_id is not None:
            self.id = message_id
            return
        size = metadata.num_messages_in_batch
        self._extras = {**reader.extras, "batch_size": size}
        self.id = _delivered_id((head.ledger, head.entry, reader.partition, 0), self._extras)
        if self.messages != size:
            self._flags = shown.to_bytes((size + 7) // 8, "little")

    @property
    def redelivery_count(self) -> int:
        """Return how often the broker has sent the entry before."""
        return self.head.redelivery_count

    @redelivery_count.setter
    def redelivery_count(self, count: int) -> None:
        self.head = self.head._replace(redelivery_count=count)

    def is_opening(self, then: Callable[[], None]) -> bool:
        """Return whether a thread decompresses it; starts the thread if needed, and calls ``then`` when it is done."""
        entry = self._entry
        if self._members is not None or not entry.metadata.compression or self._size <= _LARGE:
            return False
        if self._opening is None:
            loop = asyncio.get_running_loop()
            reader = self._reader
            self._opening = loop.run_in_executor(
                reader.threads, unpack, entry.metadata, entry.payload, reader.max_bytes
            )
            self._opening.add_done_callback(_look_at)
            self._opening.add_done_callback(lambda _: then())
        return not self._opening.done()

    def take(self, most: int) -> list[Delivery]:
        """Read at most so many messages, and return those to be delivered."""
        if self._members is None and self._damage is None:
            try:
                payload = self._unpacked()
            except (UndecodableMessageError, MissingExtraError) as error:
                message_id = None if self._entry.is_batch else self.id
                about = self._entry.metadata
                unreadable = self._reader.unreadable(self.head, self._stored, error, message_id, about=about)
                self.messages = self.bytes = 0
                return [unreadable]
            if not self._entry.is_batch:
                delivery = self._reader.delivery(self.id, self.head, self._entry.metadata, payload)
                self.messages = self.bytes = 0
                return [delivery]
            self._entry, self._stored = self._entry._replace(payload=payload), b""
            self.bytes = self._about + len(payload)
            self._members = self._entry.members(self._reader.max_metadata_bytes)
        deliveries = self._readable(most) if self._damage is None else self._damaged(most)
        self.messages -= len(deliveries)
        if self.messages and self._next < self._entry.metadata.num_messages_in_batch:
            head = self.head
            self.id = _delivered_id((head.ledger, head.entry, self._reader.partition, self._next), self._extras)
            self.bytes = max(self.bytes - sum([len(each.data) for each in deliveries]), 0)
        else:  # nothing behind the last message that is shown is read
            self.messages = self.bytes = 0
        return deliveries

    def _unpacked(self) -> bytes:
        opening, self._opening = self._opening, None
        if opening is not None:
            return opening.result()
        entry = self._entry
        return unpack(entry.metadata, entry.payload, self._reader.max_bytes)

    def _readable(self, most: int) -> list[Delivery]:
        reader, flags, of_entry = self._reader, self._flags, self._entry.metadata
        ledger, entry, partition, extras = self.head.ledger, self.head.entry, reader.partition, self._extras
        count, topic = self.head.redelivery_count, reader.topic
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
                    deliveries.append(reader.delivery(member, self.head, metadata, payload, of_entry))
                    properties += len(metadata.properties)
                    if properties >= _MOST_PROPERTIES:
                        break
        except UndecodableMessageError as error:  # later ones are lost too: where they begin is not known
            self._damage = error
        except BaseException:  # the next call reads these messages again
            self._members = islice(self._entry.members(reader.max_metadata_bytes), self._next, None)
            raise
        if hidden:
            self._hide(hidden)
        self._next = index + 1
        return deliveries

    def _damaged(self, most: int) -> list[Delivery]:
        """Return the remaining messages as unreadable; only the first has the raw data, so that it is kept once."""
        head, reader = self.head, self._reader
        assert self._damage is not None
        deliveries: list[Delivery] = []
        size = self._entry.metadata.num_messages_in_batch
        for index in range(self._next, min(self._next + most, size)):
            if self._flags is None or self._flags[index >> 3] >> (index & 7) & 1:
                member = _delivered_id((head.ledger, head.entry, reader.partition, index), self._extras)
                stored, self._entry = self._entry.payload, self._entry._replace(payload=b"")
                deliveries.append(reader.unreadable(head, stored, self._damage, member))
        self._next = min(self._next + most, size)
        return deliveries

    def _hide(self, hidden: list[int]) -> None:
        """Note messages that were compacted out: they are never delivered, so count them as acknowledged."""
        size = self._entry.metadata.num_messages_in_batch
        bits = bytearray((size + 7) // 8)
        for index in hidden:
            bits[index >> 3] |= 1 << (index & 7)
        remaining = all_of(size) & ~int.from_bytes(bits, "little")
        self.is_acked = not self._reader.ack_sets.narrow((self.head.ledger, self.head.entry), remaining)
        self.messages -= len(hidden)


def _look_at(opening: asyncio.Future[bytes]) -> None:
    """Keep asyncio from reporting the error of an entry that is no longer wanted."""
    if not opening.cancelled():
        opening.exception()


def read_some(unread: Unread, source: Reading, most: int = AT_ONCE) -> list[Delivery]:
    """Read at most so many of the next messages, and report the changed counts to ``source``."""
    messages, size = unread.messages, unread.bytes
    deliveries: list[Delivery] = []
    try:
        deliveries = unread.take(most)
    finally:
        here = sum([bytes_of(each) if type(each) is Delivery else len(each.data) for each in deliveries])
        source.note_read(unread, len(deliveries) + unread.messages - messages, here + unread.bytes - size)
    return deliveries
