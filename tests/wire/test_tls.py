"""TLS over loopback: trust, host names, and client certificates; on the real clock, with our own certificates."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

from pulsar_nack.errors import BrokerError, ConnectionLostError, InvalidArgumentError
from pulsar_nack.wire._connection._address import Address
from pulsar_nack.wire._connection._authentication import TlsAuthentication
from pulsar_nack.wire._connection._connection import Connection
from pulsar_nack.wire._connection._options import ClientOptions, TlsOptions
from pulsar_nack.wire._connection._requests import is_transient
from tests.patience import patience
from tests.wire.conftest import Files
from tests.wire.served import served


def serving(files: Files, *, asks_for_certificate: bool = False) -> ssl.SSLContext:
    """Return the server's context, which may require a client certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files.server)
    if asks_for_certificate:
        context.load_verify_locations(files.authority.certificate)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def connect(
    port: int, host: str = "localhost", *, authentication: Any = None, tls: TlsOptions | None = None, **settings: Any
) -> Connection:
    """Connect with TLS."""
    options = ClientOptions(
        tls=tls or TlsOptions(**settings), authentication=authentication, connect_timeout=patience(5)
    )
    return await Connection.open(Address(host, port, is_secure=True), options)


async def test_a_trusted_broker(files: Files) -> None:
    """A broker with a certificate for its host from a trusted authority is connected to."""
    async with served(tls=serving(files)) as there:
        connection = await connect(there.port, trust_certs_file=files.authority.certificate)
        assert connection.connected.server_version == "fake"
        await connection.aclose()


async def test_an_authority_that_is_not_trusted(files: Files) -> None:
    """A certificate of an untrusted authority is refused, and not retried."""
    async with served(tls=serving(files)) as there:
        for trusted in (files.other_authority.certificate, None):
            with pytest.raises(BrokerError, match="certificate is not trusted") as caught:
                await connect(there.port, trust_certs_file=trusted)
            assert not is_transient(caught.value)
        assert there.broker.calls == []


async def test_another_host(files: Files) -> None:
    """A certificate for another host is refused, unless host names are not checked."""
    async with served(tls=serving(files)) as there:
        with pytest.raises(BrokerError, match=r"127\.0\.0\.1.*not trusted"):
            await connect(there.port, "127.0.0.1", trust_certs_file=files.authority.certificate)
        assert there.broker.calls == []
        connection = await connect(
            there.port, "127.0.0.1", trust_certs_file=files.authority.certificate, validate_hostname=False
        )
        await connection.aclose()


async def test_any_certificate(files: Files) -> None:
    """Clients that allow insecure connections accept any certificate."""
    async with served(tls=serving(files)) as there:
        connection = await connect(there.port, "127.0.0.1", allow_insecure=True)
        await connection.aclose()


async def test_our_certificate_by_authentication(files: Files) -> None:
    """A broker that requires a certificate gets the client's, and CONNECT names the method."""
    async with served(tls=serving(files, asks_for_certificate=True)) as there:
        own = TlsAuthentication(*files.client)
        connection = await connect(there.port, trust_certs_file=files.authority.certificate, authentication=own)
        assert there.names == ["client"]
        assert there.broker.commands("CONNECT")[0].auth_method_name == "tls"
        await connection.aclose()


async def test_our_certificate_by_settings(files: Files) -> None:
    """A certificate in the TLS settings is sent too, with any authentication."""
    async with served(tls=serving(files, asks_for_certificate=True)) as there:
        connection = await connect(
            there.port,
            trust_certs_file=files.authority.certificate,
            certificate_file=files.client.certificate,
            key_file=files.client.key,
        )
        assert there.names == ["client"]
        assert there.broker.commands("CONNECT")[0].auth_method_name == ""
        await connection.aclose()


async def test_no_certificate_and_a_strangers(files: Files) -> None:
    """A broker that requires a certificate refuses clients without one, or with one that it does not trust."""
    async with served(tls=serving(files, asks_for_certificate=True)) as there:
        for own in (None, TlsAuthentication(*files.stranger)):
            with pytest.raises(ConnectionLostError):
                await connect(there.port, trust_certs_file=files.authority.certificate, authentication=own)
        assert there.broker.calls == []


async def test_a_broker_without_tls() -> None:
    """An address that does not speak TLS is a lost connection, with the address."""

    async def answer_in_clear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"\x00\x00\x00\x08 not TLS")
        writer.close()

    async with await asyncio.start_server(answer_in_clear, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionLostError, match=f"localhost:{port}: no connection over TLS"):
            await connect(port)


async def test_a_broker_that_hangs_up() -> None:
    """The error says so if a connection ends instead of a TLS handshake, as at a broker's port without TLS."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionLostError, match=r"no connection over TLS: .*does it speak TLS"):
            await connect(port)


async def test_your_own_context(files: Files) -> None:
    """A given context is used as it is."""
    context = ssl.create_default_context(cafile=files.authority.certificate)
    async with served(tls=serving(files)) as there:
        connection = await connect(there.port, context=context)
        await connection.aclose()


@pytest.mark.parametrize("setting", ["trust_certs_file", "certificate_file"])
async def test_files_that_cannot_be_used(setting: str, tmp_path: Path) -> None:
    """A missing or invalid file is named before anything is dialled."""
    wrong = tmp_path / "wrong.pem"
    for content in (None, "no certificate"):
        if content is not None:
            wrong.write_text(content)
        with pytest.raises(InvalidArgumentError, match=r"wrong\.pem") as caught:
            await connect(1, tls=TlsOptions(**{setting: wrong}))
        assert caught.value.field == setting


async def test_a_key_with_a_password(files: Files, tmp_path: Path) -> None:
    """A key that needs a password is refused, without a question on the terminal."""
    locked = tmp_path / "locked.key"
    process = await asyncio.create_subprocess_exec(
        *("openssl", "ec", "-aes256", "-passout", "pass:secret", "-in", str(files.client.key), "-out", str(locked)),
        stderr=asyncio.subprocess.PIPE,
    )
    await process.communicate()
    assert process.returncode == 0
    with pytest.raises(InvalidArgumentError, match="without password"):
        await connect(1, certificate_file=files.client.certificate, key_file=locked)


def test_settings_are_checked() -> None:
    """A key without its certificate, invalid paths, and unknown settings are refused by name."""
    with pytest.raises(ValueError, match="key_file"):
        TlsOptions(key_file="own.key")
    with pytest.raises(ValueError, match="trust_certs_file"):
        TlsOptions(trust_certs_file=3)
    with pytest.raises(ValueError, match="verify"):
        TlsOptions(verify=False)
