"""A store of logs on object storage: making, opening, taking over, deleting and sweeping logs; blocking.

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

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from copy import copy
from typing import Final, NamedTuple, Self

from ..errors import ClosedError, LogExistsError, LogFencedError, LogNotFoundError, LogStorageError
from ._object_catalog import Catalog, CatalogEntry, Claim
from ._object_contents import EMPTY_CONTENTS, LogContents, LogObjects, is_log_object, last_slot
from ._object_format import (
    LOGS,
    MANIFEST,
    ObjectRef,
    encode,
    folder_name,
    is_log_folder,
    new_token,
    slot_name,
    slot_number,
)
from ._object_requests import RetryingClient
from ._object_slots import Guard, SlotChain
from ._object_writer import MergeLimits, ObjectWriter
from ._protocol import BlockingStore
from .files import storage_errors

_TRIES: Final = 200
_READ_TRIES: Final = 10


class OpenedObjects(NamedTuple):
    """An open log; without a writer for reading only."""

    name: str
    entry: CatalogEntry
    contents: LogContents
    log_objects: LogObjects
    writer: ObjectWriter | None

    def read(self, first: int, last: int, limit: int) -> list[bytes]:
        """Return records, at least one, and about ``limit`` bytes at most, whichever object holds them now.

        :raises LogNotFoundError: the log was deleted meanwhile
        """
        for count in range(_READ_TRIES):
            objects = self._known_objects() if count < 2 else self.log_objects.load().manifest.objects
            with suppress(FileNotFoundError):
                return self.log_objects.read_records(objects, first, last, limit)
        raise LogNotFoundError(self.name)

    def _known_objects(self) -> Sequence[ObjectRef]:
        return self.contents.manifest.objects if self.writer is None else self.writer.objects


class ObjectDirectory(BlockingStore[OpenedObjects]):
    """The logs below one prefix.

    :param executor: for parallel requests; None: one after the other
    """

    def __init__(self, client: RetryingClient, limits: MergeLimits, executor: Executor | None) -> None:
        self._client = client
        self._limits = limits
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
        return self.open_log(log, read_only=False).entry

    def _open(self, log: str) -> OpenedObjects:
        with storage_errors(log, "open it"):
            entry = self._catalog.logs().get(log)
            if entry is None:
                raise LogNotFoundError(log)
            log_objects = self._objects(log, entry)
            contents = log_objects.load()
        return OpenedObjects(log, entry._replace(writer=""), contents, log_objects, None)

    def _take_over(self, log: str, entry: CatalogEntry, contents: LogContents | None = None) -> OpenedObjects:
        """Put the first manifest of this epoch, unless the log is sealed and nobody can write it.

        :param contents: the likely contents
        """
        log_objects = self._objects(log, entry)
        with storage_errors(log, "take it over"):
            contents, data = self._fence(log, log_objects, entry, contents)
            chain = SlotChain(log_objects, Guard(contents.manifest, contents.base, data), self._catalog, entry)
            chain.check()
            writer = ObjectWriter(log_objects, chain, self._limits)
            writer.delete_unnamed(contents.names)
        return OpenedObjects(log, entry, contents, log_objects, writer)

    def _fence(
        self, log: str, log_objects: LogObjects, entry: CatalogEntry, likely: LogContents | None
    ) -> tuple[LogContents, bytes]:
        """Put a manifest of this epoch behind everything else.

        If a later slot exists, the slot was an old one that had been deleted; a manifest put there does not count, and
        is deleted later.
        """
        for count in range(_TRIES):
            contents = likely if likely is not None and not count else log_objects.load()
            if contents.manifest.is_sealed:
                return contents, b""
            if contents.manifest.epoch > entry.epoch:
                raise LogFencedError(log)
            slot = contents.tail + 1
            manifest = contents.manifest.taken_over(entry.epoch, entry.writer, slot)
            data = encode(MANIFEST, slot, manifest.fields(), owner=log)
            if self._client.create(log_objects.key(slot_name(slot)), data):
                names = log_objects.names()
                if last_slot(names) == slot:
                    return LogContents(manifest, slot, slot, names), data
        raise LogStorageError(log, "take it over", "its writer went on all the time")

    def _objects(self, log: str, entry: CatalogEntry) -> LogObjects:
        return LogObjects(self._client, log, entry.instance, self._executor)


def _is_log_key(key: str) -> bool:
    folder, _, name = key.partition("/")
    return is_log_folder(folder) and is_log_object(name)
