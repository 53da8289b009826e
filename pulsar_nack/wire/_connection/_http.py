"""One HTTP request on the event loop, without a thread, so that cancellation ends it at once.

The response's size is checked before it is read, and errors never quote the response.
"""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
import urllib.request
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

_MAX_HEAD_BYTES: Final = 1 << 15
_CHUNKS_AT_ONCE: Final = 64
_STATUS: Final = re.compile(rb"HTTP/1\.[0-9] ([0-9]{3})(?: .*)?", re.DOTALL)
_LENGTH: Final = re.compile(rb"[0-9]{1,10}")
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;.*)?\r\n", re.DOTALL)

_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_Headers = dict[bytes, bytes]


async def fetch(url: str, form: bytes | None, *, tls: ssl.SSLContext | None, most_bytes: int) -> tuple[int, bytes]:
    """Get a URL, or post a form to it; return the response's status and body.

    https goes through the proxy of the environment. Redirects are not followed.

    :param tls: the context for https, None for http
    :param most_bytes: limit of the response's body
    :raises OSError: the server cannot be reached, or closed the connection early
    :raises ValueError: the response is not HTTP, or too large
    """
    parts = urlsplit(url)
    reader, writer = await _connect(parts, tls)
    try:
        writer.write(_request(parts, form))
        status, headers = await _head(reader)
        while 100 <= status < 200:  # interim: the final response follows
            status, headers = await _head(reader)
        return status, await _body(reader, headers, most_bytes)
    except asyncio.IncompleteReadError:
        raise ConnectionResetError("the connection ended in the middle of the answer") from None
    except asyncio.LimitOverrunError:
        raise ValueError("headers or chunk lengths that are too long") from None
    finally:
        writer.transport.abort()


def _request(parts: SplitResult, form: bytes | None) -> bytes:
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = [
        f"{'GET' if form is None else 'POST'} {target} HTTP/1.1",
        f"Host: {parts.netloc}",
        "User-Agent: pulsar-nack",
    ]
    lines += ["Accept: application/json", "Accept-Encoding: identity", "Connection: close"]
    if form is not None:
        lines += ["Content-Type: application/x-www-form-urlencoded", f"Content-Length: {len(form)}"]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + (form or b"")


# --- connecting ------------------------------------------------------------------------------------------------------


async def _connect(parts: SplitResult, tls: ssl.SSLContext | None) -> _Streams:
    host = parts.hostname or ""
    port = parts.port or (80 if tls is None else 443)
    proxy = None if tls is None or urllib.request.proxy_bypass(host) else urllib.request.getproxies().get("https")
    if proxy is not None:
        assert tls is not None
        return await _through(urlsplit(proxy if "://" in proxy else f"http://{proxy}"), host, port, tls)
    return await asyncio.open_connection(host, port, ssl=tls, limit=_MAX_HEAD_BYTES)


async def _through(proxy: SplitResult, host: str, port: int, tls: ssl.SSLContext) -> _Streams:
    if proxy.scheme != "http" or not proxy.hostname:
        raise ConnectionError("the proxy of the environment is not an http:// URL")
    reader, writer = await asyncio.open_connection(proxy.hostname, proxy.port or 80, limit=_MAX_HEAD_BYTES)
    try:
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        lines = [f"CONNECT {place} HTTP/1.1", f"Host: {place}"]
        if proxy.username is not None:
            user = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
            lines.append(f"Proxy-Authorization: Basic {base64.b64encode(user).decode()}")
        writer.write("\r\n".join([*lines, "", ""]).encode("ascii"))
        _check_tunnel(*await _head(reader))
        await writer.start_tls(tls, server_hostname=host)
    except BaseException:
        writer.transport.abort()
        raise
    return reader, writer


def _check_tunnel(status: int, _headers: _Headers) -> None:
    if status != 200:
        raise ConnectionError(f"the proxy of the environment says {status}")


# --- the response ----------------------------------------------------------------------------------------------------


async def _head(reader: asyncio.StreamReader) -> tuple[int, _Headers]:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head[:-4].split(b"\r\n")
    match = _STATUS.fullmatch(first)
    if match is None:
        raise ValueError("an answer that is not HTTP")
    named = (line.partition(b":") for line in lines)
    return int(match[1]), {name.strip().lower(): value.strip() for name, _, value in named}


async def _body(reader: asyncio.StreamReader, headers: _Headers, most: int) -> bytes:
    if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        return await _chunks(reader, most)
    length = headers.get(b"content-length")
    if length is not None:
        if not _LENGTH.fullmatch(length):
            raise ValueError("a length that is no number")
        return await reader.readexactly(_bounded(int(length), most))
    body = bytearray()
    while piece := await reader.read(_MAX_HEAD_BYTES):
        body += piece
        _bounded(len(body), most)
    return bytes(body)


async def _chunks(reader: asyncio.StreamReader, most: int) -> bytes:
    body = bytearray()
    chunks = 0
    while True:
        match = _CHUNK.fullmatch(await reader.readuntil(b"\r\n"))
        if match is None:
            raise ValueError("a chunk without a length")
        size = int(match[1], 16)
        if not size:
            return bytes(body)
        _bounded(len(body) + size, most)
        body += (await reader.readexactly(size + 2))[:-2]
        chunks += 1
        if chunks % _CHUNKS_AT_ONCE == 0:
            await asyncio.sleep(0)  # reading buffered data does not yield to other tasks


def _bounded(size: int, most: int) -> int:
    if size > most:
        raise ValueError(f"more than {most} bytes")
    return size
