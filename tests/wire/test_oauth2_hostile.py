"""Issuers that drip, hang, lie or echo: one timeout, no thread, our own errors that quote nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest

from pulsar_nack.errors import BrokerError, InvalidArgumentError
from pulsar_nack.wire._connection._oauth2 import OAuth2Authentication
from tests.for_each import for_each
from tests.patience import patience
from tests.processes import run_python
from tests.wire.conftest import Files
from tests.wire.issuers import SECRET, answer, authentication, chunked, issuer, saying

# -- time -----------------------------------------------------------------------------------------------------------

CHUNKED: Final = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
DRIPS: Final = [
    saying(b"", each_s=0.02),
    saying(b"H", each_s=0.02),
    saying(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n", each_s=0.02),
    saying(b"HTTP/1.1 100 Continue\r\n\r\n", each_s=0.02),
    saying(b"HTTP/1.1 200 OK\r\n\r\n", b" ", each_s=0.02),
    saying(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b" ", each_s=0.02),
    saying(CHUNKED, b"1\r\n \r\n", each_s=0.02),
    saying(CHUNKED, b"0", each_s=0.02),
]


async def test_an_issuer_that_drips() -> None:
    """O35: if bytes arrive one at a time, the request ends with its timeout, and never needs a thread."""

    async def give_up(url: str) -> None:
        begun = asyncio.get_running_loop().time()
        with pytest.raises(BrokerError, match=r"no whole answer within 0\.25 s"):
            await authentication(url.replace("localhost", "127.0.0.1"), timeout=0.25).data(None)
        assert asyncio.get_running_loop().time() - begun < patience(2)

    async with contextlib.AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(issuer(serve)) for serve in DRIPS]
        threads = set(threading.enumerate())
        giving_up = asyncio.gather(*map(give_up, urls))
        await asyncio.sleep(0.1)
        assert set(threading.enumerate()) == threads
        await giving_up
    assert not any("OAuth2" in task.get_name() for task in asyncio.all_tasks())


async def test_a_server_that_is_silent() -> None:
    """O35: opening the connection counts: TLS without an answer, and a description that does not arrive."""
    silent: list[asyncio.StreamWriter] = []

    async def hang(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        silent.append(writer)

    server = await asyncio.start_server(hang, "localhost", 0)
    there = f"localhost:{server.sockets[0].getsockname()[1]}"
    for scheme in ("http", "https"):
        mine = authentication(f"{scheme}://{there}", timeout=0.1, tls=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        with pytest.raises(BrokerError, match=r"no whole answer within 0\.1 s"):
            await mine.data(None)
    server.close()
    for writer in silent:
        writer.close()


PROGRAM: Final = """
import asyncio, sys
from pulsar_nack.wire import OAuth2Authentication

async def main():
    try:
        await asyncio.wait_for(OAuth2Authentication(sys.argv[1], "id", "secret", timeout=3600).data(None), 0.3)
    except TimeoutError:
        print("gave up", flush=True)

asyncio.run(main())
"""


@pytest.mark.smoke
def test_a_program_ends(tmp_path: Path) -> None:
    """O35: a program that has given up ends at once, though the issuer drips for an hour."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)

    def drip() -> None:
        connection, _ = there.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                connection.sendall(b" ")
                time.sleep(0.1)

    with socket.create_server(("127.0.0.1", 0)) as there:
        dripping = threading.Thread(target=drip)
        dripping.start()
        done = run_python(script, f"http://127.0.0.1:{there.getsockname()[1]}")
        dripping.join()
    assert (done.returncode, done.stdout, done.stderr) == (0, "gave up\n", "")


# -- callers that share a request -----------------------------------------------------------------------------------


class Recovering:
    """An issuer that hangs at its first requests, then works."""

    def __init__(self, stuck: int = 1) -> None:
        self.forms = 0
        self.came = asyncio.Event()
        self._stuck = stuck

    async def __call__(self, _form: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, or wait until its caller gives up."""
        self.forms += 1
        self.came.set()
        if self.forms <= self._stuck:
            await reader.read()
        else:
            writer.write(answer({"access_token": f"token-{self.forms}", "expires_in": 100}))


async def test_a_stuck_request_that_nobody_waits_for() -> None:
    """O35: when the last caller gives up the request ends, and the next caller makes a new one."""
    serve = Recovering()
    async with issuer(serve) as url:
        mine = authentication(url, timeout=3600)
        first = [asyncio.create_task(mine.data(None)) for _ in range(2)]
        await serve.came.wait()
        for task in first:
            task.cancel()
        await asyncio.gather(*first, return_exceptions=True)
        async with asyncio.timeout(patience(5)):
            assert await mine.data(None) == b"token-2"
    assert not any("OAuth2" in task.get_name() for task in asyncio.all_tasks())


async def test_a_stuck_request_that_others_joined() -> None:
    """O35: the first caller gets the timeout; later callers then share one new request."""
    serve = Recovering()
    async with issuer(serve) as url:
        mine = authentication(url, timeout=0.5)
        first = asyncio.create_task(mine.data(None))
        await serve.came.wait()
        later = await asyncio.gather(*(mine.data(None) for _ in range(5)))
        assert later == [b"token-2"] * 5
        with pytest.raises(BrokerError, match="no whole answer"):
            await first
        assert serve.forms == 2
        assert await mine.data(None) == b"token-2"


async def test_an_issuer_that_stays_stuck() -> None:
    """O35: callers that joined ask once more, not for ever."""
    serve = Recovering(stuck=100)
    async with issuer(serve) as url:
        mine = authentication(url, timeout=0.2)
        got = await asyncio.gather(*(mine.data(None) for _ in range(5)), return_exceptions=True)
        assert [type(error) for error in got] == [BrokerError] * 5
        assert serve.forms == 2


# -- lies -----------------------------------------------------------------------------------------------------------

TOKEN: Final = {"access_token": "a", "expires_in": 100}
LIES: Final[list[bytes]] = [
    b"",
    b"\r\n\r\n",
    b"SSH-2.0-x\r\n\r\n",
    b"HTTP/1.1 2000 OK\r\n\r\n",
    b"HTTP/1.1 200",
    b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000 + b"\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\n\r\n" + b" " * 1_000_000,
    CHUNKED + b"-1\r\n{}",
    CHUNKED + b"0x2\r\n{}\r\n0\r\n\r\n",
    CHUNKED + b"ffffffff\r\n{}",
    CHUNKED + b"2\r\n{",
    CHUNKED + b"1;" + b"x" * 100_000,
    chunked(*[b" " * 1000] * 1000),
    answer(b"\xff\xfe"),
    answer(b"[" * 100_000),
    answer(b'{"access_token":' * 20_000),
    answer(b"1" * 10_000),
    answer("a"),
    answer({"access_token": ""}),
    answer({"access_token": 5}),
    answer({"access_token": "\ud800"}),
    answer({"access_token": "a\r\nb"}),
    answer({"access_token": "\u00e9"}),
    answer(TOKEN, "204 No Content"),
    answer({"error": []}, "400 Bad Request"),
    answer({"error": {}}, "400 Bad Request"),
    answer(TOKEN, "301 Moved", "Location: https://elsewhere"),
]


async def test_whatever_an_issuer_answers() -> None:
    """O35: every answer that is not a token raises one of our errors."""
    for lie in LIES:
        async with issuer(saying(lie)) as url:
            with pytest.raises(BrokerError, match="the issuer of tokens gives none"):
                await authentication(url).data(None)


ADDRESSES: Final = [
    "http://[",
    "https://x:99999999/",
    "https://x:0/",
    "https://u:p@x/",
    "https://x/#a",
    "https://x /y",
    "http://x/",
    "ftp://x",
    3.14159,
]


@for_each("description", [{}, b"?", *({"token_endpoint": address} for address in ADDRESSES)])
def test_addresses_that_are_none(description: Any) -> None:
    """O35: so does an invalid token endpoint, to which the secret is not sent."""

    async def main() -> None:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer(description))
            writer.close()

        server = await asyncio.start_server(handle, "localhost", 0)
        url = f"http://localhost:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(BrokerError, match=r"token_endpoint|not a JSON object") as caught:
            await authentication(url).data(None)
        if isinstance(description, dict) and description:
            assert str(description["token_endpoint"]) not in str(caught.value)
        server.close()

    asyncio.run(main())


@for_each("expires_in", [10**400, "x", None, -1, [], {}, True, 1e400])
def test_lives_that_are_none(expires_in: Any) -> None:
    """A lifetime that is not a number of seconds is ignored: the token is used once."""

    async def main() -> None:
        async with issuer(saying(answer({"access_token": "a", "expires_in": expires_in}))) as url:
            assert await authentication(url).data(None) == b"a"

    asyncio.run(main())


async def test_answers_in_chunks() -> None:
    """Chunks of any size are joined; interim responses are skipped."""
    body = json.dumps({"access_token": "x" * 5_000, "expires_in": 5}).encode()
    pieces = [body[at : at + 7] for at in range(0, len(body), 7)]
    for said in (chunked(body), chunked(*pieces), b"HTTP/1.1 103 Early Hints\r\n\r\n" + chunked(body)):
        async with issuer(saying(said)) as url:
            assert await authentication(url).data(None) == b"x" * 5_000


# -- echoes ---------------------------------------------------------------------------------------------------------


def echoes(form: str) -> Iterator[bytes]:
    """Return answers that repeat the request, wherever an answer can."""
    for status in ("200 OK", "400 Bad Request", f"400 {form}", f"599 {form}"):
        for body in (form, {"error": form}, {"error": "invalid_client", "error_description": form}, [form]):
            yield answer(body, status, f"X-Echo: {form}")
    yield form.encode()
    yield f"{form}\r\n\r\n".encode()
    yield f"HTTP/1.1 200 OK\r\nContent-Length: {form}\r\n\r\n".encode()
    yield CHUNKED + form.encode() + b"\r\n"
    yield answer(form.encode()[:-5] + b"\xff")


async def test_a_form_that_is_echoed() -> None:
    """O35, O37: no error quotes it, nor does its traceback or its cause."""
    for form in (SECRET, f"client_secret={quote(SECRET)}"):
        for said in echoes(form):
            async with issuer(saying(said)) as url:
                with pytest.raises(BrokerError) as caught:
                    await authentication(url).data(None)
                text = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
                assert form not in text
                assert "s3cr3t" not in text


@for_each("url", ["https://me:s3cr3t@issuer", "https://issuer?client_secret=s3cr3t\n", "http://me:s3cr3t@issuer"])
def test_an_issuer_with_a_password(url: str) -> None:
    """O37: a URL with a password is refused, and not quoted."""
    with pytest.raises(InvalidArgumentError, match="issuer_url") as caught:
        OAuth2Authentication(url, "me", "x")
    assert "s3cr3t" not in str(caught.value)
    assert "s3cr3t" not in repr(caught.value.value)


@for_each(
    ("field", "value"),
    [
        *(("issuer_url", url) for url in ("http://issuer.example.com", "issuer", "", "ftp://x", 3)),
        ("client_secret", 5),
        ("client_secret", ""),
        ("client_secret", "\ud800"),
        ("client_id", b"me"),
        ("client_id", ""),
        ("audience", 5),
        ("scope", ["a"]),
        ("tls", True),
        ("timeout", 0),
        ("timeout", -1),
        ("timeout", float("nan")),
        ("timeout", True),
        ("timeout", "10"),
    ],
)
def test_wrong_arguments(field: str, value: object) -> None:
    """An invalid argument is named."""
    arguments: dict[str, Any] = {"issuer_url": "https://issuer", "client_id": "me", "client_secret": "x", field: value}
    with pytest.raises(InvalidArgumentError, match=field) as caught:
        OAuth2Authentication(**arguments)
    assert caught.value.field == field


def test_key_files_say_nothing_of_what_is_in_them(tmp_path: Path) -> None:
    """O37: an error does not quote an invalid file; a pipe does not block."""
    file, pipe = tmp_path / "key", tmp_path / "pipe"
    os.mkfifo(pipe)
    for content in (b'{"client_secret": "s3cr3t"', b"\xff s3cr3t", b"[" * 100_000):
        file.write_bytes(content)
        with pytest.raises(InvalidArgumentError, match="path") as caught:
            OAuth2Authentication.from_key_file(file)
        assert "s3cr3t" not in "".join(traceback.format_exception(caught.value))
    for path in (pipe, tmp_path, "\0", 5):
        with pytest.raises(InvalidArgumentError, match="path"):
            OAuth2Authentication.from_key_file(path)  # type: ignore[arg-type]


# -- TLS ------------------------------------------------------------------------------------------------------------


async def test_a_context_is_made_once_and_for_https_alone(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Creating it takes long: none for plain http, and one for all requests over https."""
    made: list[ssl.SSLContext] = []

    def make() -> ssl.SSLContext:
        made.append(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        made[-1].load_verify_locations(files.authority.certificate)
        return made[-1]

    monkeypatch.setattr(ssl, "create_default_context", make)
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(*files.server)
    async with issuer(saying(answer({"access_token": "a"}))) as plain:
        assert await authentication(plain).data(None) == b"a"
        assert made == []
    async with issuer(saying(answer({"access_token": "a"})), tls=served, scheme="https") as url:
        mine = authentication(url)
        assert [await mine.data(None) for _ in range(3)] == [b"a"] * 3
        assert len(made) == 1
        stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        with pytest.raises(BrokerError, match="its certificate is not trusted: "):
            await authentication(url, tls=stranger).data(None)


async def test_the_environments_proxy(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """An https issuer is reached through the environment's proxy, with its user; an http issuer never is."""
    asked: list[bytes] = []
    may_pass = True

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            if not may_pass:
                writer.write(answer(b"s3cr3t", "407 Proxy Authentication Required"))
                writer.close()
                return
            there = await asyncio.open_connection("localhost", int(asked[-1].split()[1].rpartition(b":")[2]))
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))

    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.load_verify_locations(files.authority.certificate)
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(*files.server)
    server = await asyncio.start_server(proxy, "localhost", 0)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("https_proxy", f"http://us%20er:pass@localhost:{server.sockets[0].getsockname()[1]}")
    async with issuer(saying(answer(TOKEN)), tls=served, scheme="https") as url:
        assert await authentication(url, tls=trusting).data(None) == b"a"
        assert len(asked) == 2
        assert asked[0].startswith(f"CONNECT {url.removeprefix('https://')} HTTP/1.1\r\n".encode())
        assert b"\r\nProxy-Authorization: Basic dXMgZXI6cGFzcw==\r\n" in asked[0]
        may_pass = False
        with pytest.raises(BrokerError, match="the proxy of the environment says 407") as caught:
            await authentication(url, tls=trusting).data(None)
        assert "pass" not in str(caught.value)
    async with issuer(saying(answer(TOKEN))) as url:
        assert await authentication(url).data(None) == b"a"
    assert len(asked) == 3
    server.close()
