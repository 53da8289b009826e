"""Logs on object storage, and their store.

Everything rests on one kind of request, a put that fails if the object exists. Every store has it, even a local folder,
while swapping an object by its tag is missing there and would give no more: making number n + 1 of a chain is a
compare-and-swap of its end. There are two chains: the catalog of the store (:mod:`._object_catalog`), which lists the
logs and their owners, and the slots of each log (:mod:`._object_writer`), which hold its records.

There are no locks on object storage, so the newest opener wins. Opening for writing raises the log's epoch in the
catalog, and then puts a manifest of this epoch into the log's next slot, which fences the old writer. The old writer
may continue until then, and may delete slots too, so the slots are listed to confirm that the manifest is the last one.
Deleting removes the name from the catalog, if the epoch still is that of the deleter; the objects are deleted after
that. A folder that is not in the catalog belongs to a deleted log, for ever: a log enters the catalog before it has any
object.

The owner of several logs takes one name for all of them (:meth:`ObjectDirectory.take_ownership`), and works through the
directory object that holds this claim: once another process has taken the name, it cannot make, open for writing or
delete a log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from .._check import check_integer
from ..backoff import Backoff
from ..errors import (
    ClosedError,
    InvalidArgumentError,
    LogExistsError,
    LogFencedError,
    LogNotFoundError,
    LogStorageError,
)
from ._log import READ_ONLY, AsyncLog
from ._object_catalog import Catalog, CatalogEntry, Claim
from ._object_contents import EMPTY_CONTENTS, LogContents, LogObjects, is_log_object, last_slot
from ._object_format import LOGS, MANIFEST, encode, folder_name, is_log_folder, new_token, slot_name, slot_number
from ._object_requests import ObjectStoreClient, RetryingClient, as_client, client_from_url
from ._object_writer import Guard, ObjectWriter, SlotChain
from ._protocol import BlockingStore
from ._store import AsyncLogStore
from .files import storage_errors

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_MIN_OBJECT: Final = 1 << 10
_MAX_OBJECT: Final = 1 << 28
_TRIES: Final = 200
_READ_TRIES: Final = 10

OpenedObjects: TypeAlias = tuple[LogObjects, ObjectWriter | LogContents]
"""An open log: its objects, and its writer, or what a reader found."""


class ObjectDirectory(BlockingStore[OpenedObjects]):
    """The logs below one prefix; blocking.

    :param max_object_bytes: small objects are merged into objects of about this size at most
    :param max_small_objects: how many small objects of a log there may be before they are merged
    :param executor: for parallel requests; None: one after the other
    """

    def __init__(
        self, client: RetryingClient, max_object_bytes: int, max_small_objects: int, executor: Executor | None
    ) -> None:
        self._client = client
        self._max_object_bytes = max_object_bytes
        self._max_small_objects = max_small_objects
        self._executor = executor
        self._catalog = Catalog(client)
        self._claim: Claim | None = None
        self._is_abandoned = False

    @property
    def location(self) -> str:
        """Return the URL of the store, for errors."""
        return self._client.url

    def for_owner(self) -> Self:
        """Return a directory object for a new owner; a copy of an owned one keeps the claim."""
        return copy(self)

    def take_ownership(self, name: str) -> None:
        """Become the owner of a name."""
        if self._claim is None:
            self._claim = self._catalog.take_ownership(name, self._check_not_abandoned)

    def abandon(self) -> None:
        """Change nothing from now on, not even when a hanging request is answered later."""
        self._is_abandoned = True

    def _check_not_abandoned(self) -> None:
        if self._is_abandoned:
            raise ClosedError("the store of logs")

    def _change(
        self, log: str, action: str, decide: Callable[[CatalogEntry | None], CatalogEntry | None]
    ) -> CatalogEntry | None:
        def checked(old: CatalogEntry | None) -> CatalogEntry | None:
            self._check_not_abandoned()
            return decide(old)

        return self._catalog.change(log, action, checked, self._claim)

    def check_claim(self, log: str) -> None:
        """Raise LogFencedError for the log if another process has taken the claimed name."""
        if self._claim is not None:
            self._catalog.check(log, self._claim)

    def open(self) -> None:
        """Check that the store can be used, and delete leftovers of crashes, as far as possible.

        :raises LogStorageError: it cannot be used
        """
        with storage_errors(self._client.url, "open the store"):
            found = self._client.list(LOGS)
            live = {folder_name(log, entry.instance) for log, entry in self._catalog.logs().items()}
        dead = [key for key in sorted(found) if _is_log_key(key) and key.partition("/")[0] not in live]
        with suppress(OSError):
            slots = [key for key in dead if slot_number(key.rpartition("/")[2]) is not None]
            self._client.delete_in_order([f"{LOGS}/{key}" for key in slots])
            self._client.delete([f"{LOGS}/{key}" for key in dead if key not in slots])
            self._catalog.sweep()

    def names(self) -> list[str]:
        """Return the names of all logs, sorted."""
        with storage_errors(self._client.url, "list the logs"):
            return sorted(self._catalog.logs())

    def create(self, log: str) -> OpenedObjects:
        """Make a log and open it."""
        writer = new_token()

        def decide(old: CatalogEntry | None) -> CatalogEntry:
            if old is None:
                return CatalogEntry(new_token(), 1, writer)
            if old.writer != writer:
                raise LogExistsError(log)
            return old

        entry = self._change(log, "create it", decide)
        assert entry is not None
        return self._take_over(log, entry, EMPTY_CONTENTS)

    def open_log(self, log: str, *, read_only: bool) -> OpenedObjects:
        """Open an existing log."""
        if read_only:
            return self._open(log)
        writer = new_token()

        def decide(old: CatalogEntry | None) -> CatalogEntry:
            if old is None:
                raise LogNotFoundError(log)
            return old if old.writer == writer else CatalogEntry(old.instance, old.epoch + 1, writer)

        entry = self._change(log, "open it", decide)
        assert entry is not None
        return self._take_over(log, entry)

    def delete(self, log: str, entry: CatalogEntry | None = None) -> None:
        """Delete a log whose entry is this one; with a reader's entry, or none, take it over first."""
        if entry is None or not entry.writer:
            entry = self._entry_to_delete(log, entry)

        def decide(old: CatalogEntry | None) -> None:
            if old != entry:
                raise LogFencedError(log)

        self._change(log, "delete it", decide)
        with suppress(OSError):
            self._objects(log, entry).delete_all()

    def _entry_to_delete(self, log: str, reader: CatalogEntry | None) -> CatalogEntry:
        """Return the entry of a log that nobody can write: it is sealed, or taken over here."""
        with storage_errors(log, "look for it"):
            now = self._catalog.logs().get(log)
            if now is None or (reader is not None and now.instance != reader.instance):
                raise LogNotFoundError(log)
            if self._objects(log, now).load().manifest.is_sealed:
                return now
        return self.open_log(log, read_only=False)[0].entry

    def _open(self, log: str) -> OpenedObjects:
        with storage_errors(log, "open it"):
            entry = self._catalog.logs().get(log)
            if entry is None:
                raise LogNotFoundError(log)
            log_objects = self._objects(log, entry._replace(writer=""))
            return log_objects, log_objects.load()

    def _take_over(self, log: str, entry: CatalogEntry, contents: LogContents | None = None) -> OpenedObjects:
        """Put the first manifest of this epoch, unless the log is sealed and nobody can write it.

        :param contents: the likely contents
        """
        log_objects = self._objects(log, entry)
        with storage_errors(log, "take it over"):
            guard, names = self._fence(log_objects, contents)
            chain = SlotChain(log_objects, guard, self._catalog)
            chain.check()
            writer = ObjectWriter(log_objects, chain, self._max_object_bytes, self._max_small_objects)
            writer.delete_unnamed(names)
        return log_objects, writer

    def _fence(self, log_objects: LogObjects, likely: LogContents | None) -> tuple[Guard, Iterable[str]]:
        """Put a manifest of this epoch behind everything else; return it, and the objects that are there now.

        If a later slot exists, the slot was an old one that had been deleted; a manifest put there does not count, and
        is deleted later.
        """
        log, entry = log_objects.log, log_objects.entry
        for count in range(_TRIES):
            contents = likely if likely is not None and not count else log_objects.load()
            if contents.manifest.is_sealed:
                return Guard(contents.manifest, contents.base, b""), contents.names
            if contents.manifest.epoch > entry.epoch:
                raise LogFencedError(log)
            slot = contents.tail + 1
            manifest = contents.manifest.taken_over(entry.epoch, entry.writer, slot)
            data = encode(MANIFEST, slot, manifest.fields(), owner=log)
            if self._client.create(log_objects.key(slot_name(slot)), data):
                names = log_objects.names()
                if last_slot(names) == slot:
                    return Guard(manifest, slot, data), names
        raise LogStorageError(log, "take it over", "its writer went on all the time")

    def _objects(self, log: str, entry: CatalogEntry) -> LogObjects:
        return LogObjects(self._client, log, entry, self._executor)


class ObjectLog(AsyncLog):
    """A :class:`~pulsar_nack.ledger.Log` on object storage, as a store opens it.

    The next process that opens the log for writing takes it over: from then on appending, sealing and deleting raise
    :class:`~pulsar_nack.errors.LogFencedError` here, and have no effect.
    """

    def __init__(self, directory: ObjectDirectory, opened: OpenedObjects, executor: ThreadPoolExecutor) -> None:
        self._log_objects, self._known = opened
        why = "" if isinstance(self._known, ObjectWriter) else READ_ONLY
        super().__init__(self._log_objects.log, directory.location, self._known, executor, why)
        self._directory = directory

    def _read_some(self, first: int, last: int, limit: int) -> list[bytes]:
        """Return records, whichever objects hold them now.

        :raises LogNotFoundError: the log was deleted meanwhile
        :raises LogFencedError: its owner is another process by now
        """
        for count in range(_READ_TRIES):
            objects = self._known.objects if count < 2 else self._log_objects.load().objects
            with suppress(FileNotFoundError):
                return self._log_objects.read_records(objects, first, last, limit)
        self._directory.check_claim(self.name)
        raise LogNotFoundError(self.name)

    def _close(self) -> None:
        """Do nothing: no lock is held, and the next writer takes the log over."""

    def _delete(self) -> None:
        self._directory.delete(self.name, self._log_objects.entry)


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
        parallel = fetchers if threads > 1 else None
        directory = ObjectDirectory(client, max_object_bytes, max_small_objects, parallel)
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


def _is_log_key(key: str) -> bool:
    folder, _, name = key.partition("/")
    return is_log_folder(folder) and is_log_object(name)
