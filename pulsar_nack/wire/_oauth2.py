"""OAuth2 client credentials: an access token from an issuer, used as a token, renewed before it expires.

There are two requests: the issuer's description names the address where tokens are had; the token is had there. Both
run in a thread with the standard library's client, once for all connections that wait, at most one at a time.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..errors import BrokerError, InvalidArgumentError

_WELL_KNOWN: Final = "/.well-known/openid-configuration"
_MAX_ANSWER_BYTES: Final = 1 << 20
_NEW_FROM: Final = 0.9  # of its life a token is used, then the next connection gets a new one
_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class _Token(NamedTuple):
    text: str
    renew_at: float  # monotonic seconds


class OAuth2Authentication:
    """A client id and secret that an issuer gives access tokens for; the broker sees the token alone.

    :param issuer_url: of the issuer; its description is at ``/.well-known/openid-configuration`` below it
    :param audience: who the token is for, as the broker expects it; likewise ``scope``
    :param tls: a context for the issuer; None: what the system trusts
    :param timeout: of each of the two requests, in seconds
    """

    method = "token"

    def __init__(
        self,
        issuer_url: str,
        client_id: str,
        client_secret: str,
        *,
        audience: str | None = None,
        scope: str | None = None,
        tls: ssl.SSLContext | None = None,
        timeout: float = 10.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._issuer_url = _checked_url("issuer_url", issuer_url).rstrip("/")
        for name, value in (("client_id", client_id), ("client_secret", client_secret)):
            _refuse_if_no_text(name, value)
        self._client = client_id, client_secret
        self._form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": client_secret}
        self._form |= {name: text for name, text in (("audience", audience), ("scope", scope)) if text is not None}
        self._tls = tls
        self._timeout = timeout
        self._monotonic = monotonic
        self._token: _Token | None = None
        self._running: asyncio.Task[_Token] | None = None

    @classmethod
    def from_key_file(cls, path: str | Path, *, issuer_url: str | None = None, **settings: Any) -> OAuth2Authentication:
        """Take id, secret and issuer from a key file in JSON, as other Pulsar clients have it.

        :raises InvalidArgumentError: not such a file
        """
        try:
            key = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidArgumentError("path", str(path), f"a key file in JSON ({error})") from error
        names = ("client_id", "client_secret", *(() if issuer_url else ("issuer_url",)))
        missing = [name for name in names if not isinstance(key, dict) or not isinstance(key.get(name), str)]
        if missing:
            raise InvalidArgumentError("path", str(path), f"a key file that has {', '.join(missing)}")
        return cls(issuer_url or key["issuer_url"], key["client_id"], key["client_secret"], **settings)

    async def data(self, challenge: bytes | None) -> bytes:
        """Return a token that is valid for a while; a challenge always gets one that is new.

        :raises BrokerError: the issuer could not be reached, refused, or answered something else
        """
        token = self._token
        if token is None or challenge is not None or self._monotonic() >= token.renew_at:
            token = await self._renewed()
        return token.text.encode()

    async def _renewed(self) -> _Token:
        """Ask the issuer, or wait for the answer to one who asked already; a cancelled one does not stop the others."""
        if self._running is None or self._running.get_loop() is not asyncio.get_running_loop():
            self._running = asyncio.create_task(self._renew(), name="access token of OAuth2")
            self._running.add_done_callback(self._forget)
        return await asyncio.shield(self._running)

    async def _renew(self) -> _Token:
        self._token = await asyncio.get_running_loop().run_in_executor(None, self._ask)
        return self._token

    def _forget(self, task: asyncio.Task[_Token]) -> None:
        if self._running is task:
            self._running = None
        if not task.cancelled():
            task.exception()  # those who waited have got it; all may have been cancelled

    def _ask(self) -> _Token:
        asked_at = self._monotonic()
        url = self._fetch(urllib.request.Request(f"{self._issuer_url}{_WELL_KNOWN}")).get("token_endpoint")  # noqa: S310
        try:
            url = _checked_url("token_endpoint", url)
        except InvalidArgumentError as error:
            raise BrokerError(f"{self._issuer_url}: {error}") from error
        form = urllib.parse.urlencode(self._form).encode()
        answer = self._fetch(urllib.request.Request(url, form, {"Accept": "application/json"}))  # noqa: S310
        text = answer.get("access_token")
        if not isinstance(text, str) or not text:
            raise BrokerError(f"{url}: the answer has no access_token")
        return _Token(text, asked_at + _life(answer.get("expires_in")) * _NEW_FROM)

    def _fetch(self, request: urllib.request.Request) -> Mapping[str, Any]:
        url = request.full_url
        handlers = (urllib.request.HTTPSHandler(context=self._tls or ssl.create_default_context()), _NoRedirect())
        try:
            with urllib.request.build_opener(*handlers).open(request, timeout=self._timeout) as response:
                body = response.read(_MAX_ANSWER_BYTES)
        except urllib.error.HTTPError as error:
            with error:
                told = error.read(500).decode(errors="replace")
            raise BrokerError(f"{url}: the issuer of tokens says {error.code} {error.reason}: {told}") from error
        except (OSError, http.client.HTTPException) as error:
            raise BrokerError(f"{url}: the issuer of tokens cannot be reached: {error}") from error
        try:
            answer = json.loads(body)
        except ValueError as error:
            raise BrokerError(f"{url}: the answer of the issuer is not JSON") from error
        if not isinstance(answer, dict):
            raise BrokerError(f"{url}: the answer of the issuer is not a JSON object")
        return answer

    def __repr__(self) -> str:  # never shows the secret
        return f"OAuth2Authentication({self._issuer_url!r}, {self._client[0]!r}, ...)"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The secret goes to the address that was named, and to no other."""

    def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
        return None


def _refuse_if_no_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise InvalidArgumentError(name, type(value), "text that is not empty")


def _checked_url(name: str, url: object) -> str:
    parts = urllib.parse.urlsplit(url) if isinstance(url, str) else None
    if parts is None or parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InvalidArgumentError(name, url, "a URL that begins with https://")
    if parts.scheme == "http" and parts.hostname not in _LOCAL:
        raise InvalidArgumentError(name, url, "https://: over http:// the secret could be read on the way")
    return str(url)


def _life(expires_in: object) -> float:
    """Return for how many seconds a token is valid; one that does not say so is asked for each time."""
    try:
        life = float(expires_in)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return 0.0
    return life if 0 < life < float("inf") else 0.0
