"""An entry of a local topic: one message, or a batch of them, and its form in a ledger. Needs the extra ``topic``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from types import ModuleType
from typing import Final

from ..errors import MissingExtraError, TopicFormatError

NO_KEY: Final = -1


@dataclass(frozen=True, slots=True)
class EntryMessage:
    """One message as it was published; ``payload`` is None, and ``event_time_ms`` 0, when the producer set none."""

    payload: bytes | None
    key: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    event_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """What is published, stored and dispatched as one.

    :param publish_time_ms: epoch ms
    :param deliver_at_ms: epoch ms, None: at once
    :param is_batch: whether its messages have batch indexes; one that is not has exactly one message
    """

    publish_time_ms: int
    messages: tuple[EntryMessage, ...]
    deliver_at_ms: int | None = None
    is_batch: bool = False

    @property
    def batch_size(self) -> int:
        """Return how many messages a batch has, 0 when it is none."""
        return len(self.messages) if self.is_batch else 0

    @property
    def key_hash(self) -> int:
        """Return the hash of the first message's key, which says who gets the entry; -1 without a key."""
        key = self.messages[0].key
        return NO_KEY if key is None else hash_of(key)


def hash_of(key: str) -> int:
    """Return the hash of a key, 0 to 65 535: the same in every process."""
    return int.from_bytes(blake2b(key.encode(), digest_size=2).digest(), "big")


@cache
def messages() -> ModuleType:
    """Return the generated classes.

    :raises MissingExtraError: protobuf is not installed
    """
    try:
        from . import _entry_pb2
    except ImportError as error:
        raise MissingExtraError("a local topic", "protobuf>=5", "topic") from error
    return _entry_pb2


def encode_entry(entry: Entry) -> bytes:
    """Return the bytes of an entry."""
    record = messages().Entry(publish_time=entry.publish_time_ms, deliver_at=entry.deliver_at_ms)
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
    """Return the entry that these bytes are.

    :raises TopicFormatError: they are none
    """
    from google.protobuf.message import DecodeError

    record = messages().Entry()
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
