"""What is put into the slots of one log; blocking, one call at a time. Fencing is in :mod:`._object_chain`.

*A put in doubt.* When it is not known whether a slot was made, nothing is put behind it: the next change first puts a
manifest, of what is known to be durable, into that slot, or into the one behind when the slot was made after all. So
records whose append failed do not count from then on. Before that they may, for who opens the log meanwhile.

*Bounds.* When many small pieces have gathered they are merged into a segment, before the next append and when the log
is sealed; a manifest names it, and what it replaces is deleted. A merge that fails is put off.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from ..errors import LogSealedError, LogStorageError
from ._object_chain import Chain, Guard, InDoubtError
from ._object_folder import Folder, Reader
from ._object_format import encode
from ._object_manifest import DATA, MANIFEST, Manifest, Piece
from ._object_merge import Garbage, Limits, Merger
from ._object_names import segment_epoch, slot_name, slot_number

_CHECK_EVERY: Final = 16


class ObjectWriter:
    """Appends to a log that it has taken over: the guard of the chain is the log's newest manifest."""

    def __init__(self, folder: Folder, chain: Chain, limits: Limits) -> None:
        manifest = chain.guard.manifest
        self._log = folder.log
        self._chain = chain
        self._limits = limits
        self._merger = Merger(folder, manifest.epoch, limits)
        self._garbage = Garbage(folder)
        self._merge_at = limits.max_small_objects
        self._tail = chain.guard.slot
        self._appends = 0
        self._pieces = list(manifest.pieces)
        self.reader = Reader(folder, lambda: list(self._pieces))
        self.length = manifest.length
        self.size = self._size
        self.is_sealed = manifest.is_sealed

    def append(self, records: Sequence[bytes]) -> int:
        """Add records, durably; return the number of the first. Without records this is the seal.

        :raises OSError: nothing was added
        :raises LogFencedError: the log is another writer's now; nothing was added
        :raises LogSealedError: it is sealed already, and there are records
        """
        if self._chain.is_suspect:
            self._put_manifest(self._pieces)
        if self.is_sealed:
            if records:
                raise LogSealedError(self._log)
            return self.length
        self._chain.must_be_mine()
        if not records:
            self._seal()
            return self.length
        slots = self._tail - self._chain.guard.slot
        if self._merger.small(self._pieces) >= self._merge_at or slots >= self._limits.max_small_objects:
            self._merge_or_put_off()
        return self._append(records)

    def tidy(self, names: Iterable[str]) -> None:
        """Delete what the manifest does not name of the objects that were there when it had been made."""
        unnamed = self._unnamed(names)
        slots = [name for name in unnamed if slot_number(name) is not None]
        self._garbage.add(slots, set(unnamed) - set(slots))
        self._garbage.sweep()

    @property
    def _size(self) -> int:
        return sum(piece.size for piece in self._pieces) + len(self._chain.guard.data)

    def _append(self, records: Sequence[bytes]) -> int:
        first, slot, guard = self.length, self._tail + 1, self._chain.guard
        fields = {
            "epoch": guard.manifest.epoch,
            "writer": guard.manifest.writer,
            "base": guard.slot,
            "first": first,
            "count": len(records),
        }
        data = encode(DATA, slot, fields, records, first, owner=self._log)
        self._chain.put(slot, data)
        piece = Piece(slot_name(slot), first, len(records), len(data), slot)
        self._merger.remember(piece, records)
        self._tail = slot
        self._pieces.append(piece)
        self.length += len(records)
        self.size += len(data)
        self._appends += 1
        if self._appends % _CHECK_EVERY == 0:
            self._chain.look()
        return first

    def _seal(self) -> None:
        pieces = self._pieces
        with suppress(OSError, LogStorageError):
            pieces = self._merger.merge(pieces, 2)
        self._put_manifest(pieces, is_sealed=True)

    def _merge_or_put_off(self) -> None:
        """Put a manifest, with small pieces merged when there are many; no use trying at each append when it fails."""
        try:
            self._put_manifest(self._merger.merge(self._pieces, self._merge_at))
        except (OSError, LogStorageError):
            if self._chain.is_suspect:
                raise
        most = self._limits.max_small_objects
        self._merge_at = max(most, self._merger.small(self._pieces) + most // 2)

    def _put_manifest(self, pieces: Sequence[Piece], *, is_sealed: bool = False) -> None:
        """Put a manifest into the next slot, or behind a put of this writer that was in doubt; it is the guard then.

        A seal that was in doubt, and is there, is taken over: somebody may have seen it.
        """
        manifest = self._chain.guard.manifest.with_pieces(pieces)._replace(is_sealed=is_sealed)
        slot = self._tail + 1
        while True:
            data = encode(MANIFEST, slot, manifest.fields(), owner=self._log)
            try:
                self._chain.put(slot, data)
                break
            except InDoubtError as error:
                if error.seal is not None:
                    manifest, data = error.seal
                    self._chain.is_suspect = False
                    break
                slot += 1
        self._replace(manifest, slot, data)

    def _replace(self, manifest: Manifest, slot: int, data: bytes) -> None:
        guard = self._chain.guard.slot
        old = {slot_name(at) for at in range(guard + 1, slot)} | {piece.name for piece in self._pieces}
        old.update(self._merger.made)
        self._merger.forget()
        self._chain.guard, self._tail = Guard(manifest, slot, data), slot
        self._pieces[:] = manifest.pieces
        self.is_sealed = manifest.is_sealed
        self.size = self._size
        self._garbage.add([slot_name(guard)], self._unnamed(old))
        if not self._chain.is_fenced:
            self._garbage.sweep()

    def _unnamed(self, names: Iterable[str]) -> list[str]:
        named = {piece.name for piece in self._pieces}
        return [name for name in names if name not in named and self._is_old(name)]

    def _is_old(self, name: str) -> bool:
        """Return whether nobody but this writer can name it: segments of later epochs are left alone."""
        slot, guard = slot_number(name), self._chain.guard
        return (segment_epoch(name) or 0) <= guard.manifest.epoch if slot is None else slot < guard.slot
