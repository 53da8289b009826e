"""The requests that the logs on object storage make: the protocol, and obstore behind it; blocking, for any thread.

Five kinds of request are all that is asked of a store: create an object that must not exist, read a part of one, list
a folder, delete. They answer with the errors of the system: ``FileExistsError``, ``FileNotFoundError``,
``PermissionError`` where it is no use to try again, and any other ``OSError`` where it may be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable
from urllib.parse import urlsplit
from urllib.request import url2pathname

from ..errors import InvalidArgumentError, LogStorageError, MissingExtraError
from ._files import PRIVATE_FOLDER

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_LOCAL: Final = ("file", "memory")
_REFUSED: Final = re.compile(r"status code: (301|401|403|404|405|501)\b")  # lists have no errors of their own for this
_RETRIES: Final[dict[str, Any]] = {"max_retries": 3}


@runtime_checkable
class Objects(Protocol):
    """What a store of objects must do. Keys are paths with slashes; what was answered is durable and seen by all."""

    @property
    def url(self) -> str:
        """Return where it is, without secrets."""
        ...

    def create(self, key: str, data: bytes) -> None:
        """Write an object as a whole, or not at all.

        :raises FileExistsError: there is one; it was not changed
        """
        ...

    def get(self, key: str, start: int, length: int) -> bytes:
        """Read a part of an object, as much of it as there is.

        :raises FileNotFoundError: there is no such object
        """
        ...

    def list(self, folder: str) -> dict[str, int]:
        """Return the keys of all objects below a folder, relative to it, and their sizes in bytes."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects in any order; one that is not there is none to delete."""
        ...


class ObstoreObjects:
    """The objects of a store of obstore."""

    def __init__(self, store: ObjectStore) -> None:
        import obstore

        self._obstore = obstore
        self._store = store
        self.url = describe(store)

    def create(self, key: str, data: bytes) -> None:
        """Put if absent."""
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
        """List with a prefix."""
        begin = f"{folder}/"
        with _system_errors(self.url):
            found = self._obstore.list(self._store, folder or None).collect()
        return {item["path"].removeprefix(begin): item["size"] for item in found}

    def delete(self, keys: Sequence[str]) -> None:
        """Delete in bulk where the store can; a local one refuses what is not there."""
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


def as_objects(store: object) -> Objects:
    """Return the requests of a store of obstore, or of anything that makes them itself.

    :raises MissingExtraError: obstore is not installed
    :raises InvalidArgumentError: it is neither
    """
    if isinstance(store, Objects):
        return store
    _need_obstore()
    from obstore.store import AzureStore, GCSStore, LocalStore, MemoryStore, S3Store

    if not isinstance(store, AzureStore | GCSStore | LocalStore | MemoryStore | S3Store):
        raise InvalidArgumentError("store", store, "an S3, GCS, Azure, local or memory store of obstore")
    return ObstoreObjects(store)


def from_url(url: object, options: dict[str, Any]) -> Objects:
    """Return the requests of the store that a URL names.

    :raises MissingExtraError: obstore is not installed
    :raises InvalidArgumentError: this is no URL
    :raises LogStorageError: there is no such kind of store, or its options are wrong
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
        return as_objects(obstore.store.from_url(url, **options))
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
    """Return the URL of a store as it may be shown."""
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
    """Cut user names, passwords and queries out of the URLs in a text."""
    text = re.sub(r"://[^/\s@]*@", "://", text)
    return re.sub(r"(://[^\s?]*)\?[^\s,;)\"']*", r"\1", text)


def plain(error: BaseException) -> str:
    """Return what an error says, in one line, without secrets."""
    said = str(error).split("\n\nDebug source", 1)[0]
    return without_secrets(" ".join(said.split())) or type(error).__name__


def _need_obstore() -> None:
    try:
        import obstore  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("the ledger on object storage", "obstore>=0.6", "object") from error


@contextmanager
def _system_errors(url: str) -> Iterator[None]:
    """Turn the errors of obstore into those of the system."""
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
