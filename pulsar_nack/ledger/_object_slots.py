"""Making the slots of one log, and detecting that they do not count; blocking, one call at a time.

Every change is one put of the next slot, which must not exist: records, or a manifest. A writer that took the log over
has made that slot before, so the put of the old writer fails, and it is *fenced*.

*A slot that was deleted.* Older manifests are deleted, in order, so a writer that was suspended for more than one
takeover would not find the fence. Therefore after each put a writer checks that its *guard*, its own newest manifest,
still exists: guards are deleted before the fences behind them, so while the guard exists the slot had never been made.
If the guard is gone, the newest manifest names the slots of the takeovers, and so shows whether the put was in time. A
slot that was put too late is never named by a manifest, and is deleted.

*A put in doubt.* If it is not known whether a slot was made, the next put has to go into that slot, or into the one
behind if the slot was made after all, which :class:`InDoubtError` reports.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from ..errors import LedgerError, LogCorruptedError, LogFencedError
from ._object_catalog import Catalog, CatalogEntry
from ._object_contents import LogObjects
from ._object_format import Manifest, slot_name


class InDoubtError(Exception):
    """An earlier failed put of this writer made the slot; ``seal`` is its manifest if that is a seal."""

    def __init__(self, seal: tuple[Manifest, bytes] | None) -> None:
        self.seal = seal
        super().__init__("made by a put that had failed")


class Guard(NamedTuple):
    """The newest manifest of a writer, its slot, and its bytes."""

    manifest: Manifest
    slot: int
    data: bytes


class SlotChain:
    """Makes slots for the writer whose first manifest is the guard.

    :param entry: what the catalog says about the log while it is this writer's
    """

    def __init__(self, log_objects: LogObjects, guard: Guard, catalog: Catalog, entry: CatalogEntry) -> None:
        self._log_objects = log_objects
        self._catalog = catalog
        self._entry = entry
        self._begin = guard.slot
        self.guard = guard
        self.is_in_doubt = False
        self.is_fenced = False

    def put(self, slot: int, data: bytes) -> None:
        """Make a slot.

        :raises OSError: it is not known whether the slot was made; the chain is in doubt
        :raises LogFencedError: it was not made, or does not count
        :raises InDoubtError: an earlier put in doubt made it; the chain is still in doubt
        """
        self.check_not_fenced()
        client, key = self._log_objects.client, self._log_objects.key(slot_name(slot))
        was_in_doubt, self.is_in_doubt = self.is_in_doubt, True
        is_made = client.create(key, data)
        if not is_made and was_in_doubt:
            self._check_own_put(slot)
        if not (is_made and self._guard_exists()) and not self._won_before_fence(slot):
            if is_made:
                with suppress(OSError):
                    client.delete([key])
            self.check_not_fenced()
        self.is_in_doubt = False

    def check_not_fenced(self) -> None:
        """Raise LogFencedError if another writer is known to have the log."""
        if self.is_fenced:
            raise LogFencedError(self._log_objects.log)

    def check(self) -> None:
        """Ask the catalog whether the log is still this writer's.

        :raises LogFencedError: it is not
        """
        self.is_fenced = self.is_fenced or self._entry_now() != self._entry
        self.check_not_fenced()

    def check_quietly(self) -> None:
        """Note a takeover that has begun, so that a new writer need not be faster than our appends."""
        with suppress(OSError, LedgerError):
            self.check()

    def _check_own_put(self, slot: int) -> None:
        with suppress(FileNotFoundError):
            found, data = self._log_objects.slot(slot)
            if found.writer == self.guard.manifest.writer:
                raise InDoubtError((found, data) if found.is_sealed else None)

    def _guard_exists(self) -> bool:
        try:
            return self._log_objects.client.is_same(self._log_objects.key(slot_name(self.guard.slot)), self.guard.data)
        except FileNotFoundError:
            return False

    def _won_before_fence(self, slot: int) -> bool:
        """Return whether this slot was made before another writer took the log over; False if the log was deleted.

        :raises OSError: the takeover was too long ago to know
        """
        self.is_fenced = True
        if not self._log_exists():
            return False
        try:
            contents = self._log_objects.load()
        except LogCorruptedError:
            if self._log_exists():
                raise
            return False
        manifest = contents.manifest
        if manifest.is_sealed and manifest.writer == self.guard.manifest.writer:
            return slot <= contents.base  # our seal: the next opener deleted the guard as garbage
        fence = manifest.fence_after(self.guard.manifest.epoch, self._begin)
        if fence is None:
            raise OSError("too many others opened it meanwhile to know whether this was in time")
        return slot < fence

    def _log_exists(self) -> bool:
        now = self._entry_now()
        return now is not None and now.instance == self._entry.instance

    def _entry_now(self) -> CatalogEntry | None:
        return self._catalog.logs().get(self._log_objects.log)
