"""The settings of a client's connections, and the schemas of topics."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    SkipValidation,
    ValidationInfo,
    field_validator,
    model_validator,
)

from ..._check import check_strings, check_text
from ...backoff import Exponential
from ...config import DelayField, _Settings
from ...errors import InvalidArgumentError
from .._protocol import _pulsar_pb2 as pb
from .._protocol._batches import DEFAULT_MAX_BATCH_MESSAGES, DEFAULT_MAX_METADATA_BYTES
from .._protocol._frames import DEFAULT_MAX_COMMAND_BYTES, DEFAULT_MAX_TOPICS
from ._authentication import Authentication, NoAuthentication, pem_file

_SCHEMA_TYPES: Final = {"string": 1, "json": 2, "protobuf": 3, "avro": 4, "key_value": 15, "protobuf_native": 20}
_SCHEMA_NAMES: Final = {number: name for name, number in _SCHEMA_TYPES.items()}


def _as_authentication(value: Any, info: ValidationInfo) -> Authentication:
    if value is None:
        return NoAuthentication()
    if isinstance(value, type) or not isinstance(value, Authentication):
        field = info.field_name or "authentication"
        kind = value if isinstance(value, type) else type(value)  # the value may be a secret
        raise InvalidArgumentError(field, kind, "an Authentication, such as TokenAuthentication(token)")
    return value


def _as_file(value: Any, info: ValidationInfo) -> Path | None:
    return None if value is None else pem_file(info.field_name or "file", value)


FileField = Annotated[Path | None, BeforeValidator(_as_file)]


class TlsOptions(_Settings):
    """How to verify brokers at ``pulsar+ssl://``, and the client's certificate.

    By default the system's trusted certificates are used, and host names are checked.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    trust_certs_file: FileField = None
    """Certificates of authorities to trust instead of the system's."""
    certificate_file: FileField = None
    """The client's certificate, with its chain."""
    key_file: FileField = None
    """The key of the client's certificate; None: it is in the same file."""
    validate_hostname: bool = True
    """Whether the broker's certificate must match its host name."""
    allow_insecure: bool = False
    """Whether to accept any certificate. Then an attacker on the network can read and change everything."""
    context: InstanceOf[ssl.SSLContext] | None = None
    """An SSL context to use instead of all other settings."""

    if TYPE_CHECKING:  # paths as text are accepted too, which a type checker cannot derive

        def __init__(self, **settings: Any) -> None: ...

    @model_validator(mode="after")
    def _complete(self) -> TlsOptions:
        if self.key_file is not None and self.certificate_file is None:
            raise InvalidArgumentError("key_file", str(self.key_file), "a certificate_file with it")
        return self


class ClientOptions(_Settings):
    """How to reach brokers, with which timeouts and limits.

    Times are seconds as a number, or a timedelta.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    authentication: Annotated[SkipValidation[Authentication], BeforeValidator(_as_authentication)] = Field(
        default_factory=NoAuthentication
    )
    """How the client authenticates to brokers."""
    tls: TlsOptions = Field(default_factory=TlsOptions)
    """For addresses that begin with ``pulsar+ssl://``."""
    connect_timeout: DelayField = timedelta(seconds=10)
    """From dialling a broker until it has accepted the connection."""
    request_timeout: DelayField = timedelta(seconds=30)
    """How long the response to a command may take."""
    keep_alive: DelayField = timedelta(seconds=30)
    """Interval of pings; a broker that is silent from one ping to the next is treated as lost."""
    backoff_minimum: DelayField = timedelta(seconds=0.1)
    """Pause before the first attempt to reconnect, with jitter; it doubles with each attempt."""
    backoff_maximum: DelayField = timedelta(seconds=30)
    """Longest pause between two attempts."""
    max_redirects: int = Field(default=20, ge=0, le=1_000)
    """How often brokers may redirect a lookup."""
    max_message_bytes: int = Field(default=5 << 20, ge=1 << 10, le=512 << 20)
    """Largest message, if the broker does not announce a limit."""
    max_frame_bytes: int = Field(default=128 << 20, ge=1 << 10, le=1 << 30)
    """Largest message whatever limit the broker announces; a larger one closes the connection before it is read."""
    max_command_bytes: int = Field(default=DEFAULT_MAX_COMMAND_BYTES, ge=16 << 10, le=512 << 20)
    """Largest command (a frame without its message); a larger one closes the connection before it is read. Lists of
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
    """Producers wait while more bytes than this are unsent to one broker."""
    max_unsent_bytes: int = Field(default=256 << 20, ge=1 << 20)
    """The connection is closed if more bytes than this are unsent."""
    max_prefetched_bytes: int | None = Field(default=64 << 20, ge=0)
    """Most memory for prefetched payloads of all consumers; None or 0: only their number is limited. One message for
    each topic or partition is always fetched; see ``receiver_queue_size`` too."""
    listener_name: str | None = None
    """Which listener to use, if brokers advertise several."""

    if TYPE_CHECKING:  # numbers of seconds are accepted too, which a type checker cannot derive

        def __init__(self, **settings: Any) -> None: ...

    @field_validator("connect_timeout", "request_timeout", "keep_alive", "backoff_minimum", mode="after")
    @classmethod
    def _not_zero(cls, value: timedelta, info: ValidationInfo) -> timedelta:
        if not value:
            raise InvalidArgumentError(info.field_name or "value", value, "more than 0")
        return value

    @field_validator("listener_name")
    @classmethod
    def _encodable(cls, value: str | None) -> str | None:
        check_text("listener_name", value or "")
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


@dataclass(frozen=True, slots=True)
class SchemaInfo:
    """One version of a topic's schema, as the broker stores it; pulsar-nack does not encode or decode with it.

    :param type: ``"avro"``, ``"json"``, ``"protobuf"``, ``"protobuf_native"``, ``"string"``, ``"key_value"``, or the
        protocol's number of another type
    :param data: the definition, for instance the JSON of an Avro schema
    :param name: as the broker shows it
    :param properties: of the schema
    :raises InvalidArgumentError: names the argument
    """

    type: str | int
    data: bytes = b""
    name: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        is_number = type(self.type) is int and abs(self.type) < 1 << 31
        if not is_number and not (isinstance(self.type, str) and self.type in _SCHEMA_TYPES):
            raise InvalidArgumentError(
                "type", self.type, f"one of {', '.join(_SCHEMA_TYPES)}, or a number of the protocol"
            )
        if not isinstance(self.data, bytes):
            raise InvalidArgumentError("data", self.data, "bytes")
        check_text("name", self.name)
        check_strings("properties", self.properties)

    def to_protobuf(self) -> pb.Schema:
        """Return the schema in the protocol's form."""
        return pb.Schema(
            name=self.name,
            schema_data=self.data,
            type=self.type if isinstance(self.type, int) else _SCHEMA_TYPES[self.type],
            properties=[pb.KeyValue(key=key, value=value) for key, value in self.properties.items()],
        )

    @classmethod
    def of(cls, schema: pb.Schema) -> Self:
        """Return the schema that a broker sent."""
        properties = {pair.key: pair.value for pair in schema.properties}
        return cls(_SCHEMA_NAMES.get(schema.type, schema.type), schema.schema_data, schema.name, properties)
