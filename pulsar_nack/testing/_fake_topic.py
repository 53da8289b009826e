"""A topic in memory and its subscriptions: which entries are acknowledged, who holds which, and which is sent next.

An entry is in one of three states of a subscription: *queued* (waits for a consumer), *held* (sent to one, not
acknowledged), *done* (acknowledged). What a leaving consumer held is queued again. One heap in the order of publishing
serves both first deliveries and redeliveries, because a redelivered entry is older than any that was never sent.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from .._check import check_flag, check_integer, check_name
from ..errors import BrokerError, InvalidArgumentError
from ..ids import MessageId, Position
from ._call_faults import loop_ms
from ._fake_delivery import FakeEntry, FakeInbox, FakeMessage

SHARED: Final = "shared"


Faults = tuple[tuple[int | None, ...], frozenset[int]]
"""How an entry is sent: again with each of these counts (None: the same count), and with the indexes that are sent
even if they are acknowledged by then."""

_NONE: Final = frozenset[int]()
_NO_FAULTS: Final[Faults] = ((), _NONE)


class FakeTopic:
    """A topic in memory with any number of subscriptions; every subscription begins at the first message.

    :param name: full topic name; partitions are called ``<name>-partition-<n>``
    :param partitions: 0 for a topic without; each partition counts its entries from 0 **in the same ledger**, to expose
        code that forgets the partition of an id
    :param ledger: id of the first ledger
    :param entries_per_ledger: how many entries a ledger has before the next one begins
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
        check_flag("batch_index_ack", batch_index_ack)
        self.name = check_name("name", name, "a str that is not empty")
        self.partitions = check_integer("partitions", partitions, 0)
        self.batch_index_ack = batch_index_ack
        self._ledger = check_integer("ledger", ledger, 0)
        self._per_ledger = check_integer("entries_per_ledger", entries_per_ledger, 1)
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
        """Store one message in a new entry and dispatch it.

        Without ``partition`` messages of one key share a partition, and those without a key take turns.
        """
        message = FakeMessage(data, key, dict(properties or {}), ordering_key, event_time_ms)
        return self._store([message], partition=partition).message_id(0)

    def publish_batch(
        self, messages: Iterable[bytes | FakeMessage | None], *, partition: int | None = None
    ) -> list[MessageId]:
        """Store messages in one entry and dispatch it; their ids have batch indexes from 0.

        :raises InvalidArgumentError: no messages
        """
        batch = [each if isinstance(each, FakeMessage) else FakeMessage(each) for each in messages]
        if not batch:
            raise InvalidArgumentError("messages", batch, "at least one message")
        entry = self._store(batch, partition=partition, is_batch=True)
        return [entry.message_id(index) for index in range(len(batch))]

    def publish_chunked(self, parts: Iterable[bytes], *, key: str | None = None) -> MessageId:
        """Store one message in several entries and dispatch it; only a request for all its parts redelivers it.

        :raises InvalidArgumentError: fewer than two parts
        """
        chunks = list(parts)
        if len(chunks) < 2:
            raise InvalidArgumentError("parts", chunks, "at least two parts")
        return self._store([FakeMessage(b"".join(chunks), key)], chunks=len(chunks)).message_id(0)

    def subscription(self, name: str = "fake") -> FakeSubscription:
        """Return a subscription, created if it is new: its acknowledgements, and an administrator's operations."""
        if name not in self._subscriptions:
            self._subscriptions[name] = FakeSubscription(self, name)
        return self._subscriptions[name]

    @property
    def entries(self) -> Iterable[FakeEntry]:
        """Return all entries in the order of publishing."""
        return self._entries.values()

    def last_message_ids(self) -> list[MessageId]:
        """Return the id of the last message of the topic, or of each partition; entry -1 if it is empty."""
        wanted = range(self.partitions) if self.partitions else range(-1, 0)
        last: dict[int, MessageId] = {}
        for entry in reversed(self._entries.values()):
            last.setdefault(entry.partition, entry.message_id(len(entry.messages) - 1))
            if len(last) == len(wanted):
                break
        return [last.get(each) or MessageId(-1, -1, each, topic=self._topic_name(each)) for each in wanted]

    def entry_of(self, message_id: MessageId) -> FakeEntry | None:
        """Return the entry that contains a message, or None."""
        return self._entries.get((message_id.partition, message_id.ledger, message_id.entry))

    def _store(
        self, messages: list[FakeMessage], *, partition: int | None = None, is_batch: bool = False, chunks: int = 0
    ) -> FakeEntry:
        for message in messages:
            if message.data is not None and not isinstance(message.data, bytes):
                raise InvalidArgumentError("data", message.data, "bytes, or None for a message without a value")
        where = self._partition_for(messages[0], partition)
        positions = tuple(self._next_position(where) for _ in range(max(chunks, 1)))
        entry = FakeEntry(
            number=len(self._entries),
            position=positions[-1],
            partition=where,
            topic=self._topic_name(where),
            messages=tuple(messages),
            is_batch=is_batch,
            published_ms=loop_ms(),
            chunks=positions if chunks else (),
        )
        self._entries[where, *entry.position] = entry
        for subscription in self._subscriptions.values():
            subscription._add(entry)
        return entry

    def _topic_name(self, partition: int) -> str:
        return self.name if partition == -1 else f"{self.name}-partition-{partition}"

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


class FakeSubscription:
    """The broker's side of a subscription; get it from :meth:`FakeTopic.subscription`."""

    def __init__(self, topic: FakeTopic, name: str) -> None:
        self.topic = topic
        self.name = name
        self._type = SHARED
        self._consumers: list[FakeInbox] = []
        self._turn = 0
        self._acked: dict[FakeEntry, frozenset[int]] = {}
        self._queue: list[tuple[int, FakeEntry, Faults]] = []
        """A heap in the order of publishing; an entry is in it once."""
        self._holder: dict[FakeEntry, FakeInbox] = {}
        self._counts: dict[FakeEntry, int] = {}
        for entry in topic.entries:
            self._put(entry)

    @property
    def backlog(self) -> int:
        """Return how many messages are not acknowledged at the broker."""
        return sum(len(self._open_indexes(entry)) for entry in self.topic.entries)

    def is_acked(self, message_id: MessageId) -> bool:
        """Return whether a message is acknowledged at the broker; False if there is no such message."""
        entry = self.topic.entry_of(message_id)
        return entry is not None and not self._is_open(entry, max(message_id.batch_index, 0))

    def redelivery_count(self, message_id: MessageId) -> int:
        """Return the broker's redelivery count of a message's entry; forgotten when the last consumer leaves."""
        entry = self.topic.entry_of(message_id)
        return 0 if entry is None else self._counts.get(entry, 0)

    def reset(self, to: MessageId | None = None) -> None:
        """Move back or forward to a message, as an administrator's reset does; None: to the first message.

        Everything from there on is delivered again, acknowledged or not; everything before counts as acknowledged. A
        message of a partition moves that partition.
        """
        start = to or MessageId(-1, -1)
        moved = [entry for entry in self.topic.entries if start.partition in {-1, entry.partition}]
        self._move(moved, lambda entry: entry.position < start.position)

    def reset_to_time(self, publish_time_ms: int) -> None:
        """Move to the first message that was published at or after a time, as :meth:`reset` does."""
        self._move(self.topic.entries, lambda entry: entry.published_ms < publish_time_ms)

    def _move(self, entries: Iterable[FakeEntry], is_before: Callable[[FakeEntry], bool]) -> None:
        for entry in entries:
            self._counts.pop(entry, None)
            self._acked[entry] = entry.all_indexes() if is_before(entry) else _NONE
        self._rewind()

    def restart(self) -> None:
        """Restart the broker: redelivery counts are forgotten, and unacknowledged messages are sent again."""
        self._counts.clear()
        self._rewind()

    def _join(self, consumer: FakeInbox, subscription_type: str) -> None:
        if self._consumers and (subscription_type != self._type or self._type == "exclusive"):
            raise BrokerError(f"subscription {self.name!r} has a consumer already and is {self._type}")
        self._type = subscription_type
        self._consumers.append(consumer)
        self._dispatch()

    def _leave(self, consumer: FakeInbox) -> None:
        for entry in [each for each, holder in self._holder.items() if holder is consumer]:
            self._release(entry)
            self._put(entry)
        self._consumers.remove(consumer)
        if not self._consumers:
            self._counts.clear()
        self._dispatch()

    def _add(self, entry: FakeEntry) -> None:
        self._put(entry)
        self._dispatch()

    def _ack_entries(self, entries: Iterable[FakeEntry]) -> None:
        for entry in entries:
            self._release(entry)
            self._acked[entry] = entry.all_indexes()
        self._dispatch()

    def _ack_before(self, last: MessageId) -> None:
        """Acknowledge the entries of a partition before that of ``last``."""
        earlier = [entry for entry in self.topic.entries if entry.partition == last.partition]
        self._ack_entries(entry for entry in earlier if entry.position < last.position)

    def _ack_index(self, entry: FakeEntry, index: int) -> None:
        if not self._is_open(entry, index) or not self.topic.batch_index_ack:
            return
        self._acked[entry] = self._acked.get(entry, _NONE) | {index}
        holder = self._holder.get(entry)
        if holder is not None:
            holder.unacked -= 1

    def _redeliver(self, consumer: FakeInbox, wanted: Mapping[FakeEntry, Faults], highest_count: int | None) -> None:
        """Send entries that ``consumer`` holds again; if exclusive or failover, send all held entries again."""
        if self._type != SHARED:
            if consumer is self._consumers[0]:
                self._rewind(wanted)
            return
        for entry, faults in wanted.items():
            if self._holder.get(entry) is not consumer:
                continue
            self._release(entry)
            count = self._counts.get(entry, 0) + 1
            self._counts[entry] = count if highest_count is None else min(count, highest_count)
            self._put(entry, faults)
        self._dispatch()

    def _rewind(self, wanted: Mapping[FakeEntry, Faults] | None = None) -> None:
        for consumer in self._consumers:
            consumer.drop()
            consumer.unacked = 0
        self._holder.clear()
        self._queue.clear()
        for entry in self.topic.entries:
            if self._open_indexes(entry):
                self._put(entry, (wanted or {}).get(entry, _NO_FAULTS))
        self._dispatch()

    def _put(self, entry: FakeEntry, faults: Faults = _NO_FAULTS) -> None:
        heapq.heappush(self._queue, (entry.number, entry, faults))

    def _dispatch(self) -> None:
        while self._queue:
            _, entry, (copies, forced) = self._queue[0]
            indexes = sorted(self._open_indexes(entry) | forced)
            consumer = self._next_consumer() if indexes else None
            if indexes and consumer is None:
                return
            heapq.heappop(self._queue)
            if consumer is not None:
                if unacked := self._open_indexes(entry):
                    self._holder[entry] = consumer
                    consumer.unacked += len(unacked)
                for count in (None, *copies):
                    consumer.send(entry, indexes, self._counts.get(entry, 0) if count is None else count, forced)

    def _release(self, entry: FakeEntry) -> None:
        holder = self._holder.pop(entry, None)
        if holder is not None:
            holder.unacked -= len(self._open_indexes(entry))

    def _next_consumer(self) -> FakeInbox | None:
        able = self._consumers if self._type == SHARED else self._consumers[:1]
        for step in range(len(able)):
            at = (self._turn + step) % len(able)
            if able[at].has_room():
                self._turn = at + 1
                return able[at]
        return None

    def _open_indexes(self, entry: FakeEntry) -> frozenset[int]:
        return entry.all_indexes() - self._acked.get(entry, _NONE)

    def _is_open(self, entry: FakeEntry, index: int) -> bool:
        return index not in self._acked.get(entry, _NONE)
