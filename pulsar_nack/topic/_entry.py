"""The entries of a local topic: what is published, its bytes in a ledger, and the last ones in memory.

An entry is one message, or a batch of them. Its bytes need the extra ``topic``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from hashlib import blake2b
from typing import Any, Final, cast

from .._check import INT64_MAX, check_text
from .._delays import FIRST_PUBLISH_MS, delay_ms, wrong_unit
from ..config import BucketConfig
from ..consumer import Delivery
from ..errors import InvalidArgumentError, MissingExtraError, TopicFormatError
from ..ids import MessageId, Position

NO_KEY: Final = -1


@dataclass(frozen=True, slots=True)
class EntryMessage:
    """One message as it was published; without a value ``payload`` is None, without an event time that is 0."""

    payload: bytes | None
    key: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    event_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """The unit that is published, stored and dispatched: one message, or a batch.

    :param publish_time_ms: epoch ms
    :param deliver_at_ms: epoch ms, None: at once
    :param is_batch: whether its messages have batch indexes; an entry that is no batch has exactly one message
    """

    publish_time_ms: int
    messages: tuple[EntryMessage, ...]
    deliver_at_ms: int | None = None
    is_batch: bool = False

    @property
    def batch_size(self) -> int:
        """Return how many messages a batch has, 0 for an entry that is no batch."""
        return len(self.messages) if self.is_batch else 0

    @property
    def key_hash(self) -> int:
        """Return the hash of the first message's key, which chooses the consumer; -1 without a key."""
        key = self.messages[0].key
        return NO_KEY if key is None else hash_of(key)


def hash_of(key: str) -> int:
    """Return the hash of a key, 0 to 65 535: the same in every process."""
    return int.from_bytes(blake2b(key.encode(), digest_size=2).digest(), "big")


def entries_of(
    payload: object,
    now_ms: int,
    delayed: BucketConfig,
    *,
    key: object,
    properties: object,
    deliver_at: object,
    deliver_after: object,
    event_time_ms: object,
    batch: bool,
) -> list[Entry]:
    """Return the entries that :meth:`LocalTopic.publish` adds now for its arguments.

    :param delayed: bounds the longest delay
    :raises InvalidArgumentError: an argument is invalid
    """
    if batch and is_one_payload(payload):
        raise InvalidArgumentError("batch", batch, "False for a single payload")
    at = _deliver_at_ms(deliver_at, deliver_after, now_ms)
    if at is not None and delayed.exceeds_max_delay(at, now_ms):
        longest = delayed.delayed_delivery_max_delay_in_millis
        given = ("deliver_at", deliver_at) if deliver_after is None else ("deliver_after", deliver_after)
        raise InvalidArgumentError(*given, f"at most {longest:,} ms from now (delayed_delivery_max_delay_in_millis)")
    made = [_message_of(each, key, properties, event_time_ms) for each in _payloads_of(payload)]
    if batch:
        return [Entry(now_ms, tuple(made), at, is_batch=True)]
    return [Entry(now_ms, (message,), at) for message in made]


def is_one_payload(payload: object) -> bool:
    """Return whether this is a message's payload, and not a sequence of them."""
    return payload is None or isinstance(payload, bytes | bytearray | memoryview)


def _deliver_at_ms(at: object, after: Any, now_ms: int) -> int | None:
    """Return when to deliver a message (epoch ms), None: at once.

    :param at: epoch ms, a datetime with a time zone, or a timedelta from now
    :param after: seconds or a timedelta from now
    """
    if after is not None:
        if at is not None:
            raise InvalidArgumentError("deliver_after", after, "nothing beside deliver_at")
        return now_ms + delay_ms(after, "deliver_after")
    if at is None:
        return None
    if isinstance(at, timedelta):
        return now_ms + delay_ms(at, "deliver_at")
    if isinstance(at, datetime) and at.tzinfo is not None:
        return max(round(at.timestamp() * 1000), 0)
    unit = wrong_unit(at) if now_ms >= FIRST_PUBLISH_MS else ""  # a test's clock may be earlier
    if type(at) is not int or not 0 <= at <= INT64_MAX or unit:
        raise InvalidArgumentError("deliver_at", at, f"epoch ms{unit}, a datetime with a time zone, or a timedelta")
    return at


def _payloads_of(payload: object) -> Sequence[object]:
    """Return the payloads to publish, one or several."""
    if is_one_payload(payload):
        return [payload]
    if isinstance(payload, str) or not isinstance(payload, Sequence) or not payload:
        raise InvalidArgumentError("payload", payload, "bytes or None, or a sequence of them with at least one")
    return payload


def _message_of(payload: object, key: object, properties: object, event_ms: object) -> EntryMessage:
    """Return a message with this payload, key, properties and event time."""
    if payload is not None and not isinstance(payload, bytes | bytearray | memoryview):
        raise InvalidArgumentError("payload", payload, "bytes, or None for a message without a value")
    if key is not None:
        check_text("key", key)
    if type(event_ms) is not int or not 0 <= event_ms <= INT64_MAX:
        raise InvalidArgumentError("event_time_ms", event_ms, "epoch ms")
    given = {} if properties is None else properties
    if not isinstance(given, Mapping):
        raise InvalidArgumentError("properties", properties, "a mapping of strings to strings")
    for name, value in given.items():
        check_text("properties", name)
        check_text("properties", value)
    value = None if payload is None else bytes(payload)
    return EntryMessage(value, cast("str | None", key), dict(given), event_ms)


@cache
def entry_class() -> Any:
    """Return the generated class of entries.

    :raises MissingExtraError: protobuf is not installed
    """
    try:
        from ._entry_pb2 import Entry as EntryRecord
    except ImportError as error:
        raise MissingExtraError("a local topic", "protobuf>=5", "topic") from error
    return EntryRecord


def encode_entry(entry: Entry) -> bytes:
    """Return the bytes of an entry."""
    record = entry_class()(publish_time=entry.publish_time_ms, deliver_at=entry.deliver_at_ms)
    if entry.is_batch:
        record.is_batch = True
    for message in entry.messages:
        one = record.messages.add(payload=message.payload or b"", key=message.key)
        if message.payload is None:
            one.is_null = True
        if message.event_time_ms:
            one.event_time = message.event_time_ms
        for name, value in message.properties.items():
            one.properties.add(name=name, value=value)
    encoded: bytes = record.SerializeToString()
    return encoded


def decode_entry(data: bytes) -> Entry:
    """Return the entry with these bytes.

    :raises TopicFormatError: they are no entry
    """
    from google.protobuf.message import DecodeError

    record = entry_class()()
    try:
        record.ParseFromString(data)
    except DecodeError as error:
        raise TopicFormatError("entry", str(error)) from error
    if not record.messages or (len(record.messages) > 1 and not record.is_batch):
        raise TopicFormatError("entry", f"{len(record.messages)} messages where there can be only one")
    return Entry(
        publish_time_ms=record.publish_time,
        deliver_at_ms=record.deliver_at if record.HasField("deliver_at") else None,
        is_batch=record.is_batch,
        messages=tuple(
            EntryMessage(
                payload=None if one.is_null else one.payload,
                key=one.key if one.HasField("key") else None,
                properties={each.name: each.value for each in one.properties},
                event_time_ms=one.event_time,
            )
            for one in record.messages
        ),
    )


def deliveries_of(topic: str, position: Position, entry: Entry, indexes: Iterable[int], count: int) -> list[Delivery]:
    """Return the messages of an entry with these batch indexes; ``count`` is the redelivery count."""
    made = []
    for index in indexes:
        message = entry.messages[index]
        batch_index = index if entry.is_batch else -1
        made.append(
            Delivery(
                id=MessageId(*position, batch_index=batch_index, batch_size=entry.batch_size, topic=topic),
                data=message.payload or b"",
                properties=message.properties,
                key=message.key,
                redelivery_count=count,
                publish_time_ms=entry.publish_time_ms,
                event_time_ms=message.event_time_ms,
                topic=topic,
                is_null=message.payload is None,
            )
        )
    return made


class EntryCache:
    """The last entries, so that consumers that keep up need no reading; the oldest are dropped first.

    :param limit: most bytes to keep, counted as on storage; 0: keep no entry
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[Position, tuple[Entry, int]] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, position: Position, entry: Entry, size: int) -> None:
        """Keep an entry that takes this many bytes on storage."""
        if size > self._limit:
            return
        self._entries[position] = entry, size
        self.bytes += size
        while self.bytes > self._limit:
            _, (_, dropped) = self._entries.popitem(last=False)
            self.bytes -= dropped

    def get(self, position: Position) -> Entry | None:
        """Return an entry, if it is kept."""
        found = self._entries.get(position)
        return None if found is None else found[0]

    def drop_below(self, ledger: int) -> None:
        """Drop the entries of ledgers below this one, which are the oldest."""
        while self._entries and next(iter(self._entries)).ledger < ledger:
            _, (_, dropped) = self._entries.popitem(last=False)
            self.bytes -= dropped
