"""OAuth2 client credentials, against an issuer on loopback."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from pulsar_nack.errors import BrokerError, InvalidArgumentError
from pulsar_nack.wire._connection._oauth2 import OAuth2Authentication
from tests.for_each import for_each
from tests.wire.issuers import SECRET, Tokens, answer, authentication, issuer


class HandClock:
    """Monotonic seconds of a manual clock."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


async def test_asks_for_a_token() -> None:
    """The issuer's description names the token endpoint; the request there has what OAuth2 requires."""
    tokens = Tokens()
    async with issuer(tokens) as url:
        mine = authentication(url, audience="urn:cluster", scope="all")
        assert mine.method == "token"
        assert await mine.data(None) == b"token-1"
    assert tokens.forms == [
        {
            "grant_type": "client_credentials",
            "client_id": "me",
            "client_secret": SECRET,
            "audience": "urn:cluster",
            "scope": "all",
        }
    ]


async def test_a_token_is_used_until_it_is_old() -> None:
    """A token is requested once for nine tenths of its lifetime; a challenge gets a new one at once."""
    clock = HandClock()
    async with issuer(Tokens()) as url:
        mine = authentication(url, monotonic=clock)
        assert [await mine.data(None) for _ in range(3)] == [b"token-1"] * 3
        clock.now += 89
        assert await mine.data(None) == b"token-1"
        clock.now += 1
        assert await mine.data(None) == b"token-2"
        assert await mine.data(b"PulsarAuthRefresh") == b"token-3"
        assert await mine.data(None) == b"token-3"


async def test_a_token_without_a_life_is_used_once() -> None:
    """Without a lifetime from the issuer, each connection requests a token."""
    async with issuer(Tokens(expires_in=None)) as url:
        mine = authentication(url)
        assert [await mine.data(None), await mine.data(None)] == [b"token-1", b"token-2"]


async def test_one_request_for_all_who_wait() -> None:
    """Connections that open at once share one request; a cancelled one does not stop the others."""
    tokens = Tokens()
    tokens.may_answer.clear()
    async with issuer(tokens) as url:
        mine = authentication(url)
        tasks = [asyncio.create_task(mine.data(None)) for _ in range(3)]
        while not tokens.forms:
            await asyncio.sleep(0.01)
        tasks[0].cancel()
        tokens.may_answer.set()
        got = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(got[0], asyncio.CancelledError)
    assert got[1:] == [b"token-1", b"token-1"]
    assert len(tokens.forms) == 1


@for_each(
    ("said", "problem"),
    [
        (
            answer({"error": "invalid_client", "error_description": "no"}, "401 Nice Try"),
            r"401 Unauthorized \(invalid_client\)$",
        ),
        (answer(b"broken", "500 Oh"), "500 Internal Server Error$"),
        (answer({"error": SECRET}, "599 No"), "says 599$"),
        (answer(b"<html>"), "not a JSON object"),
        (answer(["a"]), "not a JSON object"),
        (answer({"token_type": "Bearer"}), "no access_token"),
        (answer({}, "307 Elsewhere", "Location: /elsewhere"), "307"),
    ],
)
def test_issuers_that_give_no_token(said: bytes, problem: str) -> None:
    """The error has the status and OAuth2's code; the next attempt requests again; redirects are not followed."""

    async def main() -> None:
        tokens = Tokens()
        tokens.said = said
        async with issuer(tokens) as url:
            mine = authentication(url)
            with pytest.raises(BrokerError, match=problem) as caught:
                await mine.data(None)
            assert SECRET not in str(caught.value)
            tokens.said = None
            assert await mine.data(None) == b"token-2"

    asyncio.run(main())


async def test_nobody_there() -> None:
    """An issuer that cannot be reached is named."""
    with pytest.raises(BrokerError, match=r"http://127\.0\.0\.1:1: .*cannot be reached: Connect call failed"):
        await OAuth2Authentication("http://127.0.0.1:1", "me", "secret").data(None)


async def test_key_files(tmp_path: Path) -> None:
    """Id, secret and issuer are read from a key file in other clients' format; missing fields are named."""
    file = tmp_path / "key.json"
    async with issuer(Tokens()) as url:
        key = {"type": "client_credentials", "client_id": "me", "client_secret": "secret", "issuer_url": url}
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
