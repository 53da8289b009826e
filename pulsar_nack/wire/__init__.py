"""The native client: the broker's own protocol on asyncio. The way in is :func:`pulsar_nack.connect`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
from ._options import ClientOptions
from ._pool import ClientStatistics
from ._port import WirePort
from ._schema_info import SchemaInfo
from ._subscribe_options import KeyShared, SubscribeOptions
from ._tls import TlsOptions

if TYPE_CHECKING:
    from ._oauth2 import OAuth2Authentication
    from ._producer import Producer, Producing
    from ._producer_options import ProducerOptions

_LATER = {
    "OAuth2Authentication": "_oauth2",
    "Producer": "_producer",
    "ProducerOptions": "_producer_options",
    "Producing": "_producer",
}
"""Names that are imported on first use, by module: consumers do not need them."""

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


def __getattr__(name: str) -> Any:
    """Import a name of ``_LATER`` on its first use."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f".{_LATER[name]}", __name__), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
