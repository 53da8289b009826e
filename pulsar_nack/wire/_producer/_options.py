"""The settings of a producer."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from ..._delays import delay_ms
from ...config import DelayField, _Settings
from ...errors import InvalidArgumentError
from .. import _pulsar_pb2 as pb
from .._protocol._schema_info import SchemaInfo
from ._routing import Hashing

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
    """How messages are sent. Times are seconds as a number, or a timedelta."""

    name: str | None = Field(default=None, min_length=1)
    """The producer's name, one at a time on a topic; None: the broker makes one up. Deduplication goes by it."""
    compression: Compression = "none"
    """All but zlib need the extra ``compression``."""
    batching: bool = False
    """Whether several messages go as one entry, those that are sent within ``batch_delay``."""
    batch_by_key: bool = False
    """Whether a batch has messages of one key only, which Key_Shared subscriptions need; makes batches smaller."""
    batch_delay: DelayField = timedelta(milliseconds=1)
    """How long the first message of a batch waits for others."""
    batch_max_messages: int = Field(default=1_000, ge=1, le=1_000_000)
    """Most messages of a batch."""
    batch_max_bytes: int = Field(default=128 << 10, ge=1, le=512 << 20)
    """Most bytes of a batch before compression, more only if a single message is larger."""
    chunking: bool = False
    """Whether a message that is too large for the broker goes in parts; without batching only."""
    chunk_max_bytes: int | None = Field(default=None, ge=1 << 10)
    """Most bytes of a part; None: what the broker takes."""
    max_pending_bytes: int = Field(default=64 << 20, ge=1)
    """Sending waits while messages of so many bytes are unconfirmed."""
    max_pending_messages: int = Field(default=50_000, ge=1)
    """Sending waits while so many messages are unconfirmed."""
    send_timeout: DelayField | None = timedelta(seconds=30)
    """A message that is not confirmed by then has failed, though it may have been stored; None: there is no limit."""
    routing: Literal["round_robin", "single"] | Callable[[str | None, int], int] = "round_robin"
    """Which partition takes a message without a key; or a function of key and number of partitions for all messages."""
    hashing: Hashing = "java_string"
    """How a key's partition is found; every client that sends to a topic has to do it in the same way."""
    access_mode: AccessMode = "shared"
    """Whether there may be other producers on the topic."""
    properties: dict[str, str] = Field(default_factory=dict)
    """Of the producer, as the broker shows them."""
    initial_sequence_id: int | None = Field(default=None, ge=0, le=2**63 - 1)
    """The sequence id of the first message; None: after what the broker last had from a producer of this name."""
    initial_subscription: str | None = Field(default=None, min_length=1)
    """A subscription that is made with the topic if that is not there yet."""
    schema_info: SchemaInfo | None = None
    """The schema that the producer declares for its messages; you encode them. None: no schema."""

    if TYPE_CHECKING:  # times as numbers are good too, which a type checker cannot derive

        def __init__(self, **settings: Any) -> None: ...

    @field_validator("send_timeout", mode="before")
    @classmethod
    def _a_timeout(cls, value: Any, info: ValidationInfo) -> Any:
        field = info.field_name or "send_timeout"
        if value is None:
            return None
        if not delay_ms(value, field):
            raise InvalidArgumentError(field, value, "more than 0, or None")
        return value

    @model_validator(mode="after")
    def _together(self) -> ProducerOptions:
        if self.batch_by_key and not self.batching:
            raise InvalidArgumentError("batch_by_key", self.batch_by_key, "False, as batching is off")
        if self.chunking and self.batching:
            raise InvalidArgumentError("chunking", self.chunking, "False, as batching is on")
        return self

    @property
    def compression_type(self) -> pb.CompressionType:
        """Return the codec as the protocol has it."""
        return _COMPRESSIONS[self.compression]

    @property
    def access_mode_type(self) -> pb.ProducerAccessMode:
        """Return the access mode as the protocol has it."""
        return _ACCESS_MODES[self.access_mode]
