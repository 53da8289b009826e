"""OAuth2 client credentials: an access token from an issuer, used as a token, renewed before it expires.

There are two requests: the first gets the issuer's description, which names the token endpoint; the second gets the
token there. Waiting connections share them; they are cancelled with the last of these.

An issuer knows the secret and may repeat it in any response. So errors name the issuer by the user's URL and quote
neither its text nor its token endpoint, only known codes.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from math import inf
from os import PathLike
from typing import Any, Final

from ..._check import check_callable, is_text, path_of
from ..._delays import Delay, delay_seconds
from ..._foreign import without_credentials
from ...errors import BrokerError, InvalidArgumentError
from ._http import fetch

_WELL_KNOWN: Final = "/.well-known/openid-configuration"
_MAX_ANSWER_BYTES: Final = 1 << 18
_NEW_FROM: Final = 0.9  # of its lifetime; after that the next connection requests a new token
_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_CODES: Final = frozenset(
    {
        "access_denied",
        "invalid_client",
        "invalid_grant",
        "invalid_request",
        "invalid_scope",
        "invalid_target",
        "server_error",
        "temporarily_unavailable",
        "unauthorized_client",
        "unsupported_grant_type",
    }
)
"""The error codes of OAuth2 (RFC 6749, RFC 8707)."""
_OURS: Final = frozenset({ConnectionError, ConnectionResetError})
"""Errors that are raised here, with a text that is safe to quote."""


@dataclass(slots=True)
class _TokenRequest:
    """A pending request for a token, and the number of callers that wait for it."""

    task: asyncio.Task[str]
    waiting: int = 0


class OAuth2Authentication:
    """OAuth2 client credentials: an issuer gives access tokens for a client id and secret; the broker gets tokens only.

    :param issuer_url: the issuer's URL; its description is at ``/.well-known/openid-configuration`` below it
    :param audience: the audience of the token, as the broker expects it
    :param scope: the scope of the token
    :param tls: a context for the issuer; None: the system's trusted certificates
    :param timeout: limit of each of the two requests as a whole, in seconds
    :raises InvalidArgumentError: names the argument, never with the secret
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
        timeout: Delay = 10.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._issuer_url = _checked_url("issuer_url", issuer_url).rstrip("/")
        for name, value in (("client_id", client_id), ("client_secret", client_secret)):
            _refuse_if_no_text(name, value)
        self._client = client_id, client_secret
        self._form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": client_secret}
        for name, text in (("audience", audience), ("scope", scope)):
            if text is not None:
                _refuse_if_no_text(name, text)
                self._form[name] = text
        if tls is not None and not isinstance(tls, ssl.SSLContext):
            raise InvalidArgumentError("tls", tls, "an ssl.SSLContext or None")
        self._tls = tls
        self._timeout = delay_seconds(timeout, "timeout")
        if not self._timeout:
            raise InvalidArgumentError("timeout", timeout, "more than 0 seconds")
        check_callable("monotonic", monotonic, "a callable that gives seconds")
        self._monotonic = monotonic
        self._token = ""
        self._renew_at = -inf
        """When the token is to be renewed, in seconds of the clock."""
        self._request: _TokenRequest | None = None

    @classmethod
    def from_key_file(
        cls, path: str | PathLike[str], *, issuer_url: str | None = None, **settings: Any
    ) -> OAuth2Authentication:
        """Read id, secret and issuer from a key file in JSON, as other Pulsar clients use it.

        :raises InvalidArgumentError: not a key file
        """
        file = path_of(path)
        if file is None:
            raise InvalidArgumentError("path", path, "the path of a key file in JSON")
        try:
            is_file = file.is_file()  # a pipe could block
            key = json.loads(file.read_text(encoding="utf-8")) if is_file else None
        except (OSError, ValueError, RecursionError) as error:  # its text may quote the file
            raise InvalidArgumentError("path", str(file), f"a key file in JSON ({type(error).__name__})") from None
        if not is_file:
            raise InvalidArgumentError("path", str(file), "the path of a key file in JSON, but there is no file")
        names = ("client_id", "client_secret", *(() if issuer_url else ("issuer_url",)))
        missing = [name for name in names if not isinstance(key, dict) or not isinstance(key.get(name), str)]
        if missing or key is None:
            raise InvalidArgumentError("path", str(file), f"a key file that has {', '.join(missing)}")
        return cls(issuer_url or key["issuer_url"], key["client_id"], key["client_secret"], **settings)

    async def data(self, challenge: bytes | None) -> bytes:
        """Return a token that is still valid for some time; a challenge always gets a new one.

        :raises BrokerError: the issuer could not be reached, refused, or sent an invalid response
        """
        is_due = challenge is not None or self._monotonic() >= self._renew_at
        return (await self._renewed() if is_due else self._token).encode()

    async def _renewed(self) -> str:
        """Request a token, or share a pending request; if that one fails, request once more."""
        request = self._request
        if request is not None and request.task.get_loop() is asyncio.get_running_loop():
            try:
                return await self._wait_for(request)
            except BrokerError:
                request = self._request
        if request is None or request.task.get_loop() is not asyncio.get_running_loop():
            request = self._request = _TokenRequest(asyncio.create_task(self._renew(), name="access token of OAuth2"))
            request.task.add_done_callback(self._forget)
        return await self._wait_for(request)

    async def _wait_for(self, request: _TokenRequest) -> str:
        """Wait for a shared request; it is cancelled only when its last caller gives up."""
        request.waiting += 1
        try:
            return await asyncio.shield(request.task)
        finally:
            request.waiting -= 1
            if not request.waiting and not request.task.done():
                self._forget(request.task)
                request.task.cancel()

    def _forget(self, task: asyncio.Task[str]) -> None:
        if self._request is not None and self._request.task is task:
            self._request = None
        if task.done() and not task.cancelled():
            task.exception()  # callers have got it, unless all were cancelled

    async def _renew(self) -> str:
        asked_at = self._monotonic()
        description = await self._fetch(f"{self._issuer_url}{_WELL_KNOWN}", None)
        try:
            url = _checked_url("token_endpoint", description.get("token_endpoint"))
        except InvalidArgumentError as error:
            raise self._fault(f"its description has no token_endpoint that is {error.expected}") from None
        answer = await self._fetch(url, urllib.parse.urlencode(self._form).encode())
        text = answer.get("access_token")
        if not isinstance(text, str) or not text or not text.isascii() or not text.isprintable():
            raise self._fault("its answer has no access_token")
        self._token = text
        self._renew_at = asked_at + _lifetime(answer.get("expires_in")) * _NEW_FROM
        return text

    async def _fetch(self, url: str, form: bytes | None) -> Mapping[str, Any]:
        try:
            async with asyncio.timeout(self._timeout):
                tls = await self._context() if url.startswith("https:") else None
                status, body = await fetch(url, form, tls=tls, most_bytes=_MAX_ANSWER_BYTES)
        except TimeoutError:
            raise self._fault(f"it gave no whole answer within {self._timeout:g} s") from None
        except OSError as error:
            raise self._fault(f"it cannot be reached: {_reason(error)}") from None
        except ValueError as error:
            raise self._fault(f"its answer cannot be read: {error}") from None
        found = _as_json(body)
        if status != HTTPStatus.OK:
            raise self._fault(f"it says {_refusal(status, found)}")
        if not isinstance(found, dict):
            raise self._fault("its answer is not a JSON object")
        return found

    async def _context(self) -> ssl.SSLContext:
        """Return the TLS context for the issuer; made once, in a thread, because that takes long."""
        if self._tls is None:
            self._tls = await asyncio.to_thread(ssl.create_default_context)
        return self._tls

    def _fault(self, what: str) -> BrokerError:
        return BrokerError(f"{self._issuer_url}: the issuer of tokens gives none: {what}")

    def __repr__(self) -> str:  # never shows the secret
        return f"OAuth2Authentication({self._issuer_url!r}, {self._client[0]!r}, ...)"


def _refuse_if_no_text(name: str, value: object) -> None:
    if not is_text(value) or not value:
        raise InvalidArgumentError(name, type(value), "text that is not empty")


def _checked_url(name: str, url: object) -> str:
    expected = "a URL that begins with https://, without user and fragment"
    try:
        parts = urllib.parse.urlsplit(url) if isinstance(url, str) and url.isascii() and url.isprintable() else None
        is_good = parts is not None and parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, is_good = None, False
    if parts is None or not is_good or "@" in parts.netloc or parts.fragment or " " in str(url):
        raise InvalidArgumentError(name, without_credentials(url) if isinstance(url, str) else url, expected)
    if parts.scheme == "http" and parts.hostname not in _LOCAL:
        raise InvalidArgumentError(
            name, f"http://{parts.hostname}", "https://: over http:// the secret could be read on the way"
        )
    return str(url)


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message.partition(',')[0]}"  # the rest quotes the issuer
    if isinstance(error, ssl.SSLError):
        return f"no connection over TLS: {error.reason}"
    return error.strerror or (str(error) if type(error) in _OURS else type(error).__name__)


def _refusal(status: int, found: object) -> str:
    """Return a failed status with its standard name, and OAuth2's error code if it is a known one."""
    name = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else ""
    code = found.get("error") if isinstance(found, dict) else None
    known = f"({code})" if isinstance(code, str) and code in _CODES else ""
    return " ".join(filter(None, (str(status), name, known)))


def _as_json(body: bytes) -> object:
    """Return parsed JSON; None if the body is not JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _lifetime(expires_in: object) -> float:
    """Return for how many seconds a token is valid; 0 if the issuer does not say: then each connection requests one."""
    try:
        life = float(expires_in)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return life if 0 < life < float("inf") else 0.0
