"""How a connection reaches a broker over the network, with TLS or without, and what is told when it does not."""

from __future__ import annotations

import asyncio
import ssl

from ..._foreign import shown
from ...errors import BrokerError, ConnectionLostError
from ._address import Address
from ._authentication import HasCertificate
from ._options import ClientOptions
from ._tls import make_context


async def dial_network(protocol: asyncio.BaseProtocol, address: Address, options: ClientOptions) -> None:
    """Connect ``protocol`` over TCP.

    :raises OSError: not reached, or the certificate is not trusted
    :raises InvalidArgumentError: a file of the TLS settings cannot be used
    """
    context = None
    if address.is_secure:
        own = options.authentication
        context = await make_context(options.tls, own.certificate if isinstance(own, HasCertificate) else None)
    loop = asyncio.get_running_loop()
    await loop.create_connection(
        lambda: protocol,
        address.host,
        address.port,
        ssl=context,
        server_hostname=address.host if context is not None else None,
    )


def not_reached(address: Address, error: OSError) -> BrokerError:
    """Return what is told when dialling failed.

    A certificate that is not trusted today is not trusted tomorrow: that is no lost connection, which one would try
    again.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return BrokerError(f"{address}: the certificate is not trusted: {shown(error.verify_message or str(error))}")
    if isinstance(error, ssl.SSLError):
        return ConnectionLostError(f"{address}: no connection over TLS: {shown(str(error))}")
    if address.is_secure and isinstance(error, ConnectionResetError):
        return ConnectionLostError(f"{address}: no connection over TLS: the other side ended it; does it speak TLS?")
    return ConnectionLostError(f"{address}: not reached: {str(error) or type(error).__name__}")
