"""Connections to a real broker: lookups, TLS, tokens, and a broker that asks again when a token expires."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from pulsar_nack.errors import BrokerError, BrokerRefusedError, ConnectionLostError
from pulsar_nack.testing._embedded_broker import free_port
from pulsar_nack.wire._connection._authentication import TlsAuthentication, TokenAuthentication
from pulsar_nack.wire._connection._context import ClientContext
from pulsar_nack.wire._connection._options import ClientOptions, TlsOptions
from pulsar_nack.wire._connection._pool import Pool
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from tests.broker._assembly import missing_tools
from tests.broker._settings import HOST
from tests.broker.standalone import Standalone
from tests.patience import patience
from tests.wire import certificates

PROVIDERS = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
SECRET = b"a secret of thirty-two bytes ...."


async def test_lookups(service_url: str, topic: str, partitioned_topic: Callable[[int], str]) -> None:
    """Lookups find a topic's broker, its number of partitions, and the topics of a namespace."""
    partitioned = partitioned_topic(3)
    pool = Pool(service_url)
    lookup = ClientContext(pool)
    try:
        connection = await lookup.broker(topic)
        assert connection.is_open
        assert connection.connected.protocol_version >= 19
        assert connection.max_message_bytes == 5 << 20
        assert connection.connected.server_version.startswith("Pulsar Server")
        assert (await lookup.partitions(topic), await lookup.partitions(partitioned)) == (0, 3)
        for partition in range(3):
            assert await lookup.broker(f"{partitioned}-partition-{partition}") is connection
        await _subscribe(pool, topic)
        assert topic in await lookup.topics("public/default")
        with pytest.raises(BrokerRefusedError) as caught:
            await lookup.broker("persistent://nobody/nowhere/x")
        assert caught.value.text
        assert connection.is_open
    finally:
        await pool.aclose()


async def test_keeps_alive(service_url: str) -> None:
    """A real broker answers pings, and a connection without other traffic stays open."""
    pool = Pool(service_url, ClientOptions(keep_alive=0.2))
    try:
        connection = await pool.get(service_url)
        await asyncio.sleep(2)
        assert connection.is_open
    finally:
        await pool.aclose()


async def test_nonsense_ends_the_connection(service_url: str) -> None:
    """Bytes that are not the protocol make the broker close the connection, which is noticed at once."""
    pool = Pool(service_url)
    try:
        connection = await pool.get(service_url)
        connection.send(b"\x7f\xff\xff\xff" * 4)
        for _ in range(500):
            if not connection.is_open:
                break
            await asyncio.sleep(0.01)
        with pytest.raises(ConnectionLostError):
            connection.send(b"")
    finally:
        await pool.aclose()


class Guarded(NamedTuple):
    """A broker with authentication, with TLS and without."""

    plain: str
    secure: str
    authority: Path
    client: certificates.Certificate


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Start a broker that accepts tokens and certificates, and checks each second whether a token has expired."""
    reason = missing_tools() or certificates.missing_tool()
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("certificates")
    authority = certificates.make_authority(folder)
    server = certificates.make_certificate(folder, authority, "server", f"IP:{HOST}", is_rsa=True)
    client = certificates.make_certificate(folder, authority, "client", "DNS:client")
    port = free_port(HOST)
    settings = {
        "authenticationEnabled": "true",
        "authenticationProviders": f"{PROVIDERS}Token,{PROVIDERS}Tls",
        "authenticationRefreshCheckSeconds": "1",
        "anonymousUserRole": "anybody",  # for the broker's own health check
        "tokenSecretKey": f"data:;base64,{base64.b64encode(SECRET).decode()}",
        "brokerServicePortTls": str(port),
        "tlsCertificateFilePath": str(server.certificate),
        "tlsKeyFilePath": str(server.key),
        "tlsTrustCertsFilePath": str(authority.certificate),
    }
    with Standalone(settings=settings) as broker:
        yield Guarded(broker.service_url, f"pulsar+ssl://{HOST}:{port}", authority.certificate, client)


def token(role: str = "me", *, seconds: float | None = None, secret: bytes = SECRET) -> str:
    """Return a JSON Web Token, perhaps one that expires."""
    claims = {"sub": role} | ({} if seconds is None else {"exp": int(time.time() + seconds)})
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in ({"alg": "HS256"}, claims)]
    signed = hmac.new(secret, b".".join(parts), hashlib.sha256).digest()
    return b".".join([*parts, base64.urlsafe_b64encode(signed).rstrip(b"=")]).decode()


@pytest.mark.both_lines
async def test_tls(guarded: Guarded) -> None:
    """With TLS lookups lead to TLS addresses; the broker's certificate is checked, and ours is sent."""
    for authentication in (TokenAuthentication(token()), TlsAuthentication(*guarded.client)):
        options = ClientOptions(tls=TlsOptions(trust_certs_file=guarded.authority), authentication=authentication)
        pool = Pool(guarded.secure, options)
        try:
            connection = await ClientContext(pool).broker("persistent://public/default/tls")
            assert connection.address.url == guarded.secure
        finally:
            await pool.aclose()
    pool = Pool(guarded.secure)
    with pytest.raises(BrokerError, match="certificate is not trusted"):
        await pool.service()
    await pool.aclose()


async def test_tokens(guarded: Guarded) -> None:
    """A good token is accepted; one signed with another secret is refused, with the broker's reason."""
    for secret in (SECRET, b"another secret of thirty-two bytes"):
        pool = Pool(guarded.plain, ClientOptions(authentication=TokenAuthentication(token(secret=secret))))
        try:
            if secret == SECRET:
                assert (await pool.service()).is_open
            else:
                with pytest.raises(BrokerRefusedError, match="AuthenticationError"):
                    await pool.service()
        finally:
            await pool.aclose()


async def test_tokens_are_renewed(guarded: Guarded) -> None:
    """When a token expires the broker asks again; clients with a new one stay connected, others are disconnected."""
    given: list[str] = []

    def renew() -> str:
        given.append(token(seconds=2))
        return given[-1]

    renewed = Pool(guarded.plain, ClientOptions(authentication=TokenAuthentication(renew)))
    kept = Pool(guarded.plain, ClientOptions(authentication=TokenAuthentication(token(seconds=2))))
    try:
        stays, goes = await renewed.service(), await kept.service()
        async with asyncio.timeout(patience(10)):
            while len(given) < 3 or goes.is_open:
                await asyncio.sleep(0.1)
        await asyncio.sleep(1)
        assert stays.is_open
    finally:
        await renewed.aclose()
        await kept.aclose()


async def _subscribe(pool: Pool, topic: str) -> None:
    connection = await ClientContext(pool).broker(topic)
    request_id = connection.request_id()
    command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
    command.subscribe.topic, command.subscribe.subscription = topic, "s"
    command.subscribe.subType = pb.CommandSubscribe.Shared
    command.subscribe.consumer_id, command.subscribe.request_id = next(connection.handler_ids), request_id
    await connection.request(command, request_id)
