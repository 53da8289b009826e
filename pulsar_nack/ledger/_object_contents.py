"""The objects of one log: which of them count, and reading records; blocking, for any thread.

The slots are numbered without gaps from the newest manifest on. The objects that count are those that the manifest
names, and the slots behind it. The writer deletes objects that are no longer named, even while others read; a reader
then loads the contents again, and finds its records in another object, because records never change.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from functools import lru_cache, partial
from typing import Final, TypeVar

from ..errors import LogCorruptedError
from ._object_catalog import CatalogEntry
from ._object_format import (
    DATA,
    EMPTY_MANIFEST,
    LOGS,
    MANIFEST,
    SEGMENT,
    Head,
    Manifest,
    ObjectLocation,
    ObjectRef,
    as_manifest,
    decode_head,
    decode_records,
    decode_whole,
    folder_name,
    segment_epoch,
    slot_name,
    slot_number,
)
from ._object_requests import RetryingClient
from ._protocol import LogState
from .format import Incomplete
from .segments import record_cost

_T = TypeVar("_T")
_R = TypeVar("_R")
_SMALL: Final = 1 << 18
_HEAD: Final = 1 << 12
_TRIES: Final = 10
_CACHED_HEADS: Final = 256


class LogContents(LogState):
    """The contents of a log: the objects that the manifest in slot ``base`` names, then the slots up to ``tail``.

    ``names`` lists all objects in the log's folder that are ours, with sizes. Without slots both numbers are -1.
    """

    def __init__(self, manifest: Manifest, base: int, tail: int, names: dict[str, int]) -> None:
        super().__init__(manifest.length, sum(ref.size for ref in manifest.objects), manifest.is_sealed)
        self.manifest = manifest
        self.base = base
        self.tail = tail
        self.names = names

    @property
    def objects(self) -> Sequence[ObjectRef]:
        """Return the objects that hold the records."""
        return self.manifest.objects


EMPTY_CONTENTS: Final = LogContents(EMPTY_MANIFEST, -1, -1, {})


class LogObjects:
    """The objects of one log.

    :param entry: what the catalog said about the log when it was opened; without a writer for reading only
    :param executor: for parallel requests; None: one after the other
    """

    def __init__(self, client: RetryingClient, log: str, entry: CatalogEntry, executor: Executor | None) -> None:
        self.client = client
        self.log = log
        self.entry = entry
        self._path = f"{LOGS}/{folder_name(log, entry.instance)}"
        self._executor = executor
        self._cached_head = lru_cache(_CACHED_HEADS)(partial(_read_head, client))

    def key(self, name: str) -> str:
        """Return the key of an object."""
        return f"{self._path}/{name}"

    def names(self) -> dict[str, int]:
        """Return the names of the objects that are ours, with their sizes."""
        return {name: size for name, size in self.client.list(self._path).items() if is_log_object(name)}

    def load(self) -> LogContents:
        """Return the contents of the log, as they are or were a moment ago.

        :raises LogCorruptedError: something is damaged or missing
        :raises OSError: something could not be read
        """
        missing = ""
        for count in range(_TRIES):
            names = self.names()
            tail = last_slot(names)
            if tail < 0:
                return LogContents(EMPTY_MANIFEST, -1, -1, names)
            try:
                return self._load_from(names, tail)
            except FileNotFoundError as error:
                missing = str(error)
                self.client.pause(count)
        raise self._location(slot_name(tail)).damage(0, f"something that belongs to it is missing: {missing}")

    def read_records(self, objects: Sequence[ObjectRef], first: int, last: int, limit: int) -> list[bytes]:
        """Return records, at least one, about ``limit`` bytes at most, and none behind damage.

        :raises FileNotFoundError: an object was deleted
        :raises LogCorruptedError: the first record is lost
        """
        if not objects or objects[-1].end <= last:
            raise FileNotFoundError(f"{self._path} has no record {last}")
        found: list[bytes] = []
        at = bisect_right(objects, first, key=lambda ref: ref.first) - 1
        while first <= last and limit > 0:
            try:
                part = self.read(objects[at], first, min(last, objects[at].end - 1), limit)
            except LogCorruptedError:
                if found:
                    break
                raise
            found += part
            first += len(part)
            limit -= sum(map(record_cost, part))
            at += first >= objects[at].end
        return found

    def read(self, ref: ObjectRef, first: int, last: int, limit: int) -> list[bytes]:
        """Return records of an object: a small one is read as a whole, of a large one only what is needed."""
        location = self._location(ref.name)
        if ref.size <= _SMALL:
            whole = self.client.get(location.key)
            head = decode_whole(whole, location, ref.number, _kind_of(ref.name))
            number, begin, end = head.part(first, last, len(whole), limit)
            data = whole[begin:end]
        else:
            head = self._cached_head(location, ref.number)
            number, begin, end = head.part(first, last, ref.size, limit)
            data = self.client.get(location.key, begin, end - begin)
        return decode_records(data, location, first, last, seed=head.seed, begin=(number, begin))

    def slot(self, number: int) -> tuple[Manifest, bytes]:
        """Return the manifest in a slot and its bytes; for a slot with records a manifest that only names the writer.

        :raises FileNotFoundError: there is no such slot
        """
        location = self._location(slot_name(number))
        data = self.client.get(location.key)
        head = decode_head(data, location, number)
        if isinstance(head, Incomplete):
            raise location.damage(len(data), "the object ends before its head does")
        if head.kind == MANIFEST:
            return as_manifest(head, location), data
        return EMPTY_MANIFEST._replace(writer=str(head.fields.get("writer"))), data

    def map_parallel(self, work: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
        """Call ``work`` for each item, in parallel if there are threads for it."""
        return list(map(work, items) if self._executor is None else self._executor.map(work, items))

    def delete(self, slots: Iterable[str], others: Iterable[str]) -> None:
        """Delete objects: slots that may hold a guard or a fence in order, then others.

        :raises OSError: some objects may be left
        """
        self.client.delete_in_order([self.key(name) for name in sorted(slots)])
        self.client.delete([self.key(name) for name in sorted(others)])

    def delete_all(self) -> None:
        """Delete the objects of a log that the catalog no longer names.

        :raises OSError: some objects may be left
        """
        self.delete(*slots_and_others(self.names()))

    def _load_from(self, names: dict[str, int], tail: int) -> LogContents:
        last = self._slot_head(tail)
        if last.kind == MANIFEST:
            return LogContents(as_manifest(last, self._location(slot_name(tail))), tail, tail, names)
        base = _int_field(last, "base", self._location(slot_name(tail)))
        first, *heads = [*self.map_parallel(self._slot_head, range(base, tail)), last]
        if first.kind != MANIFEST:
            raise FileNotFoundError(f"{slot_name(base)} is no manifest")
        manifest = as_manifest(first, self._location(slot_name(base)))
        objects, length = list(manifest.objects), manifest.length
        for head in heads:
            name = slot_name(head.number)
            if head.kind != DATA or _int_field(head, "first", self._location(name)) != length:
                raise FileNotFoundError(f"{name} does not follow what is before it")
            if name not in names:
                raise FileNotFoundError(name)
            objects.append(
                ObjectRef(name, length, _int_field(head, "count", self._location(name)), names[name], head.number)
            )
            length = objects[-1].end
        return LogContents(manifest.with_objects(objects), base, tail, names)

    def _slot_head(self, number: int) -> Head:
        return _read_head(self.client, self._location(slot_name(number)), number)

    def _location(self, name: str) -> ObjectLocation:
        return ObjectLocation(self.log, self.key(name), self.log)


def last_slot(names: Iterable[str]) -> int:
    """Return the number of the last slot, or -1."""
    return max((number for name in names if (number := slot_number(name)) is not None), default=-1)


def slots_and_others(names: Iterable[str]) -> tuple[set[str], set[str]]:
    """Return which of these objects of a log are slots, and which are not."""
    others = set(names)
    slots = {name for name in others if slot_number(name) is not None}
    return slots, others - slots


def is_log_object(name: str) -> bool:
    """Return whether an object in a log's folder belongs to the log."""
    return slot_number(name) is not None or segment_epoch(name) is not None


def _read_head(client: RetryingClient, location: ObjectLocation, number: int) -> Head:
    data = client.get(location.key, 0, _HEAD)
    head = decode_head(data, location, number)
    if isinstance(head, Incomplete):
        data = client.get(location.key, 0, head.size)
        head = decode_head(data, location, number)
    if isinstance(head, Incomplete):
        raise location.damage(len(data), "the object ends before its head does")
    return head


def _kind_of(name: str) -> str:
    return DATA if slot_number(name) is not None else SEGMENT


def _int_field(head: Head, field: str, location: ObjectLocation) -> int:
    value = head.fields.get(field)
    if isinstance(value, bool) or not isinstance(value, int):
        raise location.damage(0, f"its head has no good {field!r}: {value!r}")
    return value
