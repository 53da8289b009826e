"""Token issuers on loopback; each test decides on their every byte."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final
from urllib.parse import parse_qsl

from pulsar_nack.wire._connection._oauth2 import OAuth2Authentication
from tests.patience import patience

SECRET: Final = "s3cr3t/+ of mine"
Serve = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def answer(body: object, status: str = "200 OK", *headers: str) -> bytes:
    """Return an answer with a body, as JSON or as it is."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(content)}", *headers, "", ""]
    return "\r\n".join(head).encode("latin-1") + content


def chunked(*chunks: bytes) -> bytes:
    """Return an answer in chunks."""
    parts = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + parts + b"0\r\n\r\n"


def host(head: bytes) -> str:
    """Return the host that a request names."""
    return head.partition(b"Host: ")[2].partition(b":")[0].decode()


@contextlib.asynccontextmanager
async def issuer(serve: Serve, *, tls: ssl.SSLContext | None = None, scheme: str = "http") -> AsyncIterator[str]:
    """Serve an issuer that describes itself as usual; ``serve`` answers requests for tokens, with the form."""
    writers: list[asyncio.StreamWriter] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET /.well-known/openid-configuration "):
                writer.write(answer({"token_endpoint": f"{url.replace('localhost', host(head))}/token"}))
            else:
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                await serve(await reader.readexactly(length), reader, writer)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "localhost", 0, ssl=tls)
    url = f"{scheme}://localhost:{server.sockets[0].getsockname()[1]}"
    try:
        yield url
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0.01)


def authentication(url: str, **settings: Any) -> OAuth2Authentication:
    """Return credentials for an issuer."""
    return OAuth2Authentication(url, "me", SECRET, **{"timeout": patience(5), **settings})


def saying(*pieces: bytes, each_s: float | None = None) -> Serve:
    """Return an issuer that always gives the same answer; with ``each_s`` it repeats the last piece for ever."""

    async def serve(_form: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
        while each_s is not None:
            await writer.drain()
            await asyncio.sleep(each_s)
            writer.write(pieces[-1])

    return serve


class Tokens:
    """Answers with tokens ``token-1``, ``token-2``, ..., or with a given answer."""

    def __init__(self, expires_in: int | None = 100) -> None:
        self.forms: list[dict[str, str]] = []
        self.said: bytes | None = None
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self._expires_in = expires_in

    async def __call__(self, form: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        self.forms.append(dict(parse_qsl(form.decode())))
        await self.may_answer.wait()
        token = {"access_token": f"token-{len(self.forms)}", "token_type": "Bearer", "expires_in": self._expires_in}
        writer.write(self.said or answer(token))
