"""The options of a producer, the settings that users give, and the partition of a message, which they choose.

Hashes of keys are those of the Java client, so equal keys get equal partitions.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

from pydantic import Field, ValidationInfo, field_validator, model_validator

from ..._delays import Delay, delay_ms
from ...config import DelayField, _Settings
from ...errors import InvalidArgumentError
from .._connection._options import SchemaInfo
from .._protocol import _pulsar_pb2 as pb

Compression = Literal["none", "lz4", "zlib", "zstd", "snappy"]
AccessMode = Literal["shared", "exclusive", "wait_for_exclusive", "exclusive_with_fencing"]
Hashing = Literal["java_string", "murmur3"]
Router = Callable[[str | None, int], int]
"""Maps a message's key, or None, and the number of partitions to a partition, from 0."""

_COMPRESSIONS: Final[dict[str, pb.CompressionType]] = {
    "none": pb.NONE,
    "lz4": pb.LZ4,
    "zlib": pb.ZLIB,
    "zstd": pb.ZSTD,
    "snappy": pb.SNAPPY,
}
_ACCESS_MODES: Final[dict[str, pb.ProducerAccessMode]] = {
    "shared": pb.Shared,
    "exclusive": pb.Exclusive,
    "wait_for_exclusive": pb.WaitForExclusive,
    "exclusive_with_fencing": pb.ExclusiveWithFencing,
}
_INT31: Final = 0x7FFF_FFFF
_INT32: Final = 0xFFFF_FFFF
_CACHED: Final = 4_096


class ProducerOptions(_Settings):
    """How a producer sends messages. Times are seconds as a number, or a timedelta."""

    name: str | None = Field(default=None, min_length=1)
    """The producer's name, unique on a topic; None: the broker chooses one. Deduplication uses it."""
    compression: Compression = "none"
    """All but zlib need the extra ``compression``."""
    batching: bool = False
    """Whether to send messages within ``batch_delay`` of each other as one entry."""
    batch_by_key: bool = False
    """Whether each batch has messages of one key only, as Key_Shared subscriptions need; batches get smaller."""
    batch_delay: DelayField = timedelta(milliseconds=1)
    """How long the first message of a batch waits for others."""
    batch_max_messages: int = Field(default=1_000, ge=1, le=1_000_000)
    """Most messages of a batch."""
    batch_max_bytes: int = Field(default=128 << 10, ge=1, le=512 << 20)
    """Most bytes of a batch before compression, exceeded only by a single larger message."""
    chunking: bool = False
    """Whether to send a message that is too large for the broker in chunks; not with batching."""
    chunk_max_bytes: int | None = Field(default=None, ge=1 << 10)
    """Most bytes of a chunk; None: the broker's limit."""
    max_pending_bytes: int = Field(default=64 << 20, ge=1)
    """Sending waits while this many bytes are unconfirmed."""
    max_pending_messages: int = Field(default=50_000, ge=1)
    """Sending waits while this many messages are unconfirmed."""
    send_timeout: DelayField | None = timedelta(seconds=30)
    """A message that is unconfirmed for longer fails, though it may have been stored; None: no limit."""
    routing: Literal["round_robin", "single"] | Callable[[str | None, int], int] = "round_robin"
    """How to choose the partition of a message without a key; or a function of key and number of partitions for all."""
    hashing: Hashing = "java_string"
    """How to map keys to partitions; all clients that send to a topic must use the same hash."""
    access_mode: AccessMode = "shared"
    """Whether other producers are allowed on the topic. Opening with "wait_for_exclusive" waits for its turn, however
    long that takes."""
    properties: dict[str, str] = Field(default_factory=dict)
    """Properties of the producer, as the broker shows them."""
    initial_sequence_id: int | None = Field(default=None, ge=0, le=2**63 - 1)
    """The sequence id of the first message; None: the next one after the broker's last of this name."""
    initial_subscription: str | None = Field(default=None, min_length=1)
    """A subscription to create together with a new topic."""
    schema_info: SchemaInfo | None = None
    """The schema that the producer declares for its messages, which you encode; None: no schema."""

    if TYPE_CHECKING:  # numbers of seconds are accepted too, which a type checker cannot derive

        def __init__(self, **settings: Any) -> None: ...

    @field_validator("send_timeout", mode="before")
    @classmethod
    def _check_timeout(cls, value: Any, info: ValidationInfo) -> Any:
        field = info.field_name or "send_timeout"
        if value is None:
            return None
        if not delay_ms(value, field):
            raise InvalidArgumentError(field, value, "more than 0, or None")
        return value

    @model_validator(mode="after")
    def _check_combination(self) -> ProducerOptions:
        if self.batch_by_key and not self.batching:
            raise InvalidArgumentError("batch_by_key", self.batch_by_key, "False, as batching is off")
        if self.chunking and self.batching:
            raise InvalidArgumentError("chunking", self.chunking, "False, as batching is on")
        return self

    @property
    def compression_type(self) -> pb.CompressionType:
        """Return the codec's number in the protocol."""
        return _COMPRESSIONS[self.compression]

    @property
    def access_mode_type(self) -> pb.ProducerAccessMode:
        """Return the access mode's number in the protocol."""
        return _ACCESS_MODES[self.access_mode]


class ProducerSettings(TypedDict, total=False):
    """The fields of :class:`~pulsar_nack.wire.ProducerOptions`."""

    name: str | None
    compression: Compression
    batching: bool
    batch_by_key: bool
    batch_delay: Delay
    batch_max_messages: int
    batch_max_bytes: int
    chunking: bool
    chunk_max_bytes: int | None
    max_pending_bytes: int
    max_pending_messages: int
    send_timeout: Delay | None
    routing: Literal["round_robin", "single"] | Router
    hashing: Hashing
    access_mode: AccessMode
    properties: Mapping[str, str]
    initial_sequence_id: int | None
    initial_subscription: str | None
    schema_info: SchemaInfo | None


# --- partitions -------------------------------------------------------------------------------------------------------


class PartitionRouter:
    """Chooses a partition: by key if the message has one, otherwise by ``routing``.

    :param routing: ``"round_robin"``; ``"single"``, one random partition; or a function that decides for all messages
    :param hashing: of keys
    :param choose: draws a random partition from a number of them
    """

    def __init__(
        self,
        routing: Literal["round_robin", "single"] | Router,
        hashing: Hashing,
        *,
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        self._router = routing if callable(routing) else None
        self._is_single = routing == "single"
        self._hash = HASHES[hashing]
        self._choose = choose
        self._current = -1

    def partition(
        self, key: str | None, partitions: int, *, is_filling: Callable[[int], bool] = lambda _: False
    ) -> int:
        """Return the partition for a message.

        :param is_filling: whether a partition has an open batch; round robin then stays there
        :raises InvalidArgumentError: the user's function did not return a partition
        """
        if self._router is not None:
            return self._routed(self._router, key, partitions)
        if key is not None:
            return self._hash(key) % partitions
        if self._current < 0:
            self._current = self._choose(partitions)
        elif not self._is_single and not is_filling(self._current):
            self._current = (self._current + 1) % partitions
        return self._current

    @staticmethod
    def _routed(router: Router, key: str | None, partitions: int) -> int:
        found = router(key, partitions)
        if type(found) is not int or not 0 <= found < partitions:
            raise InvalidArgumentError("routing", found, f"a function that returns a number from 0 to {partitions - 1}")
        return found


@lru_cache(_CACHED)
def java_string_hash(key: str) -> int:
    """Return ``String.hashCode`` of Java without its sign, 0 to 2**31 - 1; the Java client's default."""
    found = 0
    data = key.encode("utf-16-le", "surrogatepass")
    for (unit,) in struct.iter_unpack("<H", data):
        found = (31 * found + unit) & _INT32
    return found & _INT31


@lru_cache(_CACHED)
def murmur3_hash(key: str) -> int:
    """Return the 32-bit MurmurHash3 of the key's UTF-8, seed 0, without its sign."""
    data = key.encode("utf-8", "surrogatepass")
    found = 0
    blocks = len(data) // 4
    for (block,) in struct.iter_unpack("<I", data[: 4 * blocks]):
        found = _rotated(found ^ _scrambled(block), 13) * 5 + 0xE6546B64 & _INT32
    tail = data[4 * blocks :]
    if tail:
        found ^= _scrambled(int.from_bytes(tail, "little"))
    return _finished(found ^ len(data)) & _INT31


def _scrambled(block: int) -> int:
    return _rotated(block * 0xCC9E2D51 & _INT32, 15) * 0x1B873593 & _INT32


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _INT32


def _finished(value: int) -> int:
    value = (value ^ value >> 16) * 0x85EBCA6B & _INT32
    value = (value ^ value >> 13) * 0xC2B2AE35 & _INT32
    return value ^ value >> 16


HASHES: Final[dict[str, Callable[[str], int]]] = {"java_string": java_string_hash, "murmur3": murmur3_hash}
