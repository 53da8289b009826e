"""A store's error becomes a clear error without secrets, on S3 (served on loopback), local and in memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from obstore.store import AzureStore, GCSStore, HTTPStore, LocalStore, MemoryStore, S3Store

from pulsar_nack.backoff import Fixed
from pulsar_nack.errors import InvalidArgumentError, LogFencedError, LogStorageError
from pulsar_nack.ledger import ObjectLogStore
from pulsar_nack.ledger._object_requests import as_client, describe, plain, without_secrets
from tests.for_each import for_each

from .homes import content
from .s3 import Bucket, serve


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    """Serve a bucket."""
    with serve() as bucket:
        yield bucket


async def open_bucket(bucket: Bucket, name: str = "bucket", attempts: int = 2) -> ObjectLogStore:
    """Open a store of logs in the bucket."""
    options: dict[str, Any] = {"max_small_objects": 3, "attempts": attempts, "backoff": Fixed(0), **bucket.options()}
    return await ObjectLogStore.from_url(f"s3://{name}/team/x", **options)


async def test_logs_on_s3(bucket: Bucket) -> None:
    """Logs are kept on S3: merged, read, taken over, sealed and deleted; afterwards only one catalog is left."""
    async with await open_bucket(bucket) as store, await open_bucket(bucket) as other:
        log = await store.create("a")
        records = [b"%d" % number for number in range(20)]
        for record in records:
            await log.append(record)
        await log.append(b"x" * 600_000)
        assert await content(log) == [*records, b"x" * 600_000]
        taken = await other.open_log("a")
        with pytest.raises(LogFencedError):
            await log.append(b"y")
        assert await taken.append(b"z") == 21
        await taken.seal()
        assert await content(await store.open_log("a", read_only=True)) == [*records, b"x" * 600_000, b"z"]
        assert all(key.startswith("team/x/") for key in bucket.objects)
        await taken.delete()
        assert await store.names() == []
    assert [key.split("/")[2] for key in bucket.objects] == ["catalog"]


async def test_lost_answers_on_s3(bucket: Bucket) -> None:
    """A put whose answer is lost is found to be done, and not done twice."""
    async with await open_bucket(bucket) as store:
        log = await store.create("a")
        for number in range(10):
            bucket.lose = ["PUT"]
            assert await log.append(b"%d" % number) == number
        bucket.lose = ["PUT"]
        await log.seal()
        assert await content(log) == [b"%d" % number for number in range(10)]


async def test_errors_that_pass(bucket: Bucket) -> None:
    """A busy server is asked again, as often as configured; then the append fails, and the next one works."""
    async with await open_bucket(bucket, attempts=3) as store:
        log = await store.create("a")
        bucket.answers = [503, 500]
        assert await log.append(b"x") == 0
        bucket.answers = [503] * 3
        with pytest.raises(LogStorageError, match=r"log a: cannot append: .*s3://bucket/team/x"):
            await log.append(b"lost")
        assert bucket.answers == []
        assert await log.append(b"y") == 1
        assert await content(log) == [b"x", b"y"]


async def test_no_rights(bucket: Bucket) -> None:
    """A refusal is not retried, and the error names the store, and no secret."""
    for status in (401, 403):
        bucket.answers, bucket.requests = [status] * 9, []
        with pytest.raises(LogStorageError, match=r"log s3://bucket/team/x: cannot open the store: .*") as caught:
            await open_bucket(bucket)
        assert len(bucket.requests) == 1
        shows_no_secret(caught.value)
        bucket.answers = []
    async with await open_bucket(bucket) as store:
        log = await store.create("a")
        bucket.answers, bucket.requests = [403], []
        with pytest.raises(LogStorageError, match=r"log a: cannot append: .*s3://bucket/team/x") as caught:
            await log.append(b"x")
        assert len(bucket.requests) == 1
        shows_no_secret(caught.value)
        assert await log.append(b"y") == 0


async def test_no_bucket(bucket: Bucket) -> None:
    """A missing bucket is reported when the store is opened."""
    with pytest.raises(LogStorageError, match=r"log s3://missing/team/x: cannot open the store: .*") as caught:
        await open_bucket(bucket, "missing")
    shows_no_secret(caught.value)


async def test_no_server() -> None:
    """A server that cannot be reached does not block the opening."""
    unreachable = Bucket()
    unreachable.url = "http://127.0.0.1:9"
    with pytest.raises(LogStorageError, match=r"s3://bucket/team/x: cannot open the store: .*127\.0\.0\.1:9") as caught:
        await open_bucket(unreachable)
    shows_no_secret(caught.value)


def shows_no_secret(error: BaseException) -> None:
    """Assert that an error's text contains no key."""
    assert "TOPSECRET" not in str(error)
    assert "AKIDKEY" not in str(error)
    assert "\n" not in str(error)


@for_each("url", ["", "bucket/path", "/a/folder", None, 5, b"s3://x"])
async def test_bad_urls(url: object) -> None:
    """Invalid URLs are refused."""
    with pytest.raises(InvalidArgumentError, match="url"):
        await ObjectLogStore.from_url(url)  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["foo://me:TOPSECRET@x/y?token=TOPSECRET", "https://me:TOPSECRET@host/x"])
async def test_urls_of_no_store(url: str) -> None:
    """A URL of an unknown or unsuitable kind of store is refused without its secrets."""
    with pytest.raises((LogStorageError, InvalidArgumentError)) as caught:
        await ObjectLogStore.from_url(url)
    assert "TOPSECRET" not in str(caught.value)


async def test_wrong_options() -> None:
    """Options that the store does not accept are refused by name."""
    with pytest.raises(LogStorageError, match=r"cannot open the store.*wrong_option"):
        await ObjectLogStore.from_url("s3://bucket/x", wrong_option="1")


async def test_urls_of_local_stores(tmp_path: Path) -> None:
    """A folder and memory have URLs too; the folder is created, and empty when all is deleted."""
    for url in (f"file://{tmp_path}/some/logs", "memory:///"):
        async with await ObjectLogStore.from_url(url) as store:
            log = await store.create("a#1")
            await log.append(b"x")
            assert await content(await store.open_log("a#1", read_only=True)) == [b"x"]
            await log.delete()
            assert await store.names() == []
    assert [path.name for path in (tmp_path / "some" / "logs").iterdir()] == ["catalog"]


async def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    """A path that cannot be a folder raises a clear error."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(LogStorageError, match=r"cannot open the store"):
        await ObjectLogStore.from_url(f"file://{tmp_path}/file/logs")
    assert (tmp_path / "file").read_text() == "mine"


@for_each(
    ("settings", "field"),
    [
        ({"prefix": "/a"}, "prefix"),
        ({"prefix": "a/../b"}, "prefix"),
        ({"prefix": None}, "prefix"),
        ({"max_object_bytes": 1}, "max_object_bytes"),
        ({"max_small_objects": 1}, "max_small_objects"),
        ({"threads": 0}, "threads"),
        ({"attempts": 0}, "attempts"),
        ({"attempts": True}, "attempts"),
        ({"backoff": "soon"}, "backoff"),
    ],
)
async def test_bad_settings(settings: dict[str, object], field: str) -> None:
    """Invalid settings are refused by name."""
    with pytest.raises(InvalidArgumentError, match=field):
        await ObjectLogStore.open(MemoryStore(), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("store", [None, "s3://x", object(), HTTPStore("http://127.0.0.1:9")])
async def test_what_is_no_store(store: object) -> None:
    """Only stores that can create an object if it does not exist are accepted."""
    with pytest.raises(InvalidArgumentError, match="store: expected an S3"):
        await ObjectLogStore.open(store)  # type: ignore[arg-type]


async def test_prefixes() -> None:
    """Log stores with different prefixes do not see each other."""
    objects = MemoryStore()
    async with await ObjectLogStore.open(objects, prefix="a") as first, await ObjectLogStore.open(objects) as second:
        await first.create("x")
        async with await ObjectLogStore.open(objects, prefix="a/b") as third:
            assert (await first.names(), await second.names(), await third.names()) == (["x"], [], [])
    assert {item["path"].partition("/")[0] for item in objects.list().collect()} == {"a"}


def test_descriptions(tmp_path: Path) -> None:
    """Each kind of store is named by a URL without keys."""
    assert describe(MemoryStore()) == "memory://"
    assert describe(LocalStore(tmp_path)) == f"file://{tmp_path}"
    assert describe(S3Store("b", prefix="p/q", access_key_id="K", secret_access_key="S")) == "s3://b/p/q"
    assert describe(GCSStore("b", prefix="p", skip_signature=True)) == "gs://b/p"
    assert describe(AzureStore("c", account_name="x", account_key="U0VDUkVU")) == "az://c"


def test_texts_without_secrets() -> None:
    """User names, passwords and queries are removed from URLs, wherever they are in a text."""
    said = "GET https://me:pw@host/a?sig=S%3D&x=1, then http://host/b?token=T (failed)"
    assert without_secrets(said) == "GET https://host/a, then http://host/b (failed)"
    assert plain(OSError("one\ntwo\n\nDebug source:\nthree")) == "one two"
    assert plain(OSError()) == "OSError"


def test_objects_of_objects() -> None:
    """An object that makes requests itself is used as it is."""
    objects = as_client(MemoryStore())
    assert as_client(objects) is objects


@pytest.mark.slow
def test_without_obstore() -> None:
    """The ledger can be imported without obstore, and the object store names the extra."""
    code = (
        "import asyncio, sys\n"
        "sys.modules['obstore'] = None\n"
        "from pulsar_nack import MissingExtraError\n"
        "from pulsar_nack.ledger import LocalLogStore, ObjectLogStore\n"
        "for opening in (ObjectLogStore.open(object()), ObjectLogStore.from_url('memory:///')):\n"
        "    try:\n"
        "        asyncio.run(opening)\n"
        "    except MissingExtraError as error:\n"
        "        print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    line = "the ledger on object storage needs obstore>=0.6: pip install 'pulsar-nack[object]'\n"
    assert said.stdout == 2 * line
