"""Authentication: tokens, passwords, and brokers that challenge a client again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pulsar_nack.config import TraceConfig
from pulsar_nack.errors import BrokerError, BrokerRefusedError, ConnectionLostError, InvalidArgumentError
from pulsar_nack.observe import TraceWriter
from pulsar_nack.testing import virtual_time
from pulsar_nack.wire._connection._address import Address
from pulsar_nack.wire._connection._authentication import (
    Authentication,
    BasicAuthentication,
    NoAuthentication,
    TlsAuthentication,
    TokenAuthentication,
)
from pulsar_nack.wire._connection._connection import Connection
from pulsar_nack.wire._connection._oauth2 import OAuth2Authentication
from pulsar_nack.wire._connection._options import ClientOptions, TlsOptions
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from tests.wire.fake_broker import Call, FakeBroker, as_usual, refuse

SECRET = "top-secret"


async def connect(broker: FakeBroker, authentication: Authentication) -> Connection:
    """Return an open connection."""
    options = ClientOptions(authentication=authentication)
    return await Connection.open(Address.parse(broker.url), options, dial=broker.dial)


def is_closed(connection: Connection) -> bool:
    """Return whether the connection is closed; a function, so that mypy does not narrow it."""
    return not connection.is_open


def challenge(call: Call, data: bytes = b"PulsarAuthRefresh", method: str = "token") -> None:
    """Send the client a challenge."""
    call.reply("AUTH_CHALLENGE", challenge=pb.AuthData(auth_method_name=method, auth_data=data))


@virtual_time
async def test_a_token() -> None:
    """A token is sent with its method, and no repr or log contains it."""
    broker = FakeBroker()
    connection = await connect(broker, TokenAuthentication(SECRET))
    sent = broker.commands("CONNECT")[0]
    assert (sent.auth_method_name, sent.auth_data) == ("token", SECRET.encode())
    await connection.aclose()
    for shown in (TokenAuthentication(SECRET), BasicAuthentication("me", SECRET)):
        assert SECRET not in repr(shown)
        assert SECRET not in repr(ClientOptions(authentication=shown))
    assert SECRET not in repr(OAuth2Authentication("https://issuer", "me", SECRET))


@pytest.mark.parametrize("as_url", [False, True])
def test_a_token_in_a_file(tmp_path: Path, as_url: bool) -> None:
    """A file is read for each connection, without its line end; a file URL works too."""
    file = tmp_path / "token"
    file.write_text("one\n")

    @virtual_time
    async def run() -> None:
        broker = FakeBroker()
        authentication = TokenAuthentication(f"file://{file}" if as_url else file)
        for token in ("one", "two"):
            file.write_text(f"{token}\n")
            connection = await connect(broker, authentication)
            await connection.aclose()
        assert [sent.auth_data for sent in broker.commands("CONNECT")] == [b"one", b"two"]

    run()


async def later_token() -> str:
    """Return a token after a while."""
    await asyncio.sleep(1)
    return "from a coroutine"


@pytest.mark.parametrize(
    ("source", "token"),
    [
        (lambda: "from a function", b"from a function"),
        (later_token, b"from a coroutine"),
        ("token:prefixed", b"prefixed"),
    ],
)
def test_other_sources_of_tokens(source: str | Callable[[], str | Awaitable[str]], token: bytes) -> None:
    """Functions, coroutine functions and the other clients' form of a token are accepted."""

    @virtual_time
    async def run() -> None:
        assert await TokenAuthentication(source).data(None) == token

    run()


@virtual_time
async def test_tokens_that_are_none(tmp_path: Path) -> None:
    """A missing or empty file, a pipe, and a function that returns something else are named, and nothing hangs."""
    broker = FakeBroker()
    os.mkfifo(tmp_path / "pipe")
    for source in (Path("/nowhere/token"), tmp_path / "pipe", tmp_path, lambda: "", lambda: 3, lambda: "\ud800"):
        with pytest.raises(InvalidArgumentError, match="token"):
            await connect(broker, TokenAuthentication(source))  # type: ignore[arg-type]
    await asyncio.sleep(1)
    assert broker.links == []
    assert broker.commands("CONNECT") == []


@virtual_time
async def test_a_password() -> None:
    """A user and a password are sent with their method; a broker may quote them, also a password with a colon."""
    broker = FakeBroker()
    connection = await connect(broker, BasicAuthentication("me", "pass:word"))
    sent = broker.commands("CONNECT")[0]
    assert (sent.auth_method_name, sent.auth_data) == ("basic", b"me:pass:word")
    assert connection.without_secrets("me, your pass:word, me:pass:word") == "me, your ***, ***"
    await connection.aclose()


@virtual_time
async def test_challenges_get_what_is_valid_now() -> None:
    """A broker that challenges again gets the current token each time, and the connection stays."""
    broker = FakeBroker()
    tokens = iter(["one", "two", "three"])
    connection = await connect(broker, TokenAuthentication(lambda: next(tokens)))
    opened = broker.calls[0]
    for _ in range(2):
        challenge(opened)
        await asyncio.sleep(1)
    answers = broker.commands("AUTH_RESPONSE")
    assert [each.response.auth_data for each in answers] == [b"two", b"three"]
    assert {each.response.auth_method_name for each in answers} == {"token"}
    assert connection.is_open
    await connection.aclose()


@virtual_time
async def test_a_challenge_before_one_is_let_in() -> None:
    """A broker may challenge a second time before the connection opens."""
    broker = FakeBroker()
    broker.next("CONNECT", challenge)
    broker.always("AUTH_RESPONSE", lambda call: call.reply("CONNECTED", server_version="fake"))
    connection = await connect(broker, TokenAuthentication("one"))
    assert connection.is_open
    await connection.aclose()


@virtual_time
async def test_a_challenge_that_cannot_be_answered() -> None:
    """When no new token can be had the connection ends with the reason."""
    broker = FakeBroker()
    tokens = iter(["one"])

    def renew() -> str:
        try:
            return next(tokens)
        except StopIteration:
            raise BrokerError("the issuer is down") from None

    connection = await connect(broker, TokenAuthentication(renew))
    challenge(broker.calls[0])
    await asyncio.sleep(1)
    assert is_closed(connection)
    with pytest.raises(ConnectionLostError, match="the issuer is down"):
        connection.send(b"")
    assert len(asyncio.all_tasks()) == 1


@virtual_time
async def test_closing_while_a_challenge_is_answered() -> None:
    """A connection that is closed while a new token is fetched leaves no task behind."""
    broker = FakeBroker()
    calls = 0

    async def slow() -> str:
        nonlocal calls
        calls += 1
        if calls > 1:
            await asyncio.sleep(1_000)
        return "one"

    connection = await connect(broker, TokenAuthentication(slow))
    challenge(broker.calls[0])
    await asyncio.sleep(1)
    assert len(asyncio.all_tasks()) == 2
    await connection.aclose()
    assert len(asyncio.all_tasks()) == 1
    assert broker.commands("AUTH_RESPONSE") == []


@virtual_time
async def test_a_refusal_after_a_challenge() -> None:
    """A broker that refuses the new token ends the connection, with its text."""
    broker = FakeBroker()
    broker.next("CONNECT", challenge)
    broker.always("AUTH_RESPONSE", refuse("AuthenticationError", "expired"))
    with pytest.raises(BrokerRefusedError, match="AuthenticationError: expired"):
        await connect(broker, TokenAuthentication("one"))
    broker.normally("AUTH_RESPONSE")
    broker.always("CONNECT", as_usual)
    connection = await connect(broker, TokenAuthentication("one"))
    await connection.aclose()


@virtual_time
async def test_a_custom_authentication() -> None:
    """Any object with a method and data works; it gets the challenge."""

    class Mine:
        method = "mine"

        async def data(self, challenge: bytes | None) -> bytes:
            return b"first" if challenge is None else b"to " + challenge

    broker = FakeBroker()
    connection = await connect(broker, Mine())
    challenge(broker.calls[0], b"riddle", "mine")
    await asyncio.sleep(1)
    assert broker.commands("CONNECT")[0].auth_data == b"first"
    assert broker.commands("AUTH_RESPONSE")[0].response.auth_data == b"to riddle"
    await connection.aclose()


def test_arguments_are_checked() -> None:
    """Invalid authentications are refused when they are created."""
    for wrong in ("", 3, None, "\ud800"):
        with pytest.raises(InvalidArgumentError, match="token"):
            TokenAuthentication(wrong)  # type: ignore[arg-type]
    for wrong in ("a:b", "", None, "\ud800"):
        with pytest.raises(InvalidArgumentError, match="user"):
            BasicAuthentication(wrong, "c")  # type: ignore[arg-type]
    for no_password in (3, None, b"", "\ud800"):  # None: an environment variable that is not set
        with pytest.raises(InvalidArgumentError, match="password"):
            BasicAuthentication("a", no_password)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="certificate_file"):
        TlsAuthentication("")
    for no_authentication in ("token", TokenAuthentication):
        with pytest.raises(ValueError, match="authentication"):
            ClientOptions(authentication=no_authentication)
    assert isinstance(ClientOptions().authentication, NoAuthentication)


@pytest.mark.parametrize(
    "settings",
    [
        {"connect_timeout": 0},
        {"request_timeout": -1},
        {"keep_alive": float("nan")},
        {"backoff_minimum": 40},
        {"max_redirects": -1},
        {"write_buffer_bytes": 0},
        {"unknown": 1},
    ],
)
def test_options_are_checked(settings: dict[str, float]) -> None:
    """Settings that cannot work are refused by name."""
    name = "backoff" if "backoff_minimum" in settings else next(iter(settings))
    with pytest.raises(ValueError, match=name):
        ClientOptions(**settings)


def test_backoff_grows_with_jitter() -> None:
    """Pauses between connection attempts begin at the minimum, double, and end at the maximum, each with jitter."""
    backoff = ClientOptions(backoff_minimum=0.1, backoff_maximum=30).backoff()
    assert 0.05 <= backoff(0) <= 0.1
    assert 0.4 <= backoff(3) <= 0.8
    assert 15 <= backoff(50) <= 30
    assert len({backoff(50) for _ in range(20)}) > 1


class Located:
    """A path type of another library."""

    def __init__(self, path: Path | bytes) -> None:
        self._path = str(path) if isinstance(path, Path) else path

    def __fspath__(self) -> Any:
        return self._path


async def test_paths_of_other_libraries(tmp_path: Path) -> None:
    """Any path-like object works for tokens, keys, certificates and traces; one of bytes is refused."""
    file = tmp_path / "file"
    file.write_text("secret")
    key = tmp_path / "key.json"
    key.write_text('{"client_id": "a", "client_secret": "b", "issuer_url": "https://x"}')
    assert await TokenAuthentication(Located(file)).data(None) == b"secret"
    assert TlsAuthentication(Located(file), Located(file)).certificate == (file, file)
    assert isinstance(OAuth2Authentication.from_key_file(Located(key)), OAuth2Authentication)
    assert TlsOptions(trust_certs_file=Located(file)).trust_certs_file == file
    assert TraceConfig(folder=Located(tmp_path)).folder == tmp_path
    assert TraceWriter(Located(tmp_path)).statistics().written == 0
    for made in (
        TokenAuthentication,
        TlsAuthentication,
        OAuth2Authentication.from_key_file,
        lambda path: TlsOptions(trust_certs_file=path),
        lambda path: TraceConfig(folder=path),
    ):
        with pytest.raises(ValueError, match="expected"):  # in settings it is a ValidationError
            made(Located(b"file"))
