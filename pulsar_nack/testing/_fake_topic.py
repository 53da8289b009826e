"""A topic in memory: entries as a broker stores them, one message or a batch in each."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..consumer import Delivery
from ..errors import InvalidArgumentError
from ..ids import MessageId, Position
from ._fake_subscription import FakeSubscription


@dataclass(frozen=True, slots=True)
class FakeMessage:
    """What a producer sends, None: no value; :meth:`FakeTopic.publish_batch` takes these beside plain bytes."""

    data: bytes | None
    key: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    ordering_key: str | None = None
    event_time_ms: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class FakeEntry:
    """One stored entry; compared by identity. ``number`` is its place in the order of publishing."""

    number: int
    position: Position
    partition: int
    topic: str
    messages: tuple[FakeMessage, ...]
    is_batch: bool
    published_ms: int
    chunks: tuple[Position, ...] = ()

    def message_id(self, index: int) -> MessageId:
        """Return the id of the message at ``index``."""
        ledger, entry = self.position
        if self.is_batch:
            return MessageId(ledger, entry, self.partition, index, batch_size=len(self.messages), topic=self.topic)
        first = MessageId(*self.chunks[0], self.partition, topic=self.topic) if self.chunks else None
        return MessageId(ledger, entry, self.partition, topic=self.topic, first_chunk=first, chunks=self.chunks)

    def delivery(self, index: int, redelivery_count: int) -> Delivery:
        """Return the message at ``index`` as a port hands it over."""
        message = self.messages[index]
        return Delivery(
            id=self.message_id(index),
            data=message.data or b"",
            properties=dict(message.properties),
            key=message.key,
            ordering_key=message.ordering_key,
            redelivery_count=redelivery_count,
            publish_time_ms=self.published_ms,
            event_time_ms=message.event_time_ms,
            topic=self.topic,
            is_null=message.data is None,
        )


class FakeTopic:
    """A topic that lives in memory, with any number of subscriptions; every subscription begins at the first message.

    :param name: full topic name; partitions are called ``<name>-partition-<n>``
    :param partitions: 0 for a topic without; each partition counts its entries from 0 **in the same ledger**, so that
        code that forgets the partition of an id is found out
    :param ledger: id of the first ledger
    :param entries_per_ledger: then the next ledger begins
    :param batch_index_ack: single messages of a batch can be acknowledged at the broker (real brokers: off by default)

    ::

        topic = FakeTopic()
        port = FakePort(topic)
        topic.publish(b"one")
        first, second = topic.publish_batch([b"two", b"three"])
        assert (await port.receive()).data == b"one"
    """

    def __init__(
        self,
        name: str = "persistent://public/default/fake",
        *,
        partitions: int = 0,
        ledger: int = 1,
        entries_per_ledger: int = 50_000,
        batch_index_ack: bool = False,
    ) -> None:
        self.name = text("name", name)
        self.partitions = whole("partitions", partitions, 0)
        self.batch_index_ack = true_or_false("batch_index_ack", batch_index_ack)
        self._ledger = whole("ledger", ledger, 0)
        self._per_ledger = whole("entries_per_ledger", entries_per_ledger, 1)
        self._entries: dict[tuple[int, int, int], FakeEntry] = {}
        self._written: dict[int, int] = {}
        self._subscriptions: dict[str, FakeSubscription] = {}

    def publish(
        self,
        data: bytes | None,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        ordering_key: str | None = None,
        event_time_ms: int = 0,
        partition: int | None = None,
    ) -> MessageId:
        """Store one message in an entry of its own and hand it out.

        Without ``partition`` messages of one key share a partition, and those without a key take turns.
        """
        message = FakeMessage(data, key, dict(properties or {}), ordering_key, event_time_ms)
        return self._store([message], partition=partition).message_id(0)

    def publish_batch(
        self, messages: Iterable[bytes | FakeMessage | None], *, partition: int | None = None
    ) -> list[MessageId]:
        """Store messages in one entry and hand it out; their ids have batch indexes from 0.

        :raises InvalidArgumentError: no messages
        """
        batch = [each if isinstance(each, FakeMessage) else FakeMessage(each) for each in messages]
        if not batch:
            raise InvalidArgumentError("messages", batch, "at least one message")
        entry = self._store(batch, partition=partition, is_batch=True)
        return [entry.message_id(index) for index in range(len(batch))]

    def publish_chunked(self, parts: Iterable[bytes], *, key: str | None = None) -> MessageId:
        """Store one message in several entries and hand it out; it comes back only to a request for all its parts.

        :raises InvalidArgumentError: fewer than two parts
        """
        chunks = list(parts)
        if len(chunks) < 2:
            raise InvalidArgumentError("parts", chunks, "at least two parts")
        return self._store([FakeMessage(b"".join(chunks), key)], chunks=len(chunks)).message_id(0)

    def subscription(self, name: str = "fake") -> FakeSubscription:
        """Return a subscription: what is acknowledged, and an administrator's means to change that. Made when new."""
        if name not in self._subscriptions:
            self._subscriptions[name] = FakeSubscription(self, name)
        return self._subscriptions[name]

    @property
    def entries(self) -> Iterable[FakeEntry]:
        """Return all entries in the order of publishing."""
        return self._entries.values()

    def entry_of(self, message_id: MessageId) -> FakeEntry | None:
        """Return the entry that holds a message, None where there is none."""
        return self._entries.get((message_id.partition, message_id.ledger, message_id.entry))

    def _store(
        self, messages: list[FakeMessage], *, partition: int | None = None, is_batch: bool = False, chunks: int = 0
    ) -> FakeEntry:
        for message in messages:
            if message.data is not None and not isinstance(message.data, bytes):
                raise InvalidArgumentError("data", message.data, "bytes, or None for a message without a value")
        where = self._partition_for(messages[0], partition)
        positions = tuple(self._next_position(where) for _ in range(max(chunks, 1)))
        topic = self.name if where == -1 else f"{self.name}-partition-{where}"
        entry = FakeEntry(
            number=len(self._entries),
            position=positions[-1],
            partition=where,
            topic=topic,
            messages=tuple(messages),
            is_batch=is_batch,
            published_ms=loop_ms(),
            chunks=positions if chunks else (),
        )
        self._entries[where, *entry.position] = entry
        for subscription in self._subscriptions.values():
            subscription._add(entry)
        return entry

    def _next_position(self, partition: int) -> Position:
        count = self._written.get(partition, 0)
        self._written[partition] = count + 1
        return Position(self._ledger + count // self._per_ledger, count % self._per_ledger)

    def _partition_for(self, message: FakeMessage, partition: int | None) -> int:
        if partition is not None and not 0 <= partition < self.partitions:
            raise InvalidArgumentError("partition", partition, f"one of the {self.partitions} partitions")
        if self.partitions == 0:
            return -1
        if partition is not None:
            return partition
        if message.key is not None:
            return zlib.crc32(message.key.encode()) % self.partitions
        return len(self._entries) % self.partitions


def whole(field: str, value: object, lowest: int) -> int:
    """Return an int of at least ``lowest``, or raise :class:`~pulsar_nack.InvalidArgumentError`."""
    if type(value) is not int or value < lowest:
        raise InvalidArgumentError(field, value, f"an integer of at least {lowest}")
    return value


def text(field: str, value: object) -> str:
    """Return a str that is not empty, or raise :class:`~pulsar_nack.InvalidArgumentError`."""
    if not isinstance(value, str) or not value:
        raise InvalidArgumentError(field, value, "a str that is not empty")
    return value


def true_or_false(field: str, value: object) -> bool:
    """Return a bool, or raise :class:`~pulsar_nack.InvalidArgumentError`."""
    if not isinstance(value, bool):
        raise InvalidArgumentError(field, value, "True or False")
    return value


def loop_ms() -> int:
    """Return the running loop's time in ms, 0 outside of a loop."""
    try:
        return int(asyncio.get_running_loop().time() * 1000 + 1e-6)
    except RuntimeError:
        return 0
