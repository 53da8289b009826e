"""An entry of a local topic: one message, or a batch of them, and its bytes in a ledger. Needs the extra ``topic``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from typing import Any, Final

from ..consumer import Delivery
from ..errors import MissingExtraError, TopicFormatError
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
