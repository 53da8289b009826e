"""Writing one log on object storage; blocking, one call at a time.

Every change is one put of the next slot, which must not exist: records, or a manifest. Somebody else who took the log
over made that slot before, so the put of the old writer fails, and it is fenced.

*A slot that was deleted.* Manifests before one's own are deleted, in order, and then a writer that slept since the
last but one would not find the fence. So after each put a writer looks whether its *guard*, the newest manifest of its
own, is still there: guards are deleted before the fences behind them, so a guard that is there says that the slot had
never been made before. If it is gone, the newest manifest says with which slots others took over, and so whether the
put was in time. What a put out of time leaves is never named by a manifest, and is deleted by the next opening.

*A put in doubt.* When it is not known whether a slot was made, nothing is put behind it: the next change first puts a
manifest, of what is known to be durable, into that slot, or into the one behind when the slot was made after all. So
records whose append failed do not count from then on. Before that they may, for who opens the log meanwhile.

*Bounds.* When many small pieces have gathered they are merged into a segment, before the next append and when the log
is sealed; a manifest names it, and what it replaces is deleted. A merge that fails is put off.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from ..errors import LedgerError, LogCorruptedError, LogFencedError, LogSealedError, LogStorageError
from ._object_folder import Folder, Reader, State
from ._object_format import encode
from ._object_manifest import DATA, MANIFEST, SEGMENT, Manifest, Piece, plan_merge, small_pieces
from ._object_names import segment_epoch, segment_name, slot_name, slot_number

_CHECK_EVERY: Final = 16
_RECENT: Final = 1 << 20


class Limits(NamedTuple):
    """About how large a segment becomes at most, and how many small pieces there may be before they are merged."""

    max_object_bytes: int
    max_small_objects: int


class Ownership(Protocol):
    """What the catalog says now of a log; OSError when it cannot be asked."""

    def is_there(self) -> bool:
        """Return whether it was not deleted."""
        ...

    def is_mine(self) -> bool:
        """Return whether nobody opened it for writing since."""
        ...


class ObjectWriter:
    """Appends to a log that it has taken over.

    :param state: the log's state; its newest manifest is one of this writer
    :param data: the bytes of that manifest
    :param catalog: says whether the log is still this writer's
    """

    def __init__(
        self,
        folder: Folder,
        state: State,
        data: bytes,
        limits: Limits,
        catalog: Ownership,
    ) -> None:
        self._folder = folder
        self._manifest = state.manifest
        self._tail = state.tail
        self._guard, self._guard_data = state.base, data
        self._begin = state.base
        self._limits = limits
        self._merge_at = limits.max_small_objects
        self._catalog = catalog
        self._is_suspect = False
        self._is_fenced = False
        self._appends = 0
        self._old_slots: list[str] = []
        self._old_pieces: list[str] = []
        self._recent: dict[str, Sequence[bytes]] = {}
        self._room = _RECENT
        self._pieces = list(state.manifest.pieces)
        self.reader = Reader(folder, lambda: list(self._pieces))
        self.length = state.manifest.length
        self.size = sum(piece.size for piece in self._pieces) + len(data)
        self.is_sealed = state.manifest.is_sealed

    def append(self, records: Sequence[bytes]) -> int:
        """Add records, durably; return the number of the first. Without records this is the seal.

        :raises OSError: nothing was added
        :raises LogFencedError: the log is another writer's now; nothing was added
        :raises LogSealedError: it is sealed already, and there are records
        """
        if self._is_suspect:
            self._put_manifest(self._pieces)
        if self.is_sealed:
            if records:
                raise LogSealedError(self._folder.log)
            return self.length
        self._must_be_mine()
        if not records:
            self._seal()
            return self.length
        if self._small >= self._merge_at or self._tail - self._guard >= self._limits.max_small_objects:
            self._merge_or_put_off()
        return self._append(records)

    def tidy(self, names: dict[str, int]) -> None:
        """Delete what the manifest does not name of the objects that were there when it had been made."""
        unnamed = self._unnamed(names)
        self._old_slots = [name for name in unnamed if slot_number(name) is not None]
        self._old_pieces = [name for name in unnamed if slot_number(name) is None]
        self._sweep()

    def check(self) -> None:
        """Ask the catalog whether the log is still this writer's.

        :raises LogFencedError: it is not
        """
        self._must_be_mine()
        self._is_fenced = not self._catalog.is_mine()
        self._must_be_mine()

    @property
    def _small(self) -> int:
        return small_pieces(self._pieces, self._limits.max_object_bytes)

    def _append(self, records: Sequence[bytes]) -> int:
        first, slot = self.length, self._tail + 1
        fields = {
            "epoch": self._manifest.epoch,
            "writer": self._manifest.writer,
            "base": self._guard,
            "first": first,
            "count": len(records),
        }
        data = encode(DATA, slot, fields, records, first)
        self._put(slot, data)
        self._tail = slot
        self._pieces.append(Piece(slot_name(slot), first, len(records), len(data), slot))
        self.length += len(records)
        self.size += len(data)
        self._room -= len(data)
        if self._room >= 0:
            self._recent[slot_name(slot)] = records
        self._appends += 1
        if self._appends % _CHECK_EVERY == 0:
            self._look()
        return first

    def _seal(self) -> None:
        pieces = self._pieces
        with suppress(OSError, LogStorageError):
            pieces = self._merged(2)
        self._put_manifest(pieces, is_sealed=True)

    def _merge_or_put_off(self) -> None:
        """Put a manifest, with small pieces merged when there are many; no use trying at each append when it fails."""
        try:
            self._put_manifest(self._merged(self._merge_at))
        except (OSError, LogStorageError):
            if self._is_suspect:
                raise
        self._merge_at = max(self._limits.max_small_objects, self._small + self._limits.max_small_objects // 2)

    def _merged(self, least: int) -> list[Piece]:
        """Put segments in place of runs of small pieces, when there are so many; return all pieces then."""
        pieces = list(self._pieces)
        if self._small >= least:
            for begin, end in reversed(plan_merge(pieces, self._limits.max_object_bytes)):
                pieces[begin:end] = [self._merge(pieces[begin:end])]
        return pieces

    def _merge(self, pieces: Sequence[Piece]) -> Piece:
        records = [record for part in self._folder.each(self._read, pieces) for record in part]
        first, name = pieces[0].first, segment_name(pieces[0].first, self._manifest.epoch)
        if len(records) != pieces[-1].end - first:
            raise OSError(f"{len(records)} records from {first} where {pieces[-1].end - first} should be")
        data = encode(SEGMENT, first, {"first": first, "count": len(records)}, records, first)
        if not self._folder.requests.create(self._folder.key(name), data):
            raise OSError(f"{name} was there already")
        return Piece(name, first, len(records), len(data), first)

    def _read(self, piece: Piece) -> Sequence[bytes]:
        known = self._recent.get(piece.name)
        return known or self._folder.read(piece, piece.first, piece.end - 1, 1 << 62)

    def _put_manifest(self, pieces: Sequence[Piece], *, is_sealed: bool = False) -> None:
        """Put a manifest into the next slot, or behind a put of this writer that was in doubt; it is the guard then.

        A seal that was in doubt, and is there, is taken over: somebody may have seen it.
        """
        manifest = self._manifest.with_pieces(pieces)._replace(is_sealed=is_sealed)
        slot = self._tail + 1
        while True:
            data = encode(MANIFEST, slot, manifest.fields())
            try:
                self._put(slot, data)
            except _InDoubt as error:
                if error.seal is not None:
                    manifest, data = error.seal
                    break
                slot += 1
                continue
            break
        self._is_suspect = False
        self._replace(manifest, slot, data)

    def _replace(self, manifest: Manifest, slot: int, data: bytes) -> None:
        old = {slot_name(at) for at in range(self._guard + 1, slot)} | {piece.name for piece in self._pieces}
        self._old_slots.append(slot_name(self._guard))
        self._manifest, self._tail = manifest, slot
        self._guard, self._guard_data = slot, data
        self._pieces[:] = manifest.pieces
        self.is_sealed = manifest.is_sealed
        self.size = sum(piece.size for piece in self._pieces) + len(data)
        self._old_pieces += self._unnamed(old)
        self._recent, self._room = {}, _RECENT
        self._sweep()

    def _put(self, slot: int, data: bytes) -> None:
        """Make a slot.

        :raises OSError: it is not known whether it was made
        :raises LogFencedError: it was not, or does not count
        :raises _InDoubt: it is one that this writer was in doubt about
        """
        self._must_be_mine()
        requests, was_suspect, self._is_suspect = self._folder.requests, self._is_suspect, True
        is_made = requests.create(self._folder.key(slot_name(slot)), data)
        if not is_made and was_suspect:
            self._find_own(slot)
        if not (is_made and self._has_guard()) and not self._was_in_time(slot):
            if is_made:
                with suppress(OSError):
                    requests.delete([self._folder.key(slot_name(slot))])
            self._must_be_mine()
        self._is_suspect = False

    def _find_own(self, slot: int) -> None:
        """Raise _InDoubt if a slot is of this writer."""
        with suppress(FileNotFoundError):
            found, data = self._folder.slot(slot)
            if found.writer == self._manifest.writer:
                raise _InDoubt((found, data) if found.is_sealed else None)

    def _has_guard(self) -> bool:
        try:
            return self._folder.requests.is_same(self._folder.key(slot_name(self._guard)), self._guard_data)
        except FileNotFoundError:
            return False

    def _was_in_time(self, slot: int) -> bool:
        """Return whether this slot was made before somebody else took over, who did, or deleted the log.

        :raises OSError: that is too long ago to tell
        """
        self._is_fenced = True
        if not self._catalog.is_there():
            return False
        try:
            manifest = self._folder.load().manifest
        except LogCorruptedError:
            if self._catalog.is_there():
                raise
            return False
        fence = manifest.fence_after(self._manifest.epoch, self._begin)
        if fence is None:
            raise OSError("too many others opened it meanwhile to tell whether this was in time")
        return slot < fence

    def _look(self) -> None:
        """Make way for somebody who wants to take over, and would have to be faster than the appends come."""
        with suppress(OSError, LedgerError):
            self._is_fenced = self._is_fenced or not self._catalog.is_mine()

    def _must_be_mine(self) -> None:
        if self._is_fenced:
            raise LogFencedError(self._folder.log)

    def _unnamed(self, names: Iterable[str]) -> list[str]:
        named = {piece.name for piece in self._pieces}
        return sorted(name for name in names if name not in named and self._is_old(name))

    def _is_old(self, name: str) -> bool:
        """Return whether nobody but this writer can name it: segments of later epochs are left alone."""
        slot = slot_number(name)
        return (segment_epoch(name) or 0) <= self._manifest.epoch if slot is None else slot < self._guard

    def _sweep(self) -> None:
        """Delete what is not named any more; what cannot be deleted is tried again at the next occasion.

        Slots that may hold a guard or a fence go in order. Others of this writer hold neither.
        """
        requests, key = self._folder.requests, self._folder.key
        with suppress(OSError):
            while self._old_slots and not self._is_fenced:
                requests.delete([key(self._old_slots[0])])
                del self._old_slots[0]
            if not self._is_fenced:
                requests.delete([key(name) for name in self._old_pieces])
                self._old_pieces.clear()


class _InDoubt(Exception):  # noqa: N818
    """The slot was made by a put of this writer that had failed; ``seal`` is what it has when that is a seal."""

    def __init__(self, seal: tuple[Manifest, bytes] | None) -> None:
        self.seal = seal
