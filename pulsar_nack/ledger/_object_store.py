"""A store of logs on object storage: :mod:`._object_home` in the threads that make the requests.

Everything rests on one kind of request, a put that fails when the object is there: every store has it, a local folder
too, while swapping an object by its tag is missing there, and gives no more: making number n + 1 of a chain is a
compare-and-swap of its end. There are two chains: the catalog of the store (:mod:`._object_catalog`), for what logs
there are and whose they are, and the slots of each log (:mod:`._object_chain`), for its records.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Self

from .._check import check_integer
from ..backoff import Backoff
from ..errors import InvalidArgumentError
from ._object import ObjectBackend, ObjectLog
from ._object_home import ObjectHome, Opened
from ._object_merge import Limits
from ._object_requests import Objects, as_objects, from_url
from ._object_retry import Requests
from ._shell_store import StoreShell

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_MIN_OBJECT: Final = 1 << 10
_MAX_OBJECT: Final = 1 << 28


class ObjectLogStore(StoreShell[ObjectHome, Opened, ObjectLog]):
    """A :class:`~pulsar_nack.ledger.LogStore` on object storage; made by :meth:`open` or :meth:`from_url`.

    Several machines may use it at the same time. A log has one writer: the one that opened it last.
    """

    def __init__(self, home: ObjectHome, executor: ThreadPoolExecutor, fetchers: ThreadPoolExecutor) -> None:
        super().__init__(home, lambda home, opened: ObjectLog(ObjectBackend(home, opened), executor), executor)
        self._fetchers = fetchers

    @classmethod
    async def open(
        cls,
        store: ObjectStore | Objects,
        *,
        prefix: str = "",
        max_object_bytes: int = 1 << 23,
        max_small_objects: int = 32,
        threads: int = 8,
        attempts: int = 5,
        backoff: Backoff | None = None,
    ) -> Self:
        """Open the logs in a store of obstore; what crashes left there is deleted.

        :param prefix: where in the store, a path without a slash at the begin or end
        :param max_object_bytes: small objects are merged into objects up to about this size (1 KiB to 256 MiB)
        :param max_small_objects: how many small objects of a log there may be before they are merged (2 to 1000)
        :param threads: how many requests are made at the same time (1 to 64), and as many to merge and open logs
        :param attempts: how many times a request is made when it fails (1 to 20), besides what obstore itself does
        :param backoff: how long to wait between them; by default 0.1 s, doubled up to 5 s, with jitter
        :raises LogStorageError: the store cannot be used: no bucket, no rights, no connection
        :raises MissingExtraError: obstore is not installed
        """
        _check_prefix(prefix)
        check_integer("max_object_bytes", max_object_bytes, _MIN_OBJECT, _MAX_OBJECT)
        check_integer("max_small_objects", max_small_objects, 2, 1000)
        check_integer("threads", threads, 1, 64)
        check_integer("attempts", attempts, 1, 20)
        requests = Requests(as_objects(store), prefix, attempts=attempts, backoff=backoff)
        executor = ThreadPoolExecutor(threads, thread_name_prefix="pulsar-nack-ledger")
        fetchers = ThreadPoolExecutor(threads, thread_name_prefix="pulsar-nack-fetch")
        home = ObjectHome(requests, Limits(max_object_bytes, max_small_objects), fetchers if threads > 1 else None)
        try:
            await asyncio.get_running_loop().run_in_executor(executor, home.open)
        except BaseException:
            executor.shutdown(wait=False)
            fetchers.shutdown(wait=False)
            raise
        return cls(home, executor, fetchers)

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
            from_url(url, options),
            max_object_bytes=max_object_bytes,
            max_small_objects=max_small_objects,
            threads=threads,
            attempts=attempts,
            backoff=backoff,
        )

    async def aclose(self) -> None:
        """Close the logs that it opened, and then itself. Idempotent; goes on when the call is cancelled."""
        await super().aclose()
        if not self._is_part:
            self._fetchers.shutdown(wait=False)


def _check_prefix(prefix: object) -> None:
    if not isinstance(prefix, str) or (prefix and any(part in ("", ".", "..") for part in prefix.split("/"))):
        raise InvalidArgumentError("prefix", prefix, "a path without empty parts, as 'team/retries'")
