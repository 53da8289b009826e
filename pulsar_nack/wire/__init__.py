"""The native client: Pulsar's binary protocol on asyncio. Get a client from :func:`pulsar_nack.connect`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..consumer import KeyShared
from ..errors import MissingExtraError

try:  # both are checked here, for one clear error
    import_module("google.protobuf")
    import_module("google_crc32c")
except ImportError as error:
    raise MissingExtraError("the native client", "protobuf and google-crc32c", "wire") from error

from ._client import Client
from ._connection._authentication import (
    Authentication,
    BasicAuthentication,
    NoAuthentication,
    TlsAuthentication,
    TokenAuthentication,
)
from ._connection._options import ClientOptions, SchemaInfo, TlsOptions
from ._connection._pool import ClientStatistics
from ._consumer._port import WirePort
from ._consumer._subscribe_options import SubscribeOptions

if TYPE_CHECKING:
    from ._connection._oauth2 import OAuth2Authentication
    from ._producer._options import ProducerOptions
    from ._producer._producer import Producer, Producing
    from ._reader import Reader, Reading
    from ._table_view import TableChange, TableChanges, TableView, Viewing

_LATER = {
    "OAuth2Authentication": "_connection._oauth2",
    "Producer": "_producer._producer",
    "ProducerOptions": "_producer._options",
    "Producing": "_producer._producer",
    "Reader": "_reader",
    "Reading": "_reader",
    "TableChange": "_table_view",
    "TableChanges": "_table_view",
    "TableView": "_table_view",
    "Viewing": "_table_view",
}
"""The modules of names that are imported on first use, because consumers do not need them."""

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
    "Reader",
    "Reading",
    "SchemaInfo",
    "SubscribeOptions",
    "TableChange",
    "TableChanges",
    "TableView",
    "TlsAuthentication",
    "TlsOptions",
    "TokenAuthentication",
    "Viewing",
    "WirePort",
]


if not TYPE_CHECKING:  # a type checker would take any name from it, misspelled ones too

    def __getattr__(name: str) -> Any:
        """Import a name of ``_LATER`` on its first use."""
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f".{_LATER[name]}", __name__), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
