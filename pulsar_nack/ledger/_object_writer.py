"""Writing the slots of one log, merging small objects, and deleting old ones; blocking, one call at a time.

*Fencing.* Every change is one put of the next slot, which must not exist: records, or a manifest. A writer that took
the log over has made that slot before, so the put of the old writer fails, and it is *fenced*.

*A slot that was deleted.* Older manifests are deleted, in order, so a writer that was suspended for more than one
takeover would not find the fence. Therefore after each put a writer checks that its *guard*, its own newest manifest,
still exists: guards are deleted before the fences behind them, so while the guard exists the slot had never been made.
If the guard is gone, the newest manifest names the slots of the takeovers, and so shows whether the put was in time. A
slot that was put too late is never named by a manifest, and is deleted.

*A put in doubt.* If it is not known whether a slot was made, nothing is put behind it: the next change first puts a
manifest, which names what is known to be durable, into that slot, or into the one behind if the slot was made after all
(:class:`InDoubtError`). So records whose append failed do not count from then on. Until then they may count for a
process that opens the log.

*Bounds.* Many small objects are merged into a segment, before the next append and when the log is sealed; a manifest
names the segment, and the objects that it replaces are deleted. A merge that fails is postponed: neither an append nor
the seal needs it. The trailing small objects are merged, except those that are more than twice as large as everything
behind them. So a record is copied at most as often as the logarithm of the number of appends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from ..errors import LedgerError, LogCorruptedError, LogFencedError, LogSealedError
from ._object_catalog import Catalog, CatalogEntry
from ._object_contents import LogObjects, slots_and_others
from ._object_format import (
    DATA,
    MANIFEST,
    SEGMENT,
    Manifest,
    ObjectRef,
    encode,
    new_segment_name,
    segment_epoch,
    slot_name,
    slot_number,
)
from ._protocol import LogState

_CHECK_EVERY: Final = 16
_RECENT: Final = 1 << 20


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
    """Makes slots for the writer whose first manifest is the guard."""

    def __init__(self, log_objects: LogObjects, guard: Guard, catalog: Catalog) -> None:
        self._log_objects = log_objects
        self._catalog = catalog
        self._entry = log_objects.entry
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


class ObjectWriter(LogState):
    """Appends to a log that it has taken over: the guard of the chain is the log's newest manifest.

    :param max_object_bytes: about how large a segment becomes at most
    :param max_small_objects: how many small objects there may be before they are merged
    """

    def __init__(
        self, log_objects: LogObjects, chain: SlotChain, max_object_bytes: int, max_small_objects: int
    ) -> None:
        manifest = chain.guard.manifest
        self._log_objects = log_objects
        self._log = log_objects.log
        self._chain = chain
        self._merger = Merger(log_objects, manifest.epoch, max_object_bytes)
        self._old_slots: set[str] = set()
        self._old_objects: set[str] = set()
        self._max_small_objects = self._merge_at = max_small_objects
        self._tail = chain.guard.slot
        self._appends = 0
        self._objects = list(manifest.objects)
        super().__init__(manifest.length, self._size, manifest.is_sealed)

    def append(self, records: Sequence[bytes]) -> int:
        """Append records durably; return the number of the first. Without records, seal the log.

        :raises OSError: nothing was added
        :raises LogFencedError: another writer has the log; nothing was added
        :raises LogSealedError: the log is sealed, and there are records
        """
        if self._chain.is_in_doubt:
            self._put_manifest(self._objects)
        if self.is_sealed:
            if records:
                raise LogSealedError(self._log)
            return self.length
        self._chain.check_not_fenced()
        if not records:
            self._put_manifest(self._merged(2), is_sealed=True)
            return self.length
        slots = self._tail - self._chain.guard.slot
        if self._merger.small(self._objects) >= self._merge_at or slots >= self._max_small_objects:
            self._put_manifest(self._merged(self._merge_at))
            most = self._max_small_objects
            self._merge_at = max(most, self._merger.small(self._objects) + most // 2)
        return self._append(records)

    def delete_unnamed(self, names: Iterable[str]) -> None:
        """Delete the objects among these, listed after the manifest was made, that it does not name."""
        self._delete_old(*slots_and_others(self._unnamed(names)))

    @property
    def objects(self) -> list[ObjectRef]:
        """Return the objects that hold the records now; for any thread."""
        return self._objects.copy()

    @property
    def _size(self) -> int:
        return sum(ref.size for ref in self._objects) + len(self._chain.guard.data)

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
        ref = ObjectRef(slot_name(slot), first, len(records), len(data), slot)
        self._merger.remember(ref, records)
        self._tail = slot
        self._objects.append(ref)
        self.length += len(records)
        self.size += len(data)
        self._appends += 1
        if self._appends % _CHECK_EVERY == 0:
            self._chain.check_quietly()
        return first

    def _merged(self, least: int) -> Sequence[ObjectRef]:
        """Return the objects, small ones merged if there are ``least``; as they are if that fails."""
        try:
            return self._merger.merge(self._objects, least)
        except (OSError, LedgerError):
            return self._objects

    def _put_manifest(self, objects: Sequence[ObjectRef], *, is_sealed: bool = False) -> None:
        """Put a manifest, the new guard, into the next slot, or behind an earlier put of this writer that was in doubt.

        If that put turns out to be a seal, it is kept: another process may have seen it.
        """
        manifest = self._chain.guard.manifest.with_objects(objects)._replace(is_sealed=is_sealed)
        slot = self._tail + 1
        while True:
            data = encode(MANIFEST, slot, manifest.fields(), owner=self._log)
            try:
                self._chain.put(slot, data)
                break
            except InDoubtError as error:
                if error.seal is not None:
                    manifest, data = error.seal
                    self._chain.is_in_doubt = False
                    break
                slot += 1
        self._replace(manifest, slot, data)

    def _replace(self, manifest: Manifest, slot: int, data: bytes) -> None:
        guard = self._chain.guard.slot
        old = {slot_name(at) for at in range(guard + 1, slot)} | {ref.name for ref in self._objects}
        old.update(self._merger.made)
        self._merger.forget()
        self._chain.guard, self._tail = Guard(manifest, slot, data), slot
        self._objects[:] = manifest.objects
        self.is_sealed = manifest.is_sealed
        self.size = self._size
        self._delete_old([slot_name(guard)], self._unnamed(old))

    def _delete_old(self, slots: Iterable[str], others: Iterable[str]) -> None:
        """Delete slots that may hold a guard or a fence, and others; what cannot be deleted is tried again later."""
        self._old_slots.update(slots)
        self._old_objects.update(others)
        if not self._chain.is_fenced:
            with suppress(OSError):
                self._log_objects.delete(self._old_slots, self._old_objects)
                self._old_slots.clear()
                self._old_objects.clear()

    def _unnamed(self, names: Iterable[str]) -> list[str]:
        named = {ref.name for ref in self._objects}
        return [name for name in names if name not in named and self._is_old(name)]

    def _is_old(self, name: str) -> bool:
        """Return whether only this writer can still name the object: segments of later epochs are left alone."""
        slot, guard = slot_number(name), self._chain.guard
        return (segment_epoch(name) or 0) <= guard.manifest.epoch if slot is None else slot < guard.slot


class Merger:
    """Writes segments in an epoch; keeps up to 1 MiB of the newest records, so that they need not be read."""

    def __init__(self, log_objects: LogObjects, epoch: int, max_object_bytes: int) -> None:
        self._log_objects = log_objects
        self._epoch = epoch
        self._max_object_bytes = max_object_bytes
        self._recent: dict[str, Sequence[bytes]] = {}
        self._room = _RECENT
        self.made: list[str] = []

    def small(self, objects: Sequence[ObjectRef]) -> int:
        """Return how many trailing objects are small."""
        return count_small(objects, self._max_object_bytes)

    def remember(self, ref: ObjectRef, records: Sequence[bytes]) -> None:
        """Keep appended records if they fit."""
        self._room -= ref.size
        if self._room >= 0:
            self._recent[ref.name] = records

    def forget(self) -> None:
        """Drop all kept records."""
        self._recent, self._room = {}, _RECENT
        self.made.clear()

    def merge(self, objects: Sequence[ObjectRef], least: int) -> list[ObjectRef]:
        """Replace runs of small objects by segments if there are at least ``least``; return all objects.

        :raises OSError: reading an object or writing a segment failed; objects in ``made`` may exist
        :raises LogCorruptedError: an object is damaged; objects in ``made`` may exist
        """
        merged = list(objects)
        if self.small(merged) >= least:
            for begin, end in reversed(plan_merge(merged, self._max_object_bytes)):
                merged[begin:end] = [self._segment(merged[begin:end])]
        return merged

    def _segment(self, objects: Sequence[ObjectRef]) -> ObjectRef:
        records = [record for part in self._log_objects.map_parallel(self._read, objects) for record in part]
        first, name = objects[0].first, new_segment_name(objects[0].first, self._epoch)
        if len(records) != objects[-1].end - first:
            raise OSError(f"{len(records)} records from {first} where {objects[-1].end - first} should be")
        data = encode(
            SEGMENT, first, {"first": first, "count": len(records)}, records, first, owner=self._log_objects.log
        )
        self.made.append(name)
        if not self._log_objects.client.create(self._log_objects.key(name), data):
            raise OSError(f"{name} was there already")
        return ObjectRef(name, first, len(records), len(data), first)

    def _read(self, ref: ObjectRef) -> Sequence[bytes]:
        return self._recent.get(ref.name) or self._log_objects.read(ref, ref.first, ref.end - 1, 1 << 62)


def count_small(objects: Sequence[ObjectRef], most: int) -> int:
    """Return how many trailing objects are smaller than half of the largest segment."""
    count = 0
    while count < len(objects) and objects[-1 - count].size < most // 2:
        count += 1
    return count


def plan_merge(objects: Sequence[ObjectRef], most: int) -> list[tuple[int, int]]:
    """Return which runs of trailing small objects to merge, each into one segment of at most ``most`` bytes."""
    begin = len(objects)
    behind = 0
    for at in range(len(objects) - 1, len(objects) - 1 - count_small(objects, most), -1):
        if behind and objects[at].size > 2 * behind:
            break
        begin, behind = at, behind + objects[at].size
    runs, size, start = [], 0, begin
    for at in range(begin, len(objects)):
        if size and size + objects[at].size > most:
            runs.append((start, at))
            start, size = at, 0
        size += objects[at].size
    runs.append((start, len(objects)))
    return [(start, end) for start, end in runs if end - start > 1]
