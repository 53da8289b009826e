"""The objects of one log: its state as they tell it, and reading records; blocking, for any thread.

The slots are numbered without gaps from the newest manifest on, and everything that counts is named by it or lies in
a slot behind it. Objects that are no longer named are deleted by the writer, also under a reader, who then reads the
state anew: records never change, so what it looks for lies in another object by then.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from threading import Lock
from typing import Final, NamedTuple, TypeVar

from ..errors import LogNotFoundError
from ._object_format import Frames, Head, Place, decode_head, decode_records, decode_whole
from ._object_manifest import DATA, MANIFEST, NOTHING, SEGMENT, Manifest, Piece, as_manifest
from ._object_names import LOGS, folder_name, segment_epoch, slot_name, slot_number
from ._object_retry import Requests
from ._record import Incomplete
from ._segment import cost

_T = TypeVar("_T")
_R = TypeVar("_R")
_SMALL: Final = 1 << 18
_HEAD: Final = 1 << 12
_TRIES: Final = 10
_HEADS: Final = 256


class State(NamedTuple):
    """What a log consists of: pieces that the manifest in slot ``base`` names and those behind it, up to ``tail``.

    ``names`` are all objects in its folder that are ours, with sizes. Without slots both numbers are -1.
    """

    manifest: Manifest
    base: int
    tail: int
    names: dict[str, int]

    @property
    def size(self) -> int:
        """Return how many bytes its objects have, without those that do not count."""
        return sum(piece.size for piece in self.manifest.pieces)


NEW: Final = State(NOTHING, -1, -1, {})


class Folder:
    """The objects of one log.

    :param executor: for requests at the same time; None: one after the other
    """

    def __init__(self, requests: Requests, log: str, instance: str, executor: Executor | None) -> None:
        self.requests = requests
        self.log = log
        self._path = f"{LOGS}/{folder_name(log, instance)}"
        self._executor = executor
        self._heads: OrderedDict[str, Head] = OrderedDict()
        self._lock = Lock()

    def key(self, name: str) -> str:
        """Return the key of an object."""
        return f"{self._path}/{name}"

    def names(self) -> dict[str, int]:
        """Return the names of the objects that are ours, with their sizes."""
        return {name: size for name, size in self.requests.list(self._path).items() if is_own(name)}

    def load(self) -> State:
        """Read the state; it may be a moment old.

        :raises LogCorruptedError: something is damaged or missing
        :raises OSError: something could not be read
        """
        missing = ""
        for count in range(_TRIES):
            names = self.names()
            tail = last_slot(names)
            if tail < 0:
                return State(NOTHING, -1, -1, names)
            try:
                return self._state(names, tail)
            except FileNotFoundError as error:
                missing = str(error)
                self.requests.pause(count)
        raise self._place(slot_name(tail)).damage(0, f"something that belongs to it is missing: {missing}")

    def find(self, pieces: Sequence[Piece], first: int, last: int, limit: int) -> list[bytes]:
        """Return records, at least one, and not many more bytes than the limit.

        :raises FileNotFoundError: a piece is not there any more
        """
        if not pieces or pieces[-1].end <= last:
            raise FileNotFoundError(f"{self._path} has no record {last}")
        found: list[bytes] = []
        at = bisect_right(pieces, first, key=lambda piece: piece.first) - 1
        while first <= last and limit > 0:
            part = self.read(pieces[at], first, min(last, pieces[at].end - 1), limit)
            found += part
            first += len(part)
            limit -= sum(map(cost, part))
            at += first >= pieces[at].end
        return found

    def read(self, piece: Piece, first: int, last: int, limit: int) -> list[bytes]:
        """Return records of a piece: a small one is read as a whole, of a large one what is needed."""
        place = self._place(piece.name)
        if piece.size <= _SMALL:
            data = self.requests.get(place.key)
            head = decode_whole(data, place, piece.number, _kind(piece.name))
            begin = head.offsets[0] if head.offsets else len(data)
            frames = Frames(head.seed, piece.first, begin, data[begin:])
        else:
            head = self._head(piece)
            number, begin, end = head.part(first, last, piece.size, limit)
            frames = Frames(head.seed, number, begin, self.requests.get(place.key, begin, end - begin))
        return decode_records(frames, place, first, last)

    def slot(self, number: int) -> tuple[Manifest, bytes]:
        """Return the manifest in a slot, or one that only says who put records there, and its bytes.

        :raises FileNotFoundError: there is no such slot
        """
        place = self._place(slot_name(number))
        data = self.requests.get(place.key)
        head = decode_head(data, place, number)
        if isinstance(head, Incomplete):
            raise place.damage(len(data), "the object ends before its head does")
        if head.kind == MANIFEST:
            return as_manifest(head, place), data
        return NOTHING._replace(writer=str(head.fields.get("writer"))), data

    def each(self, work: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
        """Call this for each item, at the same time where there are threads for it."""
        return list(map(work, items) if self._executor is None else self._executor.map(work, items))

    def remove_all(self) -> None:
        """Delete the objects of a log that the catalog does not name any more, the slots in order.

        :raises OSError: some may be left
        """
        names = self.names()
        self.requests.delete_in_order([self.key(name) for name in sorted(names) if slot_number(name) is not None])
        self.requests.delete([self.key(name) for name in names if slot_number(name) is None])

    def _state(self, names: dict[str, int], tail: int) -> State:
        last = self._slot(tail)
        if last.kind == MANIFEST:
            return State(as_manifest(last, self._place(slot_name(tail))), tail, tail, names)
        base = _whole(last, "base", self._place(slot_name(tail)))
        first, *heads = [*self.each(self._slot, range(base, tail)), last]
        if first.kind != MANIFEST:
            raise FileNotFoundError(f"{slot_name(base)} is no manifest")
        manifest = as_manifest(first, self._place(slot_name(base)))
        pieces, length = list(manifest.pieces), manifest.length
        for head in heads:
            name = slot_name(head.number)
            if head.kind != DATA or _whole(head, "first", self._place(name)) != length:
                raise FileNotFoundError(f"{name} does not follow what is before it")
            if name not in names:
                raise FileNotFoundError(name)
            pieces.append(Piece(name, length, _whole(head, "count", self._place(name)), names[name], head.number))
            length = pieces[-1].end
        return State(manifest.with_pieces(pieces), base, tail, names)

    def _slot(self, number: int) -> Head:
        return self._get_head(slot_name(number), number)

    def _head(self, piece: Piece) -> Head:
        with self._lock:
            head = self._heads.pop(piece.name, None)
        if head is None:
            head = self._get_head(piece.name, piece.number)
        with self._lock:
            self._heads[piece.name] = head
            while len(self._heads) > _HEADS:
                self._heads.popitem(last=False)
        return head

    def _get_head(self, name: str, number: int) -> Head:
        place = self._place(name)
        data = self.requests.get(place.key, 0, _HEAD)
        head = decode_head(data, place, number)
        if isinstance(head, Incomplete):
            data = self.requests.get(place.key, 0, head.size)
            head = decode_head(data, place, number)
        if isinstance(head, Incomplete):
            raise place.damage(len(data), "the object ends before its head does")
        return head

    def _place(self, name: str) -> Place:
        return Place(self.log, self.key(name), self.log)


class Reader:
    """Reads records by number, wherever they lie by then.

    :param pieces: returns the pieces as they are known
    """

    def __init__(self, folder: Folder, pieces: Callable[[], Sequence[Piece]]) -> None:
        self._folder = folder
        self._pieces = pieces

    def read(self, first: int, last: int, limit: int) -> list[bytes]:
        """Return records, at least one, and not many more bytes than the limit.

        :raises LogNotFoundError: the log was deleted meanwhile
        """
        for count in range(_TRIES):
            pieces = self._pieces() if count < 2 else self._folder.load().manifest.pieces
            try:
                return self._folder.find(pieces, first, last, limit)
            except FileNotFoundError:
                continue
        raise LogNotFoundError(self._folder.log)


def last_slot(names: Iterable[str]) -> int:
    """Return the number of the last slot; -1: there is none."""
    return max((number for name in names if (number := slot_number(name)) is not None), default=-1)


def is_own(name: str) -> bool:
    """Return whether an object in a log's folder belongs to it."""
    return slot_number(name) is not None or segment_epoch(name) is not None


def _kind(name: str) -> str:
    return DATA if slot_number(name) is not None else SEGMENT


def _whole(head: Head, field: str, place: Place) -> int:
    value = head.fields.get(field)
    if isinstance(value, bool) or not isinstance(value, int):
        raise place.damage(0, f"its head has no good {field!r}: {value!r}")
    return value
