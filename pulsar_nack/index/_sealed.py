"""Read-only encodings of a set of numbers; the smallest one wins.

Each is a ``bytes`` object whose first byte tells its kind:

- ``R`` a roaring bitmap in its portable form: about 2 bytes a number when thin, 4 a run, one bit when dense
- ``G`` gaps: the first number, then one byte for the distance to each next one (0 < gap < 256)
- ``I`` or ``Q`` plain numbers of 4 or 8 bytes in any order: numbers that lie far apart

Sealing a bitmap in ``R`` costs about 20 ns a number, in ``G`` about 40; ``G`` is tried only where it would
save a quarter, and not beyond 16 384 numbers, which would take more than a millisecond. :func:`pack` makes no bitmap
where it sees that ``G`` or plain numbers will do.
Windows (see ``_windows``) are not made here: they need to know what is pending.
"""

from __future__ import annotations

import sys
from array import array
from functools import cache
from itertools import accumulate
from typing import Any, Final

from pyroaring import BitMap, BitMap64

_ROARING: Final = ord("R")
_ROARING64: Final = ord("W")
_GAPS: Final = ord("G")
_HEAD: Final = 9
_MOST_GAPS: Final = 16_384
_COOKIE_WITH_RUNS: Final = 12_347
_FAR_APART: Final = 1 << 14
_EACH: Final = 32

OBJECT_BYTES: Final = 50
"""What a ``bytes`` object takes beside its content: its head, up to the next 16 bytes, and its place in a list."""


def seal(numbers: Any) -> bytes:
    """Encode a bitmap (``BitMap`` or ``BitMap64``, not empty); it may be run-optimized on the way."""
    wide = isinstance(numbers, BitMap64)
    count = len(numbers)
    numbers.run_optimize()
    packed: bytes = numbers.serialize()
    if len(packed) >= count * (8 if wide else 4):
        flat: array[int] = numbers.to_array()
        return flat.typecode.encode() + flat.tobytes()
    span = numbers.max() - numbers.min()
    if count <= _MOST_GAPS and len(packed) > 1.25 * (count + _HEAD) and span < 128 * count:
        gaps = _gaps(numbers.to_array())
        if gaps is not None and len(gaps) < len(packed):
            return gaps
    return (b"W" if wide else b"R") + packed


def pack(numbers: array[int], bitmap: type[Any] = BitMap) -> bytes:
    """Encode different numbers, some hundred in any order; bitmaps of ``bitmap`` would hold them."""
    span = abs(numbers[-1] - numbers[0])
    if span < 128 * len(numbers):
        gaps = _gaps(numbers) if len(numbers) > 1 else None
        if gaps is not None and gaps.count(1, _HEAD) < len(numbers) >> 1:
            return gaps
    elif span > _FAR_APART * len(numbers):
        some = numbers[::_EACH]
        if 2 * len({number >> 16 for number in some}) > len(some):
            return numbers.typecode.encode() + numbers.tobytes()
    return seal(bitmap(numbers))


def unseal(data: bytes, bitmap: type[Any] = BitMap) -> Any:
    """Decode what :func:`seal` made into a new bitmap of the given type."""
    kind = data[0]
    typecode = "I" if bitmap is BitMap else "Q"
    if kind in {_ROARING, _ROARING64}:
        made_as = BitMap if kind == _ROARING else BitMap64
        numbers = made_as.deserialize(data[1:])
        return numbers if made_as is bitmap else bitmap(array(typecode, numbers.to_array()))
    if kind == _GAPS:
        first = int.from_bytes(data[1:_HEAD], "little")
        return bitmap(array(typecode, accumulate(data[_HEAD:], initial=first)))
    flat: array[int] = array(chr(kind))
    flat.frombytes(data[1:])
    return bitmap(flat if flat.typecode == typecode else array(typecode, flat))


def where_begins(data: bytes) -> int:
    """Return a number that is at most the lowest of what :func:`seal` made, without decoding it.

    Of a roaring bitmap it is where the first container begins: its key stands behind the cookie, the number of
    containers and, if there are runs, a bit for each container (RoaringFormatSpec).
    """
    if data[0] == _GAPS:
        return int.from_bytes(data[1:_HEAD], "little")
    if is_plain(data):
        flat: array[int] = array(chr(data[0]))
        flat.frombytes(data[1:])
        return min(flat)
    at, high = 1, 0
    if data[0] == _ROARING64:  # the number of bitmaps of 32 bits, then what the first has above them
        at, high = 13, int.from_bytes(data[9:13], "little")
    cookie = int.from_bytes(data[at : at + 4], "little")
    has_runs = cookie & 0xFFFF == _COOKIE_WITH_RUNS
    key_at = at + 4 + ((cookie >> 16) + 8) // 8 if has_runs else at + 8
    return high << 32 | int.from_bytes(data[key_at : key_at + 2], "little") << 16


def is_plain(chunk: bytes) -> bool:
    """Return whether numbers are kept as they are."""
    return chunk[0] in b"IQ"


def _gaps(flat: array[int]) -> bytes | None:
    """Encode numbers as gaps, all of them subtracted at once: each is a digit of one large integer.

    None where a gap has more than a byte, as also where the numbers are not ascending: then a digit is borrowed from.
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
    return int.from_bytes((b"\0" + b"\xff" * (width - 1)) * _MOST_GAPS, "little")
