"""Messages before they are encoded: checked, gathered in batches, and limited while they are unconfirmed."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ..._check import INT64_MAX, check_integer, is_text
from ..._delays import Delay, delay_ms, wrong_unit
from ..._waiting import WaitingCalls
from ...errors import InvalidArgumentError
from ...ids import MessageId
from .._protocol import _pulsar_pb2 as pb
from ._options import ProducerOptions

_MESSAGE_OVERHEAD: Final = 64
"""Most bytes of a message that are not counted; so messages without a payload have a size too."""
_PROPERTY_OVERHEAD: Final = 12
"""Most bytes of a property beside its name and value."""
_BATCHED_OVERHEAD: Final = 8
"""Bytes of a message in a batch beside its size: the sizes of metadata and payload."""


def epoch_ms() -> int:
    """Return the wall clock in ms, as publish and delivery times have it."""
    return time.time_ns() // 1_000_000


class OutgoingMessage:
    """One message and the future of its receipt; the arguments are those of :meth:`Producer.send`.

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
        self.event_time_ms = check_integer("event_time_ms", event_time_ms, 0, INT64_MAX) if event_time_ms else 0
        self.deliver_at_ms = None
        if deliver_at_ms is not None or deliver_after is not None:
            self.deliver_at_ms = _delivery_time(deliver_at_ms, deliver_after)
        self.sequence_id = None if sequence_id is None else check_integer("sequence_id", sequence_id, 0, INT64_MAX)
        self.replicate_to = None if replicate_to is None else _as_clusters(replicate_to)
        self.size = len(self.data) + _MESSAGE_OVERHEAD
        if self.properties:
            self.size += _size_of(self.properties)
        if self.key or self.ordering_key:
            self.size += _bytes_of("key", self.key or "") + len(self.ordering_key or b"")

    @property
    def is_never_batched(self) -> bool:
        """Return whether it must be an entry with one message: it has fields that only entries have."""
        return self.deliver_at_ms is not None or self.replicate_to is not None

    def write_to(self, metadata: pb.MessageMetadata | pb.SingleMessageMetadata) -> None:
        """Set the fields that entries and messages of a batch have in common."""
        if self.properties:
            add = metadata.properties.add
            for name, value in self.properties.items():
                add(key=name, value=value)
        self.write_keys_to(metadata)
        if self.event_time_ms:
            metadata.event_time = self.event_time_ms
        if self.is_null:
            metadata.null_value = True

    def write_keys_to(self, metadata: pb.MessageMetadata | pb.SingleMessageMetadata) -> None:
        """Set the keys; the entry of a batch has those of its first message."""
        if self.key is not None:
            metadata.partition_key = self.key
            if self.is_key_encoded:
                metadata.partition_key_b64_encoded = True
        if self.ordering_key is not None:
            metadata.ordering_key = self.ordering_key

    def write_entry_to(self, metadata: pb.MessageMetadata) -> None:
        """Set all fields of an entry with this one message."""
        self.write_to(metadata)
        if self.deliver_at_ms is not None:
            metadata.deliver_at_time = self.deliver_at_ms
        if self.replicate_to is not None:
            metadata.replicate_to.extend(self.replicate_to)

    def resolve(self, message_id: MessageId) -> None:
        """Set the receipt's result."""
        if not self.receipt.done():
            self.receipt.set_result(message_id)

    def fail(self, error: Exception) -> None:
        """Set the receipt's error: the message was not stored, or may not have been."""
        if not self.receipt.done():
            self.receipt.set_exception(error)


class BatchContainer:
    """The open batches: one, or one for each key.

    With ``batch_by_key`` batches are closed in the order of their first messages.

    :param on_time: called when the time of the first batch is over, to close all
    """

    def __init__(self, options: ProducerOptions, loop: asyncio.AbstractEventLoop, on_time: Callable[[], None]) -> None:
        self.max_bytes = options.batch_max_bytes
        """Of a batch, exceeded only by a single larger message; may be changed later."""
        self._max_messages = options.batch_max_messages
        self._by_key = options.batch_by_key
        self._delay = options.batch_delay.total_seconds()
        self._loop = loop
        self._on_time = on_time
        self._timer: asyncio.TimerHandle | None = None
        self._open: dict[object, list[OutgoingMessage]] = {}
        self._bytes: dict[object, int] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, message: OutgoingMessage) -> list[list[OutgoingMessage]]:
        """Add a message; return the batches that are full now, to be sent in this order."""
        key = (message.ordering_key, message.key) if self._by_key else None
        full: list[list[OutgoingMessage]] = []
        size = message.size + _BATCHED_OVERHEAD
        taken = self._bytes.get(key, 0)
        if taken and taken + size > self.max_bytes:
            full.append(self._close(key))
            taken = 0
        self._open.setdefault(key, []).append(message)
        self._bytes[key] = taken + size
        if taken + size >= self.max_bytes or len(self._open[key]) >= self._max_messages:
            full.append(self._close(key))
        if self._open and self._timer is None:
            self._timer = self._loop.call_later(self._delay, self._on_time)
        return full

    def close_all(self) -> list[list[OutgoingMessage]]:
        """Remove and return all batches, to be sent in this order."""
        return [self._close(key) for key in list(self._open)]

    def _close(self, key: object) -> list[OutgoingMessage]:
        del self._bytes[key]
        messages = self._open.pop(key)
        if not self._open and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return messages


class PendingLimiter:
    """Limits the number and bytes of unconfirmed messages; waiters are admitted in order.

    A message larger than ``max_bytes`` is admitted when there is no other.
    """

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.messages = 0
        self.bytes = 0
        self.waiting = WaitingCalls[None]()
        """The calls that wait; each is woken when its message was admitted."""
        self._woken = 0
        """How many calls were woken and have not gone on yet: no later call overtakes them."""
        self._error: Exception | None = None

    def acquire_nowait(self, size: int) -> bool:
        """Admit one message if it fits and nothing waits; return whether it was admitted."""
        if self.waiting or self._woken or not self._fits(size):
            return False
        self.messages += 1
        self.bytes += size
        return True

    async def acquire(self, size: int) -> None:
        """Wait until one message is admitted. A cancelled call admits none.

        :raises Exception: that of :meth:`close`
        """
        if self._error is not None:
            raise self._error
        if self.acquire_nowait(size):
            return
        try:
            await self.waiting.wait(lambda _: self._give_up(size), size)
            self._woken -= 1
        finally:
            self._admit()  # those behind may be smaller, or have come meanwhile

    def _give_up(self, size: int) -> None:
        self._woken -= 1
        self.release(size)

    def release(self, size: int) -> None:
        """Remove one message that was admitted."""
        self.messages -= 1
        self.bytes -= size
        if self.waiting:
            self._admit()

    def close(self, error: Exception) -> None:
        """Fail all waiters, and all later calls that would wait."""
        self._error = error
        self.waiting.fail_all(error)

    def _fits(self, size: int) -> bool:
        return not self.messages or (self.messages < self.max_messages and self.bytes + size <= self.max_bytes)

    def _admit(self) -> None:
        while (size := self.waiting.first_size()) is not None and self._fits(size):
            self.messages += 1
            self.bytes += size
            self._woken += 1
            self.waiting.wake_first(None)


# --- checked arguments -----------------------------------------------------------------------------------------------


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
        _bytes_of("properties", name) + _bytes_of("properties", value) + _PROPERTY_OVERHEAD
        for name, value in properties.items()
    )


def _bytes_of(field: str, text: str) -> int:
    """Return the size of a text in UTF-8; refuse one that cannot be encoded before it fails its whole batch."""
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


def _delivery_time(deliver_at_ms: int | None, deliver_after: Delay | None) -> int:
    if deliver_after is None:
        if unit := wrong_unit(deliver_at_ms):
            raise InvalidArgumentError("deliver_at_ms", deliver_at_ms, f"epoch ms{unit}")
        return check_integer("deliver_at_ms", deliver_at_ms, 0, INT64_MAX)
    if deliver_at_ms is not None:
        raise InvalidArgumentError("deliver_after", deliver_after, "None, as deliver_at_ms is given")
    return epoch_ms() + delay_ms(deliver_after, "deliver_after")


def _as_clusters(clusters: object) -> tuple[str, ...]:
    if isinstance(clusters, Sequence) and not isinstance(clusters, str) and all(map(is_text, clusters)):
        return tuple(map(str.__str__, clusters))
    raise InvalidArgumentError("replicate_to", clusters, "a list of names of clusters")
