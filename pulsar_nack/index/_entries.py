"""Converts the entries of a ledger, as users give them, to a bitmap."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from contextlib import suppress
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
    if flat.typecode == "I" or not flat:
        return BitMap(flat)
    if (largest := max(flat)) > INT64_MAX:
        raise InvalidArgumentError(field, largest, _EXPECTED)
    return BitMap(array("I", flat)) if largest < 1 << 32 else BitMap64(flat)


def _from_range(entries: range, field: str) -> Any:
    if not entries:
        return BitMap()
    low, high = min(entries[0], entries[-1]), max(entries[0], entries[-1])
    if low < 0 or high > INT64_MAX:
        raise InvalidArgumentError(field, entries, _EXPECTED)
    ascending = entries if entries.step > 0 else entries[::-1]
    return BitMap(ascending) if high < 1 << 32 else BitMap64(ascending)


def _flat(entries: object, field: str) -> array[int]:
    """Return entries as an array of 32-bit numbers, or of 64-bit numbers."""
    if isinstance(entries, array) and entries.typecode in "IQ":
        return entries
    items = entries if isinstance(entries, list | tuple) else _items(entries, field)
    for typecode in "IQ":
        with suppress(TypeError, OverflowError):
            return array(typecode, items)
    bad = next((item for item in items if type(item) is not int or not 0 <= item <= INT64_MAX), entries)
    raise InvalidArgumentError(field, bad, _EXPECTED)


def _items(entries: Any, field: str) -> array[int] | list[Any]:
    if not isinstance(entries, str | bytes | bytearray):
        view = None
        with suppress(TypeError, ValueError):  # numpy raises ValueError for some kinds, such as times
            view = memoryview(entries)
        if view is not None:
            return _from_buffer(view, field)
        if isinstance(entries, Iterable):
            return list(entries)
    raise InvalidArgumentError(field, entries, _EXPECTED)


def _from_buffer(view: memoryview, field: str) -> array[int]:
    kind = view.format.lstrip("@=<")
    if len(kind) != 1 or kind not in _SIGNED + _UNSIGNED or view.ndim != 1:
        raise InvalidArgumentError(field, view.obj, _EXPECTED)
    flat: array[int] = array(kind)
    flat.frombytes(view.tobytes())
    return flat
