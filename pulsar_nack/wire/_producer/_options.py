"""The options of a producer, and the settings that users give."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

from pydantic import Field, ValidationInfo, field_validator, model_validator

from ..._check import check_strings
from ..._delays import Delay, delay_ms
from ...config import DelayField, _Settings
from ...errors import InvalidArgumentError
from .._connection._options import SchemaInfo
from .._protocol import _pulsar_pb2 as pb
from ._routing import Hashing, Router

Compression = Literal["none", "lz4", "zlib", "zstd", "snappy"]
AccessMode = Literal["shared", "exclusive", "wait_for_exclusive", "exclusive_with_fencing"]

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
        check_strings("properties", self.properties)
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
