"""The settings of a client's connections."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    SkipValidation,
    ValidationInfo,
    field_validator,
    model_validator,
)

from ...backoff import Exponential
from ...config import DelayField, _Settings
from ...errors import InvalidArgumentError
from .._protocol._entries import DEFAULT_MAX_BATCH_MESSAGES, DEFAULT_MAX_METADATA_BYTES
from .._protocol._frames import DEFAULT_MAX_COMMAND_BYTES, DEFAULT_MAX_TOPICS
from ._authentication import Authentication, NoAuthentication
from ._tls import TlsOptions


def _as_authentication(value: Any, info: ValidationInfo) -> Authentication:
    if value is None:
        return NoAuthentication()
    if isinstance(value, type) or not isinstance(value, Authentication):
        field = info.field_name or "authentication"
        kind = value if isinstance(value, type) else type(value)  # the value may be a secret
        raise InvalidArgumentError(field, kind, "an Authentication, such as TokenAuthentication(token)")
    return value


class ClientOptions(_Settings):
    """How brokers are reached, and how long is waited for what.

    Times are seconds as a number, or a timedelta.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    authentication: Annotated[SkipValidation[Authentication], BeforeValidator(_as_authentication)] = Field(
        default_factory=NoAuthentication
    )
    """Who we are to the brokers."""
    tls: TlsOptions = Field(default_factory=TlsOptions)
    """For addresses that begin with ``pulsar+ssl://``."""
    connect_timeout: DelayField = timedelta(seconds=10)
    """From the first byte to a broker until it has let us in."""
    request_timeout: DelayField = timedelta(seconds=30)
    """How long the answer to a command may take."""
    keep_alive: DelayField = timedelta(seconds=30)
    """How often the broker is asked whether it is there; it counts as gone if it is silent until the next time."""
    backoff_minimum: DelayField = timedelta(seconds=0.1)
    """Before the first attempt to connect again, with jitter; it doubles with each."""
    backoff_maximum: DelayField = timedelta(seconds=30)
    """Most between two attempts."""
    max_redirects: int = Field(default=20, ge=0, le=1_000)
    """How often brokers may send a lookup on to one another."""
    max_message_bytes: int = Field(default=5 << 20, ge=1 << 10, le=512 << 20)
    """Largest message, where the broker does not tell a limit of its own."""
    max_frame_bytes: int = Field(default=128 << 20, ge=1 << 10, le=1 << 30)
    """Largest message whatever the broker tells; a larger one breaks the connection before memory is taken for it."""
    max_command_bytes: int = Field(default=DEFAULT_MAX_COMMAND_BYTES, ge=16 << 10, le=512 << 20)
    """Largest command (a frame without its message); a larger one breaks the connection before it is read. Lists of
    topics are limited by ``max_topics`` instead."""
    max_metadata_bytes: int = Field(default=DEFAULT_MAX_METADATA_BYTES, ge=1 << 10, le=512 << 20)
    """Most bytes for keys and properties of a message; a message with more is unreadable."""
    max_batch_messages: int = Field(default=DEFAULT_MAX_BATCH_MESSAGES, ge=1, le=100_000_000)
    """Most messages in a batch; a batch with more is unreadable."""
    max_partitions: int = Field(default=10_000, ge=1, le=1_000_000)
    """Most partitions of a topic; a topic with more is refused, for consumers and producers."""
    max_topics: int = Field(default=DEFAULT_MAX_TOPICS, ge=1, le=10_000_000)
    """Most topics of a namespace, for patterns and ``client.topics``."""
    write_buffer_bytes: int = Field(default=8 << 20, ge=1 << 10)
    """Producers wait while so much is on its way to one broker."""
    max_unsent_bytes: int = Field(default=256 << 20, ge=1 << 20)
    """A broker that lets more than this pile up counts as gone."""
    max_prefetched_bytes: int | None = Field(default=64 << 20, ge=0)
    """Most memory for payloads that all consumers have fetched ahead; None or 0: bounded by their numbers only. One
    message for each topic or partition is fetched whatever there is; see ``receiver_queue_size`` too."""
    listener_name: str | None = None
    """The listener of brokers that advertise several."""

    if TYPE_CHECKING:  # times as numbers are good too, which a type checker cannot derive

        def __init__(self, **settings: Any) -> None: ...

    @field_validator("connect_timeout", "request_timeout", "keep_alive", "backoff_minimum", mode="after")
    @classmethod
    def _not_zero(cls, value: timedelta, info: ValidationInfo) -> timedelta:
        if not value:
            raise InvalidArgumentError(info.field_name or "value", value, "more than 0")
        return value

    @model_validator(mode="after")
    def _in_order(self) -> ClientOptions:
        if self.backoff_maximum < self.backoff_minimum:
            least = f"at least backoff_minimum ({self.backoff_minimum})"
            raise InvalidArgumentError("backoff_maximum", self.backoff_maximum, least)
        return self

    def backoff(self) -> Exponential:
        """Return how long to wait before the n-th attempt to reach a broker, from 0, in seconds."""
        return Exponential(self.backoff_minimum, self.backoff_maximum)
