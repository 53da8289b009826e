"""The native client: the broker's own protocol on asyncio. The way in is :func:`pulsar_nack.connect`."""

from importlib import import_module

from ..errors import MissingExtraError

try:  # both are looked for here, so that their absence is told once, and well
    import_module("google.protobuf")
    import_module("google_crc32c")
except ImportError as error:
    raise MissingExtraError("the native client", "protobuf and google-crc32c", "wire") from error

from ._authentication import (
    Authentication,
    BasicAuthentication,
    NoAuthentication,
    TlsAuthentication,
    TokenAuthentication,
)
from ._client import Client
from ._oauth2 import OAuth2Authentication
from ._options import ClientOptions
from ._pool import ClientStatistics
from ._port import WirePort
from ._producer import Producer, Producing
from ._producer_options import ProducerOptions
from ._schema_info import SchemaInfo
from ._subscribe_options import KeyShared, SubscribeOptions
from ._tls import TlsOptions

__all__ = [
    "Authentication",
    "BasicAuthentication",
    "Client",
    "ClientOptions",
    "ClientStatistics",
    "KeyShared",
    "NoAuthentication",
    "OAuth2Authentication",
    "Producer",
    "ProducerOptions",
    "Producing",
    "SchemaInfo",
    "SubscribeOptions",
    "TlsAuthentication",
    "TlsOptions",
    "TokenAuthentication",
    "WirePort",
]
