"""A store of logs on object storage: making, opening, taking over, deleting and sweeping; blocking.

There are no locks on object storage, hence the newest opener wins. Opening for writing raises the log's epoch in the
catalog, and then puts a manifest of this epoch into the log's next slot, which fences the old writer. That one may go
on until then, and delete slots too: a look at the slots says whether the manifest came to lie at the end. Deleting
takes the name out of the catalog, if the epoch is still that of who deletes; the objects go after that. A folder that
is not in the catalog is that of a deleted log, for ever: a log enters the catalog before it has any object.

Whose state consists of several logs takes a name for all of them (:meth:`ObjectHome.take`), and does everything through
the home that it gets for that: once somebody else took the name, that one makes, opens for writing and deletes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from copy import copy
from typing import Final, NamedTuple, Self

from ..errors import ClosedError, LogExistsError, LogFencedError, LogNotFoundError, LogStorageError
from ._home import storage_errors
from ._object_catalog import Catalog, Claim, Entry
from ._object_chain import Chain, Guard
from ._object_folder import NEW, Folder, Reader, State, is_own, last_slot
from ._object_format import encode
from ._object_manifest import MANIFEST
from ._object_merge import Limits
from ._object_names import LOGS, folder_name, is_folder, slot_name, slot_number, token
from ._object_retry import Requests
from ._object_writer import ObjectWriter

_TRIES: Final = 200


class Opened(NamedTuple):
    """An open log; without a writer when it is open for reading only."""

    name: str
    entry: Entry
    state: State
    reader: Reader
    writer: ObjectWriter | None


class ObjectHome:
    """The logs below one prefix.

    :param executor: for requests at the same time; None: one after the other
    """

    def __init__(self, requests: Requests, limits: Limits, executor: Executor | None) -> None:
        self._requests = requests
        self._limits = limits
        self._executor = executor
        self._catalog = Catalog(requests)
        self._claim: Claim | None = None
        self._is_given_up = False

    @property
    def place(self) -> str:
        """Return the address of the store, for errors."""
        return self._requests.url

    def part(self) -> Self:
        """Return a home that is to own something; one of what is owned is owned already."""
        return copy(self)

    def take(self, name: str) -> None:
        """Become the owner of what is called this."""
        if self._claim is None:
            self._claim = self._catalog.take(name, self._check_wanted)

    def give_up(self) -> None:
        """Change nothing any more, also where a request that has hung is answered yet: its caller is gone."""
        self._is_given_up = True

    def _check_wanted(self) -> None:
        if self._is_given_up:
            raise ClosedError("the store of logs")

    def _change(self, log: str, action: str, decide: Callable[[Entry | None], Entry | None]) -> Entry | None:
        def wanted(old: Entry | None) -> Entry | None:
            self._check_wanted()
            return decide(old)

        return self._catalog.change(log, action, wanted, self._claim)

    def check_claim(self, log: str) -> None:
        """Raise LogFencedError when somebody else took what this home is for, and so has this log."""
        if self._claim is not None:
            self._catalog.check(log, self._claim)

    def open(self) -> None:
        """Look whether the store can be used, and delete what crashes left; what cannot be deleted stays.

        :raises LogStorageError: it cannot be used
        """
        with storage_errors(self._requests.url, "open the store"):
            found = self._requests.list(LOGS)
            live = {folder_name(log, entry.instance) for log, entry in self._catalog.logs().items()}
        dead = [key for key in sorted(found) if _is_ours(key) and key.partition("/")[0] not in live]
        with suppress(OSError):
            slots = [key for key in dead if slot_number(key.rpartition("/")[2]) is not None]
            self._requests.delete_in_order([f"{LOGS}/{key}" for key in slots])
            self._requests.delete([f"{LOGS}/{key}" for key in dead if key not in slots])
            self._catalog.sweep()

    def names(self) -> list[str]:
        """Return the names of all logs, sorted."""
        with storage_errors(self._requests.url, "list the logs"):
            return sorted(self._catalog.logs())

    def create(self, log: str) -> Opened:
        """Make a log and open it."""
        writer = token()

        def decide(old: Entry | None) -> Entry:
            if old is None:
                return Entry(token(), 1, writer)
            if old.writer != writer:
                raise LogExistsError(log)
            return old

        entry = self._change(log, "create it", decide)
        assert entry is not None
        return self._take_over(log, entry, NEW)

    def open_log(self, log: str, *, read_only: bool) -> Opened:
        """Open a log that exists."""
        if read_only:
            return self._open(log)
        writer = token()

        def decide(old: Entry | None) -> Entry:
            if old is None:
                raise LogNotFoundError(log)
            return old if old.writer == writer else Entry(old.instance, old.epoch + 1, writer)

        entry = self._change(log, "open it", decide)
        assert entry is not None
        return self._take_over(log, entry)

    def delete(self, log: str, entry: Entry | None = None) -> None:
        """Delete a log that this entry says to be ours; without one, or with one of a reader, take it over first."""
        if entry is None or not entry.writer:
            entry = self._taken(log, entry)

        def decide(old: Entry | None) -> None:
            if old != entry:
                raise LogFencedError(log)

        self._change(log, "delete it", decide)
        with suppress(OSError):
            self._folder(log, entry).remove_all()

    def _taken(self, log: str, reader: Entry | None) -> Entry:
        """Return the entry of a log that nobody can write to: it is sealed, or taken over."""
        with storage_errors(log, "look for it"):
            now = self._catalog.logs().get(log)
            if now is None or (reader is not None and now.instance != reader.instance):
                raise LogNotFoundError(log)
            if self._folder(log, now).load().manifest.is_sealed:
                return now
        return self.open_log(log, read_only=False).entry

    def _open(self, log: str) -> Opened:
        with storage_errors(log, "open it"):
            entry = self._catalog.logs().get(log)
            if entry is None:
                raise LogNotFoundError(log)
            folder = self._folder(log, entry)
            state = folder.load()
        return Opened(log, entry._replace(writer=""), state, Reader(folder, lambda: state.manifest.pieces), None)

    def _take_over(self, log: str, entry: Entry, state: State | None = None) -> Opened:
        """Put the first manifest of this epoch, unless the log is sealed: then nobody can write to it.

        :param state: what it is likely to be
        """
        folder = self._folder(log, entry)
        with storage_errors(log, "take it over"):
            state, data = self._fence(log, folder, entry, state)
            chain = Chain(folder, Guard(state.manifest, state.base, data), _Owned(self._catalog, log, entry))
            chain.check()
            writer = ObjectWriter(folder, chain, self._limits)
            writer.tidy(state.names)
        return Opened(log, entry, state, writer.reader, writer)

    def _fence(self, log: str, folder: Folder, entry: Entry, likely: State | None) -> tuple[State, bytes]:
        """Put a manifest of this epoch behind everything else; a later slot says that this place was deleted before.

        What is put into such a place does not count, and goes at the next occasion.
        """
        for count in range(_TRIES):
            state = likely if likely is not None and not count else folder.load()
            if state.manifest.is_sealed:
                return state, b""
            if state.manifest.epoch > entry.epoch:
                raise LogFencedError(log)
            slot = state.tail + 1
            manifest = state.manifest.taken_over(entry.epoch, entry.writer, slot)
            data = encode(MANIFEST, slot, manifest.fields(), owner=log)
            if self._requests.create(folder.key(slot_name(slot)), data):
                names = folder.names()
                if last_slot(names) == slot:
                    return State(manifest, slot, slot, names), data
        raise LogStorageError(log, "take it over", "its writer went on all the time")

    def _folder(self, log: str, entry: Entry) -> Folder:
        return Folder(self._requests, log, entry.instance, self._executor)


class _Owned(NamedTuple):
    catalog: Catalog
    log: str
    entry: Entry

    def is_there(self) -> bool:
        """Return whether this very log is still there."""
        now = self.catalog.logs().get(self.log)
        return now is not None and now.instance == self.entry.instance

    def is_mine(self) -> bool:
        """Return whether it is still that of this opening."""
        return self.catalog.logs().get(self.log) == self.entry


def _is_ours(key: str) -> bool:
    folder, _, name = key.partition("/")
    return is_folder(folder) and is_own(name)
