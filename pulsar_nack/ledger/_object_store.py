"""Logs on object storage, and their store.

Everything rests on one kind of request, a put that fails if the object exists. Every store has it, even a local folder,
while swapping an object by its tag is missing there and would give no more: making number n + 1 of a chain is a
compare-and-swap of its end. There are two chains: the catalog of the store (:mod:`._object_catalog`), which lists the
logs and their owners, and the slots of each log (:mod:`._object_slots`), which hold its records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Self

from .._check import check_integer
from ..backoff import Backoff
from ..errors import InvalidArgumentError, LogNotFoundError, LogStorageError
from ._log import READ_ONLY, AsyncLog
from ._object_directory import ObjectDirectory, OpenedObjects
from ._object_requests import ObjectStoreClient, RetryingClient, as_client, client_from_url
from ._object_writer import MergeLimits
from ._store import AsyncLogStore

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_MIN_OBJECT: Final = 1 << 10
_MAX_OBJECT: Final = 1 << 28


class ObjectLog(AsyncLog):
    """A :class:`~pulsar_nack.ledger.Log` on object storage, as a store opens it.

    The next process that opens the log for writing takes it over: from then on appending, sealing and deleting raise
    :class:`~pulsar_nack.errors.LogFencedError` here, and have no effect.
    """

    def __init__(self, directory: ObjectDirectory, opened: OpenedObjects, executor: ThreadPoolExecutor) -> None:
        writer = opened.writer
        why = "" if writer else READ_ONLY
        super().__init__(opened.name, directory.location, writer or opened.contents.state, executor, why)
        self._directory = directory
        self._opened = opened

    def _write(self, records: Sequence[bytes]) -> int:
        if self._opened.writer is None:
            raise LogStorageError(self.name, "append", self._why_read_only, folder=self._location)
        return self._opened.writer.append(records)

    def _read_some(self, first: int, last: int, limit: int) -> list[bytes]:
        try:
            return self._opened.read(first, last, limit)
        except LogNotFoundError:
            self._directory.check_claim(self.name)
            raise

    def _close(self) -> None:
        """Do nothing: no lock is held, and the next writer takes the log over."""

    def _delete(self) -> None:
        self._directory.delete(self.name, self._opened.entry)


class ObjectLogStore(AsyncLogStore[OpenedObjects, ObjectLog]):
    """A :class:`~pulsar_nack.ledger.LogStore` on object storage; made by :meth:`open` or :meth:`from_url`.

    Several machines may use it at the same time. A log has one writer: the one that opened it last.
    """

    _directory: ObjectDirectory

    def __init__(self, directory: ObjectDirectory, executor: ThreadPoolExecutor, fetchers: ThreadPoolExecutor) -> None:
        super().__init__(directory, executor)
        self._fetchers = fetchers

    def _make_log(self, opened: OpenedObjects) -> ObjectLog:
        return ObjectLog(self._directory, opened, self._executor)

    @classmethod
    async def open(
        cls,
        store: ObjectStore | ObjectStoreClient,
        *,
        prefix: str = "",
        max_object_bytes: int = 1 << 23,
        max_small_objects: int = 32,
        threads: int = 8,
        attempts: int = 5,
        backoff: Backoff | None = None,
    ) -> Self:
        """Open the logs in a store of obstore; leftovers of crashes are deleted.

        :param prefix: where in the store, a path without a slash at the begin or end
        :param max_object_bytes: small objects are merged into objects of about this size at most (1 KiB to 256 MiB)
        :param max_small_objects: how many small objects of a log there may be before they are merged (2 to 1000)
        :param threads: how many requests are made at the same time (1 to 64), and as many to merge and open logs
        :param attempts: how often a failing request is made (1 to 20), besides the retries of obstore itself
        :param backoff: how long to wait between them; by default 0.1 s, doubled up to 5 s, with jitter
        :raises LogStorageError: the store cannot be used: no bucket, no rights, no connection
        :raises MissingExtraError: obstore is not installed
        """
        _check_prefix(prefix)
        check_integer("max_object_bytes", max_object_bytes, _MIN_OBJECT, _MAX_OBJECT)
        check_integer("max_small_objects", max_small_objects, 2, 1000)
        check_integer("threads", threads, 1, 64)
        check_integer("attempts", attempts, 1, 20)
        client = RetryingClient(as_client(store), prefix, attempts=attempts, backoff=backoff)
        executor = ThreadPoolExecutor(threads, thread_name_prefix="pulsar-nack-ledger")
        fetchers = ThreadPoolExecutor(threads, thread_name_prefix="pulsar-nack-fetch")
        limits = MergeLimits(max_object_bytes, max_small_objects)
        directory = ObjectDirectory(client, limits, fetchers if threads > 1 else None)
        try:
            await asyncio.get_running_loop().run_in_executor(executor, directory.open)
        except BaseException:
            executor.shutdown(wait=False)
            fetchers.shutdown(wait=False)
            raise
        return cls(directory, executor, fetchers)

    @classmethod
    async def from_url(
        cls,
        url: str,
        *,
        max_object_bytes: int = 1 << 23,
        max_small_objects: int = 32,
        threads: int = 8,
        attempts: int = 5,
        backoff: Backoff | None = None,
        **options: Any,
    ) -> Self:
        """Open the logs below a URL: ``s3://bucket/path``, ``gs://``, ``az://``, ``file:///path`` or ``memory:///``.

        :param options: what ``obstore.store.from_url`` takes: keys, region, ``client_options``, ``retry_config``
        :raises LogStorageError: the store cannot be used, or its options are wrong

        The other parameters and errors are those of :meth:`open`.
        """
        return await cls.open(
            client_from_url(url, options),
            max_object_bytes=max_object_bytes,
            max_small_objects=max_small_objects,
            threads=threads,
            attempts=attempts,
            backoff=backoff,
        )

    async def aclose(self) -> None:
        """Close all logs that were opened here, then the store. Idempotent; continues when the call is cancelled."""
        await super().aclose()
        if not self._is_owned:
            self._fetchers.shutdown(wait=False)


def _check_prefix(prefix: object) -> None:
    if not isinstance(prefix, str) or (prefix and any(part in ("", ".", "..") for part in prefix.split("/"))):
        raise InvalidArgumentError("prefix", prefix, "a path without empty parts, as 'team/retries'")
