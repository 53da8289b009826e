"""Opening a connection: TCP or TLS, then CONNECT and CONNECTED; also later authentication challenges."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ..._foreign import shown
from ..._version import __version__
from ...errors import BrokerError, ConnectionLostError, InvalidArgumentError, ProtocolError
from .._protocol import _pulsar_pb2 as pb
from .._protocol._frames import encode_command
from ._address import Address
from ._authentication import Authentication, TlsAuthentication
from ._options import ClientOptions, TlsOptions

_PROTOCOL_VERSION: Final = 21
_CLIENT_VERSION: Final = f"pulsar-nack-{__version__}"
_MAX_CHALLENGES: Final = 10
_MIN_SECRET: Final = 4
"""A shorter secret is not replaced in texts, because it may be part of any word."""


async def dial_network(protocol: asyncio.BaseProtocol, address: Address, options: ClientOptions) -> None:
    """Connect ``protocol`` over TCP, with TLS if the address requires it.

    :raises OSError: the broker cannot be reached, or its certificate is not trusted
    :raises InvalidArgumentError: a file of the TLS settings cannot be used
    """
    context = None
    if address.is_secure:
        own = options.authentication
        context = await make_context(options.tls, own.certificate if isinstance(own, TlsAuthentication) else None)
    loop = asyncio.get_running_loop()
    await loop.create_connection(
        lambda: protocol,
        address.host,
        address.port,
        ssl=context,
        server_hostname=address.host if context is not None else None,
    )


def dial_error(address: Address, error: OSError) -> BrokerError:
    """Return the error to raise when dialling failed.

    An untrusted certificate stays untrusted, so it is no ConnectionLostError, which callers would retry.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return BrokerError(f"{address}: the certificate is not trusted: {shown(error.verify_message or str(error))}")
    if isinstance(error, ssl.SSLError):
        return ConnectionLostError(f"{address}: no connection over TLS: {shown(str(error))}")
    if address.is_secure and isinstance(error, ConnectionResetError):
        return ConnectionLostError(f"{address}: no connection over TLS: the other side ended it; does it speak TLS?")
    return ConnectionLostError(f"{address}: not reached: {str(error) or type(error).__name__}")


class Handshake:
    """The CONNECT/CONNECTED handshake of one connection, and the responses to authentication challenges.

    ``is_done``: the broker has accepted the connection; ``connected`` is its response.

    :param send: writes bytes to the broker
    :param fail: closes the connection with an error
    """

    def __init__(
        self,
        authentication: Authentication,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[bytes], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.connected = pb.CommandConnected()
        self.is_done = False
        self._authentication = authentication
        self._send = send
        self._fail = fail
        self._done: asyncio.Future[None] = loop.create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._secrets: tuple[str, ...] = ()

    async def run(self, proxy_to: str | None) -> None:
        """Send CONNECT and wait for CONNECTED.

        :param proxy_to: ``host:port`` of the broker behind a proxy
        :raises BrokerError: the connection was closed with it
        """
        data = await self._auth_data(None)
        self._send(encode_command(_connect(self._authentication.method, data, proxy_to)))
        await self._done

    def on_connected(self, command: pb.CommandConnected) -> None:
        """Handle CONNECTED.

        :raises ProtocolError: there was one before
        """
        if self._done.done():
            raise ProtocolError("a command CONNECTED on a connection that is open")
        self.connected.CopyFrom(command)
        self.is_done = True
        self._done.set_result(None)

    def on_challenge(self, challenge: pb.CommandAuthChallenge) -> None:
        """Answer an authentication challenge, during the handshake or later.

        :raises ProtocolError: too many challenges are unanswered
        """
        if len(self._tasks) >= _MAX_CHALLENGES:
            raise ProtocolError(f"a command AUTH_CHALLENGE, while {len(self._tasks)} others are not answered")
        task = asyncio.create_task(self._answer(challenge), name="pulsar_nack.wire answer to a challenge")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, challenge: pb.CommandAuthChallenge) -> None:
        try:
            data = await self._auth_data(challenge.challenge.auth_data)
            method = challenge.challenge.auth_method_name or self._authentication.method
            self._send(encode_command(_auth_response(method, data)))
        except Exception as error:  # noqa: BLE001 - the connection is closed with it
            self._fail(error)

    async def _auth_data(self, challenge: bytes | None) -> bytes:
        data = await self._authentication.data(challenge)
        text = data.decode(errors="replace")
        self._secrets = tuple(each for each in (text, text.partition(":")[2]) if len(each) >= _MIN_SECRET)
        return data

    def without_secrets(self, text: str) -> str:
        """Return a text of the broker with the last credentials that it got replaced."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def on_connection_lost(self, error: Exception) -> None:
        """Fail the handshake if it is not done, and cancel the answers to challenges."""
        if not self._done.done():
            self._done.set_exception(error)
            self._done.exception()  # nothing waits for it if dialling failed
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()

    async def wait_closed(self) -> None:
        """Wait for the tasks that :meth:`on_connection_lost` has cancelled."""
        tasks = self._tasks - {asyncio.current_task()}
        if tasks:
            await asyncio.wait(tasks)


def _connect(method: str, data: bytes, proxy_to: str | None) -> pb.BaseCommand:
    has_data = method != "none"
    body = pb.CommandConnect(
        client_version=_CLIENT_VERSION,
        protocol_version=_PROTOCOL_VERSION,
        auth_method_name=method if has_data else None,
        auth_data=data if has_data else None,
        proxy_to_broker_url=proxy_to,
        feature_flags=pb.FeatureFlags(
            supports_auth_refresh=True, supports_broker_entry_metadata=True, supports_partial_producer=True
        ),
    )
    return pb.BaseCommand(type=pb.BaseCommand.CONNECT, connect=body)


def _auth_response(method: str, data: bytes) -> pb.BaseCommand:
    body = pb.CommandAuthResponse(
        client_version=_CLIENT_VERSION,
        protocol_version=_PROTOCOL_VERSION,
        response=pb.AuthData(auth_method_name=method, auth_data=data),
    )
    return pb.BaseCommand(type=pb.BaseCommand.AUTH_RESPONSE, authResponse=body)


# --- TLS -------------------------------------------------------------------------------------------------------------


async def make_context(options: TlsOptions, certificate: tuple[Path, Path | None] | None = None) -> ssl.SSLContext:
    """Return a context for one connection; the files are read each time, so renewed certificates are used.

    :param certificate: paths of a certificate and key from the authentication; those of the settings take precedence
    :raises InvalidArgumentError: a file is missing or invalid
    """
    if options.context is not None:
        return options.context
    return await asyncio.get_running_loop().run_in_executor(None, _make, options, certificate)


def _make(options: TlsOptions, certificate: tuple[Path, Path | None] | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if options.allow_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.check_hostname = options.validate_hostname
        _trust(context, options.trust_certs_file)
    if options.certificate_file is not None:
        certificate = options.certificate_file, options.key_file
    if certificate is not None:
        _load_own(context, *certificate)
    return context


def _trust(context: ssl.SSLContext, file: Path | None) -> None:
    if file is None:
        context.load_default_certs()
        return
    try:
        context.load_verify_locations(file)
    except OSError as error:  # an SSLError is one
        raise InvalidArgumentError("trust_certs_file", str(file), f"certificates in PEM form ({error})") from error


def _load_own(context: ssl.SSLContext, file: Path, key: Path | None) -> None:
    try:
        context.load_cert_chain(file, key, password=_no_password)
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(
            "certificate_file", str(file), f"a certificate and its key in PEM form, key without password ({error})"
        ) from error


def _no_password() -> str:
    """Keep OpenSSL from asking on the terminal."""
    return ""
