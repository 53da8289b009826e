"""OAuth2 client credentials, against an issuer on loopback."""

from __future__ import annotations

import asyncio
import functools
import json
import ssl
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pulsar_nack.errors import BrokerError, InvalidArgumentError
from pulsar_nack.wire._connection._oauth2 import OAuth2Authentication
from tests.patience import patience

tls = functools.cache(ssl.create_default_context)
"""Made once, as it takes longer than all else here."""


class Issuer(ThreadingHTTPServer):
    """Gives tokens ``token-1``, ``token-2``, ...; what it answers can be changed."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.forms: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.description: Any = {"token_endpoint": f"{self.url}/oauth/token"}
        self.status = 200
        self.answer: Any = {"expires_in": 100, "token_type": "Bearer"}
        self.may_answer = threading.Event()
        self.may_answer.set()


class Handler(BaseHTTPRequestHandler):
    """One request to the issuer."""

    server: Issuer

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        self._reply(200, self.server.description)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.forms.append(dict(urllib.parse.parse_qsl(body)))
        self.server.may_answer.wait(patience(5))
        answer = self.server.answer
        if isinstance(answer, dict) and self.server.status == 200 and "expires_in" in answer:
            answer = {"access_token": f"token-{len(self.server.forms)}"} | answer
        self._reply(self.server.status, answer)

    def _reply(self, status: int, answer: Any) -> None:
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        if status in {301, 302, 307}:
            self.send_header("Location", f"{self.server.url}/elsewhere")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    """An issuer that runs."""
    with Issuer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.may_answer.set()
        server.shutdown()
        thread.join()


class HandClock:
    """Monotonic seconds, moved by hand."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def authentication(issuer: Issuer, **settings: Any) -> OAuth2Authentication:
    """Return credentials for this issuer."""
    return OAuth2Authentication(issuer.url, "me", "secret", **{"tls": tls(), "timeout": patience(5), **settings})


async def test_asks_for_a_token(issuer: Issuer) -> None:
    """The issuer's description names where tokens are had; the request there has what OAuth2 wants."""
    mine = authentication(issuer, audience="urn:cluster", scope="all")
    assert mine.method == "token"
    assert await mine.data(None) == b"token-1"
    assert issuer.paths == ["/.well-known/openid-configuration"]
    assert issuer.forms == [
        {
            "grant_type": "client_credentials",
            "client_id": "me",
            "client_secret": "secret",
            "audience": "urn:cluster",
            "scope": "all",
        }
    ]


async def test_a_token_is_used_until_it_is_old(issuer: Issuer) -> None:
    """A token is asked for once, until nine tenths of its life are over."""
    clock = HandClock()
    mine = authentication(issuer, monotonic=clock)
    assert [await mine.data(None) for _ in range(3)] == [b"token-1"] * 3
    clock.now += 89
    assert await mine.data(None) == b"token-1"
    clock.now += 1
    assert await mine.data(None) == b"token-2"


async def test_a_challenge_gets_a_new_token(issuer: Issuer) -> None:
    """A broker that asks again does not get what it has already."""
    mine = authentication(issuer)
    assert await mine.data(None) == b"token-1"
    assert await mine.data(b"PulsarAuthRefresh") == b"token-2"
    assert await mine.data(None) == b"token-2"


async def test_a_token_without_a_life_is_used_once(issuer: Issuer) -> None:
    """Without a lifetime from the issuer, each connection requests a token."""
    mine = authentication(issuer)
    issuer.answer = {"expires_in": None}
    assert [await mine.data(None), await mine.data(None)] == [b"token-1", b"token-2"]


async def test_one_request_for_all_who_wait(issuer: Issuer) -> None:
    """Connections that open at once share one request; one that gives up does not stop the others."""
    issuer.may_answer.clear()
    mine = authentication(issuer)
    tasks = [asyncio.create_task(mine.data(None)) for _ in range(3)]
    while not issuer.forms:
        await asyncio.sleep(0.01)
    tasks[0].cancel()
    issuer.may_answer.set()
    got = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(got[0], asyncio.CancelledError)
    assert got[1:] == [b"token-1", b"token-1"]
    assert len(issuer.forms) == 1


@pytest.mark.parametrize(
    ("status", "answer", "problem"),
    [
        (401, {"error": "invalid_client"}, r"401 Unauthorized \(invalid_client\)$"),
        (500, b"broken", "500 Internal Server Error$"),
        (599, {"error": "secret"}, "says 599$"),
        (200, b"<html>", "not a JSON object"),
        (200, ["a"], "not a JSON object"),
        (200, {"token_type": "Bearer"}, "no access_token"),
        (307, {}, "307"),
    ],
)
async def test_issuers_that_give_no_token(issuer: Issuer, status: int, answer: Any, problem: str) -> None:
    """An answer without a token is reported, and the next attempt requests again; redirects are not followed."""
    mine = authentication(issuer)
    usual = issuer.answer
    issuer.status, issuer.answer = status, answer
    with pytest.raises(BrokerError, match=problem) as caught:
        await mine.data(None)
    assert "secret" not in str(caught.value)
    assert "/elsewhere" not in issuer.paths
    issuer.status, issuer.answer = 200, usual
    assert await mine.data(None) == b"token-2"


@pytest.mark.parametrize(
    "description", [{}, {"token_endpoint": "ftp://x"}, {"token_endpoint": "http://example.com/x"}, b"?"]
)
async def test_issuers_without_an_address_for_tokens(issuer: Issuer, description: Any) -> None:
    """A description that names no address, or one that the secret must not go to, is refused."""
    issuer.description = description
    with pytest.raises(BrokerError, match=r"token_endpoint|not a JSON object"):
        await authentication(issuer).data(None)
    assert issuer.forms == []


async def test_nobody_there() -> None:
    """An issuer that cannot be reached is named."""
    with pytest.raises(BrokerError, match=r"http://127\.0\.0\.1:1: .*cannot be reached: Connect call failed"):
        await OAuth2Authentication("http://127.0.0.1:1", "me", "secret").data(None)


async def test_a_slow_issuer(issuer: Issuer) -> None:
    """An issuer that takes too long is given up."""
    issuer.may_answer.clear()
    with pytest.raises(BrokerError, match=r"no whole answer within 0\.2 s"):
        await authentication(issuer, timeout=0.2).data(None)


async def test_key_files(issuer: Issuer, tmp_path: Path) -> None:
    """Id, secret and issuer are read from a key file as other clients have it; what it lacks is named."""
    file = tmp_path / "key.json"
    key = {"type": "client_credentials", "client_id": "me", "client_secret": "secret", "issuer_url": issuer.url}
    file.write_text(json.dumps(key))
    assert await OAuth2Authentication.from_key_file(file, audience="a").data(None) == b"token-1"
    del key["client_secret"]
    file.write_text(json.dumps(key))
    with pytest.raises(InvalidArgumentError, match="client_secret"):
        OAuth2Authentication.from_key_file(file)
    for content in ("no json", "[]"):
        file.write_text(content)
        with pytest.raises(InvalidArgumentError, match="key file"):
            OAuth2Authentication.from_key_file(file)
    with pytest.raises(InvalidArgumentError, match="key file"):
        OAuth2Authentication.from_key_file(tmp_path / "nothing.json")


@pytest.mark.parametrize("url", ["http://issuer.example.com", "issuer", "", "ftp://x", 3])
def test_wrong_issuers(url: Any) -> None:
    """An issuer is reached over TLS, or on this machine."""
    with pytest.raises(InvalidArgumentError, match="issuer_url"):
        OAuth2Authentication(url, "me", "secret")


def test_wrong_credentials() -> None:
    """Empty credentials are refused."""
    with pytest.raises(InvalidArgumentError, match="client_id"):
        OAuth2Authentication("https://issuer", "", "secret")
    with pytest.raises(InvalidArgumentError, match="client_secret"):
        OAuth2Authentication("https://issuer", "me", "")
