"""The topics of a fake broker: entries, subscriptions, dispatching to consumers. No sockets, no clock.

A subscription dispatches entries as a broker does: first redeliveries, then new ones, as permits allow. The
unacknowledged entries of a consumer that leaves are redelivered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from pulsar_nack.wire._protocol._frames import position_of
from tests.wire.frames import batch_payload, message_rest, read_message

SubType = pb.CommandSubscribe


@dataclass
class FakeEntry:
    """One entry: its headers and payload, and the fields that the broker uses."""

    ledger: int
    entry: int
    rest: bytes
    messages: int = 1
    key: str = ""

    @property
    def place(self) -> tuple[int, int]:
        """Return its ledger and entry."""
        return self.ledger, self.entry


@dataclass(eq=False)
class FakeConsumer:
    """One consumer as the broker sees it. ``send`` sends it a command, with headers and payload."""

    id: int
    name: str
    command: pb.CommandSubscribe
    send: Callable[[pb.BaseCommand, bytes], None]
    permits: int = 0
    is_active: bool | None = None
    pending: dict[tuple[int, int], FakeEntry] = field(default_factory=dict)


class FakeSubscription:
    """One subscription of one topic.

    ``acked`` are the places of acknowledged entries, ``unacked_indexes`` the ack sets of partly acknowledged ones,
    ``counts`` how often the redelivery of each was requested.
    """

    def __init__(self, topic: FakeTopic, kind: int, start: int) -> None:
        self.topic = topic
        self.kind = kind
        self.consumers: list[FakeConsumer] = []
        self.acked = {entry.place for entry in topic.entries[:start]}
        self.unacked_indexes: dict[tuple[int, int], list[int]] = {}
        self.counts: dict[tuple[int, int], int] = {}
        self.epoch = 0
        self.is_paused = False
        self.is_moved = False
        """Whether a seek closed its consumers: it stays for the next one, even if it is not durable."""
        self.max_unacked: int | None = None
        """Most unacknowledged entries of one consumer."""
        self._again: dict[tuple[int, int], FakeEntry] = {}
        self._next = start
        self._turn = 0

    @property
    def has_one_reader(self) -> bool:
        """Return whether one consumer gets all entries."""
        return self.kind in {SubType.Exclusive, SubType.Failover}

    def add(self, consumer: FakeConsumer) -> None:
        """Add a consumer."""
        self.is_moved = False
        self.consumers.append(consumer)
        self.consumers.sort(key=lambda each: (each.command.priority_level, each.name))
        self._choose_active()
        self.dispatch()

    def remove(self, consumer: FakeConsumer) -> None:
        """Remove a consumer and redeliver its unacknowledged entries."""
        if consumer not in self.consumers:
            return
        self.consumers.remove(consumer)
        self._again |= consumer.pending
        consumer.pending.clear()
        if not self.consumers:
            self.counts.clear()
        self._choose_active()
        self.dispatch()

    def redeliver(self, consumer: FakeConsumer, places: Iterable[tuple[int, int]] | None) -> None:
        """Redeliver those of these entries that ``consumer`` has; None: all that it has."""
        wanted = list(consumer.pending) if places is None or self.has_one_reader else list(places)
        for place in wanted:
            entry = consumer.pending.pop(place, None)
            if entry is not None:
                self._again[place] = entry
                if not self.has_one_reader:
                    self.counts[place] = self.counts.get(place, 0) + 1
        self.dispatch()

    def acknowledge(self, ids: Sequence[pb.MessageIdData], *, is_cumulative: bool) -> None:
        """Acknowledge entries; of an id with an ack set the indexes in it stay unacknowledged."""
        for each in ids:
            place = position_of(each)
            whole = [entry.place for entry in self.topic.entries if entry.place < place] if is_cumulative else []
            if each.ack_set:
                self._acknowledge_part(place, list(each.ack_set))
            elif place.entry >= 0:
                whole.append(place)
            self._settle(whole)
        if self.max_unacked is not None:
            self.dispatch()

    @property
    def mark_delete_position(self) -> tuple[int, int]:
        """Return the last entry up to which all are acknowledged."""
        first = next((entry.entry for entry in self.topic.entries if entry.place not in self.acked), None)
        return self.topic.ledger, len(self.topic.entries) - 1 if first is None else first - 1

    def skip_all(self) -> None:
        """Acknowledge all entries, as an administrator or expiry does; consumers are not notified."""
        self._settle([entry.place for entry in self.topic.entries])

    def rewind(self, start: int) -> None:
        """Begin at an entry of the topic, as if nothing from there on were acknowledged."""
        later = {entry.place for entry in self.topic.entries[start:]}
        self.acked = {entry.place for entry in self.topic.entries[:start]}
        for each in later:
            self.unacked_indexes.pop(each, None)
        self._again.clear()
        self.counts.clear()
        self._next = start

    def switch(self) -> None:
        """Make the next consumer of a Failover subscription the active one."""
        self.consumers.append(self.consumers.pop(0))
        self._choose_active()
        self.dispatch()

    def hand_out_next(self, consumer: FakeConsumer) -> bool:
        """Dispatch one entry to this consumer, even if paused; return False if there is no entry for it."""
        entry = self._first()
        if entry is None or consumer.permits <= 0 or (self.has_one_reader and consumer is not self.consumers[0]):
            return False
        self._take(entry)
        self._hand_out(entry, consumer)
        return True

    def dispatch(self) -> None:
        """Dispatch entries as permits allow."""
        while not self.is_paused:
            entry = self._first()
            consumer = None if entry is None else self._chosen(entry)
            if entry is None or consumer is None:
                return
            self._take(entry)
            self._hand_out(entry, consumer)

    def hand_out_twice(self, place: tuple[int, int]) -> None:
        """Send an entry again to the consumer that has it, as brokers sometimes do."""
        for consumer in self.consumers:
            if place in consumer.pending:
                self._hand_out(consumer.pending[place], consumer)

    def _acknowledge_part(self, place: tuple[int, int], words: list[int]) -> None:
        before = self.unacked_indexes.get(place, [-1] * len(words))
        left = [one & other for one, other in zip(before, words, strict=False)]
        self.unacked_indexes[place] = left
        if not any(left):
            self._settle([place])

    def _settle(self, places: Iterable[tuple[int, int]]) -> None:
        for place in places:
            self.acked.add(place)
            self.unacked_indexes.pop(place, None)
            self._again.pop(place, None)
            for consumer in self.consumers:
                consumer.pending.pop(place, None)

    def _first(self) -> FakeEntry | None:
        if self._again:
            return self._again[min(self._again)]
        entries = self.topic.entries
        while self._next < len(entries) and entries[self._next].place in self.acked:
            self._next += 1
        return entries[self._next] if self._next < len(entries) else None

    def _take(self, entry: FakeEntry) -> None:
        if self._again.pop(entry.place, None) is None:
            self._next += 1

    def _chosen(self, entry: FakeEntry) -> FakeConsumer | None:
        if self.has_one_reader:
            ready = [each for each in self.consumers if each.is_active is not False][:1]
        elif self.kind == SubType.Key_Shared and self.consumers:
            ready = [self.consumers[crc32(entry.key.encode()) % len(self.consumers)]]
        else:
            self._turn += 1
            turn = self._turn % len(self.consumers) if self.consumers else 0
            ready = [*self.consumers[turn:], *self.consumers[:turn]]
        return next((each for each in ready if each.permits > 0 and not self.is_blocked(each)), None)

    def is_blocked(self, consumer: FakeConsumer) -> bool:
        """Return whether a consumer has reached its limit of unacknowledged entries."""
        return self.max_unacked is not None and len(consumer.pending) >= self.max_unacked

    def _hand_out(self, entry: FakeEntry, consumer: FakeConsumer) -> None:
        consumer.permits -= self._unacked(entry)
        consumer.pending[entry.place] = entry
        command = pb.BaseCommand(type=pb.BaseCommand.MESSAGE)
        command.message.consumer_id = consumer.id
        command.message.message_id.ledgerId = entry.ledger
        command.message.message_id.entryId = entry.entry
        command.message.message_id.partition = self.topic.partition
        command.message.redelivery_count = self.counts.get(entry.place, 0)
        command.message.ack_set.extend(self.unacked_indexes.get(entry.place, ()))
        if self.has_one_reader:
            command.message.consumer_epoch = self.epoch
        consumer.send(command, entry.rest)

    def _unacked(self, entry: FakeEntry) -> int:
        """Return how many permits an entry takes: one for each unacknowledged message."""
        words = self.unacked_indexes.get(entry.place)
        return entry.messages if words is None else sum((word & 2**64 - 1).bit_count() for word in words)

    def _choose_active(self) -> None:
        if self.kind != SubType.Failover:
            return
        for number, consumer in enumerate(self.consumers):
            if consumer.is_active is not (number == 0):
                consumer.is_active = number == 0
                command = pb.BaseCommand(type=pb.BaseCommand.ACTIVE_CONSUMER_CHANGE)
                command.active_consumer_change.consumer_id = consumer.id
                command.active_consumer_change.is_active = consumer.is_active
                consumer.send(command, b"")
                self._again |= consumer.pending if not consumer.is_active else {}


class FakeTopic:
    """One topic or partition, with its entries and subscriptions."""

    def __init__(self, name: str, owner: str) -> None:
        self.name = name
        self.owner = owner
        """The URL of the broker that owns it."""
        self.ledger = 7
        self.entries: list[FakeEntry] = []
        self.subscriptions: dict[str, FakeSubscription] = {}
        self.last_sequence_ids: dict[str, int] = {}
        self.schemas: list[bytes] = []
        """The schemas of producers, serialized; the index of one is its version."""
        self.is_terminated = False
        _, _, number = name.rpartition("-partition-")
        self.partition = int(number) if number.isdigit() else -1

    def load(self) -> None:
        """Read the sequence ids from the stored entries, chunks too, as a broker does that loads the topic."""
        self.last_sequence_ids.clear()
        for entry in self.entries:
            metadata, _ = read_message(entry.rest)
            numbers = [signed(number) for number in (metadata.sequence_id, metadata.highest_sequence_id)]
            self.last_sequence_ids[metadata.producer_name] = max(numbers)

    def append(self, rest: bytes, *, messages: int = 1, key: str = "") -> FakeEntry:
        """Store an entry and dispatch it."""
        last = self.entries[-1] if self.entries else None
        number = last.entry + 1 if last is not None and last.ledger == self.ledger else 0
        entry = FakeEntry(self.ledger, number, rest, messages, key)
        self.entries.append(entry)
        for subscription in list(self.subscriptions.values()):
            subscription.dispatch()
        return entry

    def publish(self, payload: bytes, *, properties: Mapping[str, str] | None = None, **fields: Any) -> FakeEntry:
        """Store one message; ``fields`` are of its metadata."""
        metadata = metadata_of(properties, sequence_id=len(self.entries), **fields)
        return self.append(message_rest(metadata, payload), key=metadata.partition_key)

    def publish_batch(self, payloads: Sequence[bytes], **fields: Any) -> FakeEntry:
        """Store messages as one batch."""
        metadata = metadata_of(sequence_id=len(self.entries), num_messages_in_batch=len(payloads), **fields)
        return self.append(
            message_rest(metadata, batch_payload(payloads)), messages=len(payloads), key=metadata.partition_key
        )

    def index_of(self, place: tuple[int, int]) -> int:
        """Return the index of an entry, or where it would be."""
        return sum(entry.place < place for entry in self.entries)


def signed(number: int) -> int:
    """Return a number of the protocol as brokers read it, in which the largest stands for -1."""
    return number - 2**64 if number >= 2**63 else number


def metadata_of(properties: Mapping[str, str] | None = None, **fields: Any) -> pb.MessageMetadata:
    """Return metadata with all required fields."""
    usual: dict[str, Any] = {"producer_name": "test", "sequence_id": 0, "publish_time": 1_000}
    metadata = pb.MessageMetadata(**usual | fields)
    for key, value in (properties or {}).items():
        metadata.properties.add(key=key, value=value)
    return metadata
