"""Requests to an object store: the interface, obstore behind it, and retries; blocking, for any thread.

Only five kinds of request are used: create an object that must not exist, read a part of one, list a folder, delete.
They raise system errors: ``FileExistsError``, ``FileNotFoundError``, ``PermissionError`` where retrying is useless, and
any other ``OSError`` where it may help.

A put that failed may have been carried out, or may still be: the head of an object has random bytes, so reading it
shows whether the object is ours. A put that is repeated changes nothing if the first one went through.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, runtime_checkable
from urllib.parse import urlsplit
from urllib.request import url2pathname

from .._delays import delay_seconds
from ..backoff import Backoff, Exponential, as_backoff
from ..errors import InvalidArgumentError, LogStorageError, MissingExtraError
from .files import PRIVATE_FOLDER

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_T = TypeVar("_T")
_HEAD: Final = 256
_NO_RETRY: Final = (FileExistsError, FileNotFoundError, PermissionError)
ALL: Final = 1 << 40
_LOCAL: Final = ("file", "memory")
_REFUSED: Final = re.compile(r"status code: (301|401|403|404|405|501)\b")  # of lists, which have no exception class
_RETRIES: Final[dict[str, Any]] = {"max_retries": 3}


@runtime_checkable
class ObjectStoreClient(Protocol):
    """The requests that an object store must answer. Keys are paths with slashes; an answered put is durable."""

    @property
    def url(self) -> str:
        """Return the store's URL, without secrets."""
        ...

    def create(self, key: str, data: bytes) -> None:
        """Write a whole object, or nothing.

        :raises FileExistsError: the object exists; it was not changed
        """
        ...

    def get(self, key: str, start: int, length: int) -> bytes:
        """Read a part of an object; fewer bytes at its end.

        :raises FileNotFoundError: there is no such object
        """
        ...

    def list(self, folder: str) -> dict[str, int]:
        """Return the keys of all objects below a folder, relative to it, and their sizes in bytes."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects in any order; missing ones are ignored."""
        ...


class ObstoreClient:
    """The requests of a store of obstore."""

    def __init__(self, store: ObjectStore) -> None:
        import obstore

        self._obstore = obstore
        self._store = store
        self.url = describe(store)

    def create(self, key: str, data: bytes) -> None:
        """Put with ``mode="create"``."""
        try:
            with _system_errors(self.url):
                self._obstore.put(self._store, key, data, mode="create", use_multipart=False)
        except FileNotFoundError as error:  # not the object, but the bucket
            raise PermissionError(f"{error} ({self.url})") from error

    def get(self, key: str, start: int, length: int) -> bytes:
        """Get a range; a store refuses one that begins behind the end."""
        try:
            with _system_errors(self.url):
                return bytes(self._obstore.get_range(self._store, key, start=start, length=length))
        except FileNotFoundError:
            raise
        except OSError:
            with _system_errors(self.url):
                size = self._obstore.head(self._store, key)["size"]
            if start < size:
                raise
            return b""

    def list(self, folder: str) -> dict[str, int]:
        """List by prefix."""
        begin = f"{folder}/"
        with _system_errors(self.url):
            found = self._obstore.list(self._store, folder or None).collect()
        return {item["path"].removeprefix(begin): item["size"] for item in found}

    def delete(self, keys: Sequence[str]) -> None:
        """Delete in bulk if the store can; a local one refuses missing objects."""
        try:
            with _system_errors(self.url):
                self._obstore.delete(self._store, list(keys))
        except FileNotFoundError:
            for key in keys:
                self._delete(key)

    def _delete(self, key: str) -> None:
        try:
            with _system_errors(self.url):
                self._obstore.delete(self._store, key)
        except FileNotFoundError:
            return


class RetryingClient:
    """Requests below a prefix, each repeated if it fails.

    :param attempts: how often a request is made at most
    :param backoff: how long to wait between attempts
    """

    def __init__(
        self,
        client: ObjectStoreClient,
        prefix: str = "",
        *,
        attempts: int = 5,
        backoff: Backoff | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._client = client
        self._prefix = f"{prefix}/" if prefix else ""
        self._attempts = attempts
        self._backoff = Exponential(0.1, 5.0) if backoff is None else as_backoff(backoff)
        self._sleep = sleep

    @property
    def url(self) -> str:
        """Return the URL of the prefix, without secrets."""
        return f"{self._client.url.rstrip('/')}/{self._prefix}".rstrip("/") if self._prefix else self._client.url

    def create(self, key: str, data: bytes) -> bool:
        """Write an object; return whether the one that exists now is this one, or was until it was deleted.

        :raises OSError: it is not known whether the object was written, or will be
        """
        try:
            self._retry(lambda: self._client.create(self._prefix + key, data))
        except FileExistsError:
            try:
                return self.is_same(key, data)
            except FileNotFoundError:
                return False
        return True

    def is_same(self, key: str, data: bytes) -> bool:
        """Return whether an object has these bytes, by its random head.

        :raises FileNotFoundError: there is no such object
        """
        return self.get(key, 0, _HEAD) == data[:_HEAD]

    def get(self, key: str, start: int = 0, length: int = ALL) -> bytes:
        """Read a part of an object."""
        return self._retry(lambda: self._client.get(self._prefix + key, start, length))

    def list(self, folder: str) -> dict[str, int]:
        """Return the keys below a folder, relative to it, with their sizes."""
        return self._retry(lambda: self._client.list(self._prefix + folder))

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects in any order."""
        if keys:
            self._retry(lambda: self._client.delete([self._prefix + key for key in keys]))

    def delete_in_order(self, keys: Sequence[str]) -> None:
        """Delete objects one after the other: if this fails, all objects before a deleted one are deleted."""
        for key in keys:
            self.delete([key])

    def pause(self, count: int) -> None:
        """Wait before retrying something that another process did first."""
        self._sleep(delay_seconds(self._backoff(count), "backoff") / 10)

    def _retry(self, request: Callable[[], _T]) -> _T:
        for attempt in range(self._attempts):
            try:
                return request()
            except _NO_RETRY:
                raise
            except OSError:
                if attempt + 1 == self._attempts:
                    raise
            self._sleep(delay_seconds(self._backoff(attempt), "backoff"))
        raise AssertionError("unreachable")


def as_client(store: object) -> ObjectStoreClient:
    """Return the client of a store of obstore, or ``store`` if it is a client itself.

    :raises MissingExtraError: obstore is not installed
    :raises InvalidArgumentError: it is neither
    """
    if isinstance(store, ObjectStoreClient):
        return store
    _need_obstore()
    from obstore.store import AzureStore, GCSStore, LocalStore, MemoryStore, S3Store

    if not isinstance(store, AzureStore | GCSStore | LocalStore | MemoryStore | S3Store):
        raise InvalidArgumentError("store", store, "an S3, GCS, Azure, local or memory store of obstore")
    return ObstoreClient(store)


def client_from_url(url: object, options: dict[str, Any]) -> ObjectStoreClient:
    """Return the client of the store that a URL names.

    :raises MissingExtraError: obstore is not installed
    :raises InvalidArgumentError: this is not a URL
    :raises LogStorageError: this kind of store does not exist, or its options are wrong
    """
    if not isinstance(url, str) or "://" not in url:
        raise InvalidArgumentError("url", url, "a URL, as s3://bucket/path or file:///path")
    _need_obstore()
    import obstore.store

    scheme = url.partition("://")[0].lower()
    if scheme not in _LOCAL:
        options = {"retry_config": _RETRIES, **options}
    elif scheme == "file":
        _make_private(url)
        options = {"mkdir": True, "automatic_cleanup": True, **options}
    try:
        return as_client(obstore.store.from_url(url, **options))
    except InvalidArgumentError:
        raise LogStorageError(
            without_secrets(url), "open the store", "this kind of store lacks conditional puts"
        ) from None
    except Exception as error:
        raise LogStorageError(without_secrets(url), "open the store", plain(error)) from error


def _make_private(url: str) -> None:
    """Make the folder of a store for the user alone: obstore makes files with the umask's mode."""
    with suppress(OSError, ValueError):
        Path(url2pathname(urlsplit(url).path)).mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)


def describe(store: ObjectStore) -> str:
    """Return the URL of a store in a form that may be shown."""
    kind = type(store).__name__
    prefix = str(getattr(store, "prefix", None) or "").strip("/")
    if kind == "MemoryStore":
        return "memory://"
    if kind == "LocalStore":
        return f"file:///{prefix}"
    config: dict[str, Any] = dict(getattr(store, "config", {}))
    scheme = {"S3Store": "s3", "GCSStore": "gs", "AzureStore": "az"}[kind]
    bucket = config.get("bucket") or config.get("container_name") or config.get("container") or "?"
    return f"{scheme}://{bucket}/{prefix}".rstrip("/")


def without_secrets(text: str) -> str:
    """Remove user names, passwords and queries from the URLs in a text."""
    text = re.sub(r"://[^/\s@]*@", "://", text)
    return re.sub(r"(://[^\s?]*)\?[^\s,;)\"']*", r"\1", text)


def plain(error: BaseException) -> str:
    """Return an error's message in one line, without secrets."""
    said = str(error).split("\n\nDebug source", 1)[0]
    return without_secrets(" ".join(said.split())) or type(error).__name__


def _need_obstore() -> None:
    try:
        import obstore  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("the ledger on object storage", "obstore>=0.6", "object") from error


@contextmanager
def _system_errors(url: str) -> Iterator[None]:
    """Turn the errors of obstore into system errors."""
    from obstore import exceptions

    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(plain(error)) from error
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
        raise FileExistsError(plain(error)) from error
    except (
        exceptions.PermissionDeniedError,
        exceptions.UnauthenticatedError,
        exceptions.NotSupportedError,
        exceptions.InvalidPathError,
        exceptions.UnknownConfigurationKeyError,
        NotImplementedError,
    ) as error:
        raise PermissionError(f"{plain(error)} ({url})") from error
    except exceptions.BaseError as error:
        kind = PermissionError if _REFUSED.search(str(error)) else OSError
        raise kind(f"{plain(error)} ({url})") from error
