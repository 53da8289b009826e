"""Converts the entries of a ledger, as users give them, to a bitmap."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any, Final

from pyroaring import BitMap, BitMap64

from .._check import INT64_MAX
from ..errors import InvalidArgumentError

_EXPECTED: Final = "entry ids: integers from 0 to 2**63 - 1"
_SIGNED: Final = "bhilq"
_UNSIGNED: Final = "BHILQ"


def as_entries(entries: object, field: str = "entries") -> Any:
    """Return a range, a sequence, a ``BitMap``, an array or a numpy array of ints as a ``BitMap`` or ``BitMap64``.

    :raises InvalidArgumentError: an item is not an entry id
    """
    if isinstance(entries, BitMap):
        return entries
    if isinstance(entries, range):
        return _from_range(entries, field)
    flat = _flat(entries, field)
    if flat.typecode == "I":
        return BitMap(flat)
    if not flat:
        return BitMap()
    largest = max(flat)
    if min(flat) < 0 or largest > INT64_MAX:
        raise InvalidArgumentError(field, _first_bad(flat), _EXPECTED)
    is_small = largest < 1 << 32
    return BitMap(array("I", flat)) if is_small else BitMap64(array("Q", flat))


def _from_range(entries: range, field: str) -> Any:
    if not entries:
        return BitMap()
    low, high = min(entries[0], entries[-1]), max(entries[0], entries[-1])
    if low < 0 or high > INT64_MAX:
        raise InvalidArgumentError(field, entries, _EXPECTED)
    ascending = entries if entries.step > 0 else entries[::-1]
    return BitMap(ascending) if high < 1 << 32 else BitMap64(ascending)


def _from_list(items: list[Any]) -> array[int]:
    flat = array("I")
    flat.fromlist(items)  # a quarter quicker than the constructor
    return flat


def _flat(entries: object, field: str) -> array[int]:
    if isinstance(entries, array) and entries.typecode in "IQ":
        return entries
    items = entries if isinstance(entries, list) else _items(entries, field)
    if isinstance(items, array):
        return items
    try:
        return _from_list(items) if type(items) is list else array("I", items)
    except (TypeError, OverflowError):
        pass  # too large, or not an entry id: found out below
    try:
        return array("Q", items)
    except (TypeError, OverflowError):
        bad = next((item for item in items if type(item) is not int or not 0 <= item <= INT64_MAX), entries)
        raise InvalidArgumentError(field, bad, _EXPECTED) from None


def _items(entries: object, field: str) -> array[int] | list[Any] | tuple[Any, ...]:
    if isinstance(entries, tuple):
        return entries
    if not isinstance(entries, str | bytes | bytearray):
        view = _as_buffer(entries)
        if view is not None:
            return _from_buffer(view, field)
        if isinstance(entries, Iterable):
            return list(entries)
    raise InvalidArgumentError(field, entries, _EXPECTED)


def _as_buffer(entries: Any) -> memoryview | None:
    """Return the buffer of an object, None without one; numpy raises ValueError for some kinds, such as times."""
    try:
        return memoryview(entries)
    except (TypeError, ValueError):
        return None


def _from_buffer(view: memoryview, field: str) -> array[int]:
    kind = view.format.lstrip("@=<")
    if len(kind) != 1 or kind not in _SIGNED + _UNSIGNED or view.ndim != 1:
        raise InvalidArgumentError(field, view.obj, _EXPECTED)
    flat: array[int] = array(kind)
    flat.frombytes(view.tobytes())
    return flat


def _first_bad(flat: array[int]) -> int:
    return next(entry for entry in flat if not 0 <= entry <= INT64_MAX)
