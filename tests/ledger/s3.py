"""The part of Amazon S3 that the ledger uses, on loopback: conditional puts, ranges, lists, bulk deletes, errors."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class Bucket:
    """One bucket with faults on demand: ``answers`` are statuses of the next requests, before the server works."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.answers: list[int] = []
        self.lose: list[str] = []
        self.lock = threading.Lock()
        self.url = ""

    def options(self) -> dict[str, object]:
        """Return what a client needs to reach it."""
        return {
            "endpoint": self.url,
            "access_key_id": "AKIDKEY",
            "secret_access_key": "TOPSECRET",
            "region": "us-east-1",
            "client_options": {"allow_http": True},
            "retry_config": {"max_retries": 0},
        }


class Handler(BaseHTTPRequestHandler):
    """Answers for one bucket with the name ``bucket``."""

    bucket: Bucket
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # head and body of an answer in one packet

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""

    def handle_one(self) -> None:
        """Carry out any request."""
        parts = urlsplit(self.path)
        name, _, key = unquote(parts.path).lstrip("/").partition("/")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        query = {field: values[0] for field, values in parse_qs(parts.query, keep_blank_values=True).items()}
        bucket = self.bucket
        with bucket.lock:
            bucket.requests.append(f"{self.command} {key or 'bucket'}")
            if bucket.answers:
                return self.answer(bucket.answers.pop(0), b"<Error><Code>Told</Code><Message>told to</Message></Error>")
            if name != "bucket":
                return self.answer(404, b"<Error><Code>NoSuchBucket</Code><Message>no such bucket</Message></Error>")
            status, data, headers = self.carry_out(key, query, body)
            if self.command in bucket.lose:
                bucket.lose.remove(self.command)
                status, data, headers = 500, b"", {}
        return self.answer(status, data, headers)

    def carry_out(self, key: str, query: dict[str, str], body: bytes) -> tuple[int, bytes, dict[str, str]]:
        """Return status, body and headers."""
        objects = self.bucket.objects
        if self.command == "PUT":
            if self.headers.get("If-None-Match") == "*" and key in objects:
                return 412, b"<Error><Code>PreconditionFailed</Code></Error>", {}
            objects[key] = body
            return 200, b"", {"ETag": tag(body)}
        if self.command == "POST" and "delete" in query:
            names = re.findall(r"<Key>(.*?)</Key>", body.decode())
            for name in names:
                objects.pop(name, None)
            deleted = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in names)
            return 200, f"<DeleteResult>{deleted}</DeleteResult>".encode(), {}
        if self.command == "DELETE":
            objects.pop(key, None)
            return 204, b"", {}
        if not key:
            return 200, listing(objects, query.get("prefix", "")), {}
        if key not in objects:
            return 404, b"<Error><Code>NoSuchKey</Code></Error>", {}
        return self.part(objects[key])

    def part(self, data: bytes) -> tuple[int, bytes, dict[str, str]]:
        """Return an object, or the requested range of it."""
        headers = {"ETag": tag(data), "Last-Modified": "Sat, 01 Jan 2022 00:00:00 GMT"}
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if match is None:
            return 200, data, headers
        first, last = int(match[1]), min(int(match[2]), len(data) - 1)
        if first >= len(data):
            return 416, b"<Error><Code>InvalidRange</Code></Error>", {}
        return 206, data[first : last + 1], {**headers, "Content-Range": f"bytes {first}-{last}/{len(data)}"}

    def answer(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        """Send an answer."""
        self.send_response(status)
        for field, value in (headers or {}).items():
            self.send_header(field, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_PUT = do_DELETE = do_POST = do_HEAD = handle_one  # noqa: N815


def tag(data: bytes) -> str:
    """Return an entity tag."""
    return f'"{md5(data).hexdigest()}"'


def listing(objects: dict[str, bytes], prefix: str) -> bytes:
    """Return the answer to a list."""
    found = "".join(
        f"<Contents><Key>{escape(key)}</Key><Size>{len(data)}</Size><ETag>{escape(tag(data))}</ETag>"
        "<LastModified>2022-01-01T00:00:00.000Z</LastModified></Contents>"
        for key, data in sorted(objects.items())
        if key.startswith(prefix)
    )
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>".encode()


@contextmanager
def serve() -> Iterator[Bucket]:
    """Serve a bucket on loopback for as long as this is open."""
    bucket = Bucket()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OneBucket", (Handler,), {"bucket": bucket}))
    server.daemon_threads = True
    bucket.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield bucket
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
