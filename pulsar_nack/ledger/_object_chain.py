"""Making the slots of one log, and finding out when they do not count; blocking, one call at a time.

Every change is one put of the next slot, which must not exist: records, or a manifest. Somebody else who took the log
over made that slot before, so the put of the old writer fails, and it is *fenced*.

*A slot that was deleted.* Manifests before one's own are deleted, in order, and then a writer that slept since the
last but one would not find the fence. So after each put a writer looks whether its *guard*, the newest manifest of its
own, is still there: guards are deleted before the fences behind them, so a guard that is there says that the slot had
never been made before. If it is gone, the newest manifest says with which slots others took over, and so whether the
put was in time. What a put out of time leaves is never named by a manifest, and is deleted.

*A put in doubt.* When it is not known whether a slot was made, the next put has to go into that slot, or into the one
behind when the slot was made after all: :class:`InDoubtError` says so.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple, Protocol

from ..errors import LedgerError, LogCorruptedError, LogFencedError
from ._object_folder import Folder
from ._object_manifest import Manifest
from ._object_names import slot_name


class Ownership(Protocol):
    """What the catalog says now of a log; OSError when it cannot be asked."""

    def is_there(self) -> bool:
        """Return whether it was not deleted."""
        ...

    def is_mine(self) -> bool:
        """Return whether nobody opened it for writing since."""
        ...


class InDoubtError(Exception):
    """The slot was made by a put of this writer that had failed; ``seal`` is what it has when that is a seal."""

    def __init__(self, seal: tuple[Manifest, bytes] | None) -> None:
        self.seal = seal
        super().__init__("made by a put that had failed")


class Guard(NamedTuple):
    """The newest manifest of a writer, in which slot it is, and its bytes."""

    manifest: Manifest
    slot: int
    data: bytes


class Chain:
    """Makes slots for the writer whose first manifest is the guard.

    :param catalog: says whether the log is still this writer's
    """

    def __init__(self, folder: Folder, guard: Guard, catalog: Ownership) -> None:
        self._folder = folder
        self._catalog = catalog
        self._begin = guard.slot
        self.guard = guard
        self.is_suspect = False
        self.is_fenced = False

    def put(self, slot: int, data: bytes) -> None:
        """Make a slot.

        :raises OSError: it is not known whether it was made; the chain is suspect
        :raises LogFencedError: it was not, or does not count
        :raises InDoubtError: it is one that this writer was in doubt about; the chain is still suspect
        """
        self.must_be_mine()
        requests, key = self._folder.requests, self._folder.key(slot_name(slot))
        was_suspect, self.is_suspect = self.is_suspect, True
        is_made = requests.create(key, data)
        if not is_made and was_suspect:
            self._find_own(slot)
        if not (is_made and self._has_guard()) and not self._was_in_time(slot):
            if is_made:
                with suppress(OSError):
                    requests.delete([key])
            self.must_be_mine()
        self.is_suspect = False

    def must_be_mine(self) -> None:
        """Raise LogFencedError when it is known that another writer has the log."""
        if self.is_fenced:
            raise LogFencedError(self._folder.log)

    def check(self) -> None:
        """Ask the catalog whether the log is still this writer's.

        :raises LogFencedError: it is not
        """
        self.is_fenced = self.is_fenced or not self._catalog.is_mine()
        self.must_be_mine()

    def look(self) -> None:
        """Make way for somebody who wants to take over, and would have to be faster than the appends come."""
        with suppress(OSError, LedgerError):
            self.check()

    def _find_own(self, slot: int) -> None:
        with suppress(FileNotFoundError):
            found, data = self._folder.slot(slot)
            if found.writer == self.guard.manifest.writer:
                raise InDoubtError((found, data) if found.is_sealed else None)

    def _has_guard(self) -> bool:
        try:
            return self._folder.requests.is_same(self._folder.key(slot_name(self.guard.slot)), self.guard.data)
        except FileNotFoundError:
            return False

    def _was_in_time(self, slot: int) -> bool:
        """Return whether this slot was made before somebody else took over, who did, or deleted the log.

        :raises OSError: that is too long ago to tell
        """
        self.is_fenced = True
        if not self._catalog.is_there():
            return False
        try:
            state = self._folder.load()
        except LogCorruptedError:
            if self._catalog.is_there():
                raise
            return False
        manifest = state.manifest
        if manifest.is_sealed and manifest.writer == self.guard.manifest.writer:
            return slot <= state.base  # this was the seal: who opened it later found the guard to be rubbish
        fence = manifest.fence_after(self.guard.manifest.epoch, self._begin)
        if fence is None:
            raise OSError("too many others opened it meanwhile to tell whether this was in time")
        return slot < fence
