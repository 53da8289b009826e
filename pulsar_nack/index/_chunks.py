"""Sealed chunks: read-only encodings of sets of numbers, of which the smallest wins; and buckets drained from them.

A chunk is a ``bytes`` object whose first byte is its kind:

- ``R`` (``W`` with 64 bits): a roaring bitmap in its portable form, about 2 bytes a number if thin, 4 a run, one bit if
  dense
- ``G``: gaps, the first number, then one byte for the distance to each next one (0 < gap < 256)
- ``I`` or ``Q``: plain numbers of 4 or 8 bytes in order, for numbers that lie far apart

Sealing as ``R`` costs about 20 ns a number, as ``G`` about 40. ``G`` is tried only where it would save a quarter, and
not beyond 16 384 numbers, which would take more than a millisecond. Id ranges (see ``_id_ranges``) are smaller still,
but depend on what is pending.

A bucket may hold a million numbers, too many to decode in one call while the event loop waits. So if it is drained in
several calls (:class:`DrainingBucket`), its chunks stay encoded until their turn. To give numbers in order, the parts
are merged: a part is decoded when the numbers before it are used up, and nothing is returned beyond the lowest number
that an encoded part may have. If all parts reach over the whole range, as when ids were nacked in any order, ever more
parts are decoded at a time.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from functools import cache, partial
from itertools import accumulate, islice, takewhile
from operator import le
from typing import Any, Final

from pyroaring import BitMap, BitMap64

from ._pending import widened

_ROARING: Final = ord("R")
_ROARING64: Final = ord("W")
_GAPS: Final = ord("G")
_HEAD: Final = 9
_MAX_GAPS: Final = 16_384
_COOKIE_WITH_RUNS: Final = 12_347
_JOIN: Final = 16
_DECODED: Final = 512
"""The size of a part that is still encoded, roughly."""
_SMALL: Final = 4_096
_LARGE: Final = 65_536
_LIST_BYTES: Final = 160
_OBJECT_BYTES: Final = 50
"""Overhead of a ``bytes`` object: its head, rounding up to 16 bytes, and its place in a list."""


class SealedChunks:
    """The sealed chunks of all buckets, by start, in the order in which they were added."""

    __slots__ = ("_bytes", "by_start")

    def __init__(self) -> None:
        self.by_start: dict[int, list[bytes]] = {}
        self._bytes = 0

    def clear(self) -> None:
        """Remove all chunks."""
        self.by_start.clear()
        self._bytes = 0

    def memory(self) -> int:
        """Return about how many bytes are held. O(1)."""
        return self._bytes + _LIST_BYTES * len(self.by_start)

    def add(self, start: int, chunk: bytes) -> None:
        """Add a chunk to a bucket."""
        self.by_start.setdefault(start, []).append(chunk)
        self._bytes += len(chunk) + _OBJECT_BYTES

    def take(self, start: int) -> list[bytes]:
        """Remove and return the chunks of a bucket."""
        taken = self.by_start.pop(start, [])
        self._bytes -= sum(map(len, taken)) + _OBJECT_BYTES * len(taken)
        return taken

    def replace(self, start: int, place: int, numbers: Any) -> None:
        """Seal ``numbers`` in place of a chunk, or remove the chunk if there are none."""
        chunks = self.by_start[start]
        self._bytes -= len(chunks[place]) + _OBJECT_BYTES
        if numbers:
            chunks[place] = seal(numbers)
            self._bytes += len(chunks[place]) + _OBJECT_BYTES
            return
        del chunks[place]
        if not chunks:
            del self.by_start[start]

    def join_overlapping(self, start: int, bitmap_type: type[Any]) -> None:
        """Join the last chunks of a bucket, all of similar size, if they overlap because ids came in any order.

        Else reading in order of number would have to decode all of them at once. Looks at every 16th chunk only. A
        number is joined twice at most, which costs a few ns each time.
        """
        chunks = self.by_start[start]
        if len(chunks) % _JOIN:
            return
        size = _SMALL if len(chunks[-1]) < _SMALL else _LARGE
        last = list(takewhile(partial(_is_of, size), islice(reversed(chunks), 2 * _JOIN)))
        if len(last) < _JOIN >> 1 or not _overlap(last):
            return
        joined = seal(bitmap_type.union(*(unseal(chunk, bitmap_type) for chunk in last)))
        self._bytes += len(joined) + _OBJECT_BYTES - sum(map(len, last)) - _OBJECT_BYTES * len(last)
        chunks[-len(last) :] = [joined]


class DrainingBucket:
    """Parts of a bucket, bitmaps and sealed chunks; :meth:`take` returns their numbers in several calls.

    If merged, numbers come in ascending order over all parts; otherwise one part follows the other.
    """

    __slots__ = ("_bitmap_type", "_is_merged", "_left", "_parts")

    def __init__(self, bitmap_type: type[Any], parts: list[Any], *, is_merged: bool) -> None:
        self._bitmap_type = bitmap_type
        self._is_merged = is_merged
        self._left: Any = bitmap_type()
        placed = [(_begin_of(part) if is_merged else place, place, part) for place, part in enumerate(parts)]
        placed.sort(reverse=True)
        self._parts = [(begins, part) for begins, _, part in placed]

    def __bool__(self) -> bool:
        return bool(self._left) or bool(self._parts)

    def __iter__(self) -> Iterator[Any]:
        if self._left:
            yield self._left
        for _, part in list(self._parts):
            yield self._decoded(part)

    def size(self) -> int:
        """Return about how many numbers are left, including cancelled ones; O(parts)."""
        return len(self._left) + sum(_DECODED if isinstance(part, bytes) else len(part) for _, part in self._parts)

    def widen(self, bitmap_type: type[Any]) -> None:
        """Change to numbers of 64 bits."""
        self._bitmap_type = bitmap_type
        self._left = widened(self._left)
        self._parts = [(at, part if isinstance(part, bytes) else widened(part)) for at, part in self._parts]

    def take(self, limit: int | None) -> Any:
        """Remove and return the next numbers as a bitmap, at most ``limit``; empty only if nothing is left."""
        if not self._left:
            self._decode(1)
        numbers = self._ordered(limit) if limit is not None and self._is_merged else self._left
        if limit is not None and len(numbers) > limit:
            numbers = numbers & self._bitmap_type(range(numbers.min(), numbers[limit]))
        self._left = self._left - numbers
        return numbers

    def _ordered(self, wanted: int) -> Any:
        """Return decoded numbers below the start of every encoded part; fewer than ``wanted`` only at the end."""
        at_a_time = 1
        while self._parts:
            first, begins = self._left.min(), self._parts[-1][0]
            if begins > first:
                numbers = self._left & self._bitmap_type(range(first, begins))
                if len(numbers) >= wanted:
                    return numbers
            self._decode(at_a_time)
            at_a_time *= 2
        return self._left

    def _decode(self, parts: int) -> None:
        taken = [self._decoded(part) for _, part in reversed(self._parts[-parts:])]
        del self._parts[-parts:]
        self._left = self._bitmap_type.union(self._left, *taken) if taken else self._left

    def _decoded(self, part: Any) -> Any:
        return unseal(part, self._bitmap_type) if isinstance(part, bytes) else part


def seal(numbers: Any) -> bytes:
    """Encode a ``BitMap`` or ``BitMap64`` that is not empty; this may run-optimize it."""
    wide = isinstance(numbers, BitMap64)
    count = len(numbers)
    numbers.run_optimize()
    packed: bytes = numbers.serialize()
    if len(packed) >= count * (8 if wide else 4):
        flat: array[int] = numbers.to_array()
        return flat.typecode.encode() + flat.tobytes()
    span = numbers.max() - numbers.min()
    if count <= _MAX_GAPS and len(packed) > 1.25 * (count + _HEAD) and span < 128 * count:
        gaps = _gaps(numbers.to_array())
        if gaps is not None and len(gaps) < len(packed):
            return gaps
    return (b"W" if wide else b"R") + packed


def unseal(data: bytes, bitmap_type: type[Any] = BitMap) -> Any:
    """Decode a chunk into a new bitmap of the given type."""
    kind = data[0]
    typecode = "I" if bitmap_type is BitMap else "Q"
    if kind in {_ROARING, _ROARING64}:
        made_as = BitMap if kind == _ROARING else BitMap64
        numbers = made_as.deserialize(data[1:])
        return numbers if made_as is bitmap_type else bitmap_type(array(typecode, numbers.to_array()))
    if kind == _GAPS:
        first = int.from_bytes(data[1:_HEAD], "little")
        return bitmap_type(array(typecode, accumulate(data[_HEAD:], initial=first)))
    flat: array[int] = array(chr(kind))
    flat.frombytes(data[1:])
    return bitmap_type(flat if flat.typecode == typecode else array(typecode, flat))


def where_begins(data: bytes) -> int:
    """Return a lower bound of the numbers of a chunk, without decoding it.

    For a roaring bitmap this is where the first container begins: its key follows the cookie, the number of containers
    and, if there are runs, a bit for each container (RoaringFormatSpec).
    """
    if data[0] == _GAPS:
        return int.from_bytes(data[1:_HEAD], "little")
    if is_plain(data):
        return int.from_bytes(data[1 : 5 if data[0] == ord("I") else 9], sys.byteorder)
    at, high = 1, 0
    if data[0] == _ROARING64:  # the number of bitmaps of 32 bits, then what the first has above them
        at, high = 13, int.from_bytes(data[9:13], "little")
    cookie = int.from_bytes(data[at : at + 4], "little")
    has_runs = cookie & 0xFFFF == _COOKIE_WITH_RUNS
    key_at = at + 4 + ((cookie >> 16) + 8) // 8 if has_runs else at + 8
    return high << 32 | int.from_bytes(data[key_at : key_at + 2], "little") << 16


def is_plain(chunk: bytes) -> bool:
    """Return whether a chunk holds plain numbers."""
    return chunk[0] in b"IQ"


def _gaps(flat: array[int]) -> bytes | None:
    """Encode numbers as gaps by one subtraction, in which each number is a digit of a large integer.

    Returns None if a gap takes more than a byte or the numbers do not ascend, which borrows from the next digit.
    """
    if sys.byteorder == "big":
        flat = flat[:]
        flat.byteswap()
    data, width = flat.tobytes(), flat.itemsize
    gaps = int.from_bytes(data[width:], "little") - int.from_bytes(data[:-width], "little")
    if gaps <= 0 or gaps & _above_a_byte(width):
        return None
    digits = gaps.to_bytes(len(data) - width, "little")
    return bytes([_GAPS]) + data[:width].ljust(8, b"\0") + digits[::width]


@cache
def _above_a_byte(width: int) -> int:
    return int.from_bytes((b"\0" + b"\xff" * (width - 1)) * _MAX_GAPS, "little")


def _is_of(size: int, chunk: bytes) -> bool:
    return (0 if size == _SMALL else _SMALL) <= len(chunk) < size


def _overlap(chunks: list[bytes]) -> bool:
    """Return whether at least half of the chunks, latest first, begin no later than the chunk before them."""
    begins = [where_begins(chunk) for chunk in chunks]
    overlapping: int = sum(map(le, begins, begins[1:]))
    return 2 * overlapping >= len(begins) - 1


def _begin_of(part: Any) -> int:
    begins: int = where_begins(part) if isinstance(part, bytes) else part.min()
    return begins
