"""Authentication methods: each gives its data when a connection opens and when the broker challenges it later."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from os import PathLike
from pathlib import Path
from typing import Protocol, runtime_checkable

from ..._check import is_text, path_of
from ...errors import InvalidArgumentError

_MAX_TOKEN_BYTES = 1 << 20

TokenSource = str | PathLike[str] | Callable[[], str | Awaitable[str]]
"""A token, the path of a file with it, or a function that returns it, which may be a coroutine function."""


@runtime_checkable
class Authentication(Protocol):
    """One authentication method; write your own with these two members.

    ``data`` is called for each connection, and for each challenge of a broker to which the last data has expired, so it
    must return data that is still valid. Opening the connection raises its errors.
    """

    @property
    def method(self) -> str:
        """Return the broker's name of the method."""
        ...

    async def data(self, challenge: bytes | None) -> bytes:
        """Return the data for the broker to check; ``challenge`` is the broker's data, None when a connection opens."""
        ...


class NoAuthentication:
    """No authentication: the broker accepts everybody."""

    method = "none"

    async def data(self, challenge: bytes | None) -> bytes:  # noqa: ARG002
        """Return no data."""
        return b""

    def __repr__(self) -> str:
        return "NoAuthentication()"


class TokenAuthentication:
    """A token, such as a JSON Web Token: as text, in a file, or from a function.

    Files are read and functions called for each connection and each challenge. They must not block the event loop.
    """

    method = "token"

    def __init__(self, token: TokenSource) -> None:
        self._source = _source(token)

    async def data(self, challenge: bytes | None) -> bytes:  # noqa: ARG002
        """Return the current token."""
        token = (await self._read()).strip()
        if not token:
            raise InvalidArgumentError("token", token, f"text that is not empty, from {self!r}")
        return token.encode()

    async def _read(self) -> str:
        if isinstance(self._source, str):
            return self._source
        if isinstance(self._source, Path):
            return await asyncio.get_running_loop().run_in_executor(None, _read_file, self._source)
        given: object = self._source()
        token = await given if inspect.isawaitable(given) else given
        if not is_text(token):
            raise InvalidArgumentError("token", type(token), f"text, from {self!r}")
        return token

    def __repr__(self) -> str:  # never shows a token
        source = self._source
        if isinstance(source, Path):
            return f"TokenAuthentication({source!r})"
        is_text = isinstance(source, str)
        return f"TokenAuthentication({'...' if is_text else getattr(source, '__qualname__', type(source).__name__)})"


class BasicAuthentication:
    """A user and a password. Without TLS they can be read on the network."""

    method = "basic"

    def __init__(self, user: str, password: str) -> None:
        if not is_text(user) or not user or ":" in user:
            raise InvalidArgumentError("user", type(user), "a name without a colon, and the password beside it")
        if not is_text(password):
            raise InvalidArgumentError("password", type(password), "text")
        self._user = user
        self._password = password

    async def data(self, challenge: bytes | None) -> bytes:  # noqa: ARG002
        """Return user and password."""
        return f"{self._user}:{self._password}".encode()

    def __repr__(self) -> str:
        return f"BasicAuthentication({self._user!r}, ...)"


class TlsAuthentication:
    """The client certificate of the TLS connection; for ``pulsar+ssl://`` only."""

    method = "tls"

    def __init__(self, certificate_file: str | PathLike[str], key_file: str | PathLike[str] | None = None) -> None:
        own = pem_file("certificate_file", certificate_file)
        self._certificate = own, None if key_file is None else pem_file("key_file", key_file)

    @property
    def certificate(self) -> tuple[Path, Path | None]:
        """Return the paths of the certificate and of its key."""
        return self._certificate

    async def data(self, challenge: bytes | None) -> bytes:  # noqa: ARG002
        """Return no data: TLS has sent the certificate."""
        return b""

    def __repr__(self) -> str:
        return f"TlsAuthentication({str(self._certificate[0])!r})"


def pem_file(name: str, value: object) -> Path:
    """Return the path of a file in PEM form."""
    path = path_of(value)
    if path is None:
        raise InvalidArgumentError(name, value, "the path of a file in PEM form")
    return path


def _source(token: object) -> str | Path | Callable[[], str | Awaitable[str]]:
    """Return a token, a path or a function; text may be ``token:...`` or ``file:///...``, as in other clients."""
    if not isinstance(token, str) and (path := path_of(token)) is not None:
        return path
    if callable(token):
        return token
    if not is_text(token) or not token:
        raise InvalidArgumentError("token", type(token), "a token, the Path of a file, or a function")
    if token.startswith("file:"):
        return Path(token.removeprefix("file:").removeprefix("//"))
    return token.removeprefix("token:")


def _read_file(path: Path) -> str:
    try:
        if not path.is_file():  # a pipe could block the thread, and the program's exit
            raise InvalidArgumentError("token", str(path), "the path of a file with a token, but there is no file")
        with path.open("rb") as file:
            content = file.read(_MAX_TOKEN_BYTES + 1)
        if len(content) > _MAX_TOKEN_BYTES:
            raise InvalidArgumentError("token", str(path), f"a file of at most {_MAX_TOKEN_BYTES} bytes")
        return content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError("token", str(path), f"a file with a token in it ({error})") from error
