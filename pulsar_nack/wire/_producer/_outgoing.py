"""A message on its way to a topic: what the user gave, and the future that its receipt goes to."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Mapping, Sequence
from typing import Final

from ..._delays import Delay, delay_ms
from ...errors import InvalidArgumentError
from ...ids import MessageId
from .. import _pulsar_pb2 as pb

_INT64_MAX: Final = 2**63 - 1
_OVERHEAD: Final = 64
"""Bytes that a message takes at most beside what is counted; so that those without a payload are not for free."""

_OF_A_PROPERTY: Final = 12
"""Bytes that a property takes at most beside its name and value."""


def epoch_ms() -> int:
    """Return the wall clock, which publish and delivery times are told in."""
    return time.time_ns() // 1_000_000


class Outgoing:
    """One message; checked when it is made.

    :raises InvalidArgumentError: names the argument
    """

    __slots__ = (
        "data",
        "deliver_at_ms",
        "event_time_ms",
        "is_key_encoded",
        "is_null",
        "key",
        "ordering_key",
        "properties",
        "receipt",
        "replicate_to",
        "sequence_id",
        "size",
    )

    def __init__(
        self,
        data: bytes | bytearray | memoryview | None,
        *,
        properties: Mapping[str, str] | None = None,
        key: str | bytes | None = None,
        ordering_key: str | bytes | None = None,
        event_time_ms: int = 0,
        deliver_at_ms: int | None = None,
        deliver_after: Delay | None = None,
        sequence_id: int | None = None,
        replicate_to: Sequence[str] | None = None,
    ) -> None:
        self.receipt: asyncio.Future[MessageId]
        self.is_null = data is None
        self.data = data if type(data) is bytes else _as_bytes(data)
        self.properties = _as_properties(properties) if properties else None
        self.is_key_encoded = isinstance(key, bytes | bytearray)
        self.key = None if key is None else _as_key(key)
        self.ordering_key = None if ordering_key is None else _as_ordering_key(ordering_key)
        self.event_time_ms = _as_whole("event_time_ms", event_time_ms) if event_time_ms else 0
        self.deliver_at_ms = None
        if deliver_at_ms is not None or deliver_after is not None:
            self.deliver_at_ms = _delivery_time(deliver_at_ms, deliver_after)
        self.sequence_id = None if sequence_id is None else _as_whole("sequence_id", sequence_id)
        self.replicate_to = None if replicate_to is None else _as_clusters(replicate_to)
        self.size = len(self.data) + _OVERHEAD
        if self.properties:
            self.size += _size_of(self.properties)
        if self.key or self.ordering_key:
            self.size += _bytes_of("key", self.key or "") + len(self.ordering_key or b"")

    @property
    def goes_alone(self) -> bool:
        """Return whether it cannot be in a batch: it has what a whole entry has."""
        return self.deliver_at_ms is not None or self.replicate_to is not None

    def fill(self, metadata: pb.MessageMetadata | pb.SingleMessageMetadata) -> None:
        """Fill in what an entry and a message of a batch have both."""
        if self.properties:
            add = metadata.properties.add
            for name, value in self.properties.items():
                add(key=name, value=value)
        self.fill_keys(metadata)
        if self.event_time_ms:
            metadata.event_time = self.event_time_ms
        if self.is_null:
            metadata.null_value = True

    def fill_keys(self, metadata: pb.MessageMetadata | pb.SingleMessageMetadata) -> None:
        """Fill in the keys alone, as an entry has them of the first of its messages."""
        if self.key is not None:
            metadata.partition_key = self.key
            if self.is_key_encoded:
                metadata.partition_key_b64_encoded = True
        if self.ordering_key is not None:
            metadata.ordering_key = self.ordering_key

    def fill_entry(self, metadata: pb.MessageMetadata) -> None:
        """Fill in all, where it is an entry by itself."""
        self.fill(metadata)
        if self.deliver_at_ms is not None:
            metadata.deliver_at_time = self.deliver_at_ms
        if self.replicate_to is not None:
            metadata.replicate_to.extend(self.replicate_to)

    def stored(self, message_id: MessageId) -> None:
        """Hand over the id."""
        if not self.receipt.done():
            self.receipt.set_result(message_id)

    def failed(self, error: Exception) -> None:
        """Hand over why it was not stored, or may not have been."""
        if not self.receipt.done():
            self.receipt.set_exception(error)


def _as_bytes(data: object) -> bytes:
    if data is None:
        return b""
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise InvalidArgumentError("data", data, "bytes, or None for a message without a value")


def _as_properties(properties: object) -> dict[str, str]:
    if isinstance(properties, Mapping):
        found = dict(properties)
        if all(type(name) is str and type(value) is str for name, value in found.items()):
            return found
        if all(isinstance(text, str) for pair in found.items() for text in pair):
            return {str.__str__(name): str.__str__(value) for name, value in found.items()}  # as of an enum
    raise InvalidArgumentError("properties", properties, "a mapping from str to str")


def _size_of(properties: Mapping[str, str]) -> int:
    return sum(
        _bytes_of("properties", name) + _bytes_of("properties", value) + _OF_A_PROPERTY
        for name, value in properties.items()
    )


def _bytes_of(field: str, text: str) -> int:
    """Return how many bytes a text takes; one that cannot be encoded must not spoil the batch that it would be in."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise InvalidArgumentError(field, text, "text that UTF-8 can encode") from None


def _as_key(key: object) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, bytes | bytearray):
        return base64.b64encode(key).decode("ascii")
    raise InvalidArgumentError("key", key, "a str, bytes or None")


def _as_ordering_key(key: object) -> bytes:
    if isinstance(key, str):
        try:
            return key.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise InvalidArgumentError("ordering_key", key, "text that UTF-8 can encode") from None
    if isinstance(key, bytes | bytearray):
        return bytes(key)
    raise InvalidArgumentError("ordering_key", key, "a str, bytes or None")


def _as_whole(field: str, value: object) -> int:
    if type(value) is not int or not 0 <= value <= _INT64_MAX:
        raise InvalidArgumentError(field, value, f"an integer from 0 to {_INT64_MAX}")
    return value


def _delivery_time(deliver_at_ms: int | None, deliver_after: Delay | None) -> int:
    if deliver_after is None:
        return _as_whole("deliver_at_ms", deliver_at_ms)
    if deliver_at_ms is not None:
        raise InvalidArgumentError("deliver_after", deliver_after, "None, as deliver_at_ms is given")
    return epoch_ms() + delay_ms(deliver_after, "deliver_after")


def _as_clusters(clusters: object) -> tuple[str, ...]:
    if (
        isinstance(clusters, Sequence)
        and not isinstance(clusters, str)
        and all(isinstance(each, str) for each in clusters)
    ):
        return tuple(map(str.__str__, clusters))
    raise InvalidArgumentError("replicate_to", clusters, "a list of names of clusters")
