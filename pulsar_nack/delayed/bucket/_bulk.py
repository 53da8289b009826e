"""Turns what users give as many entries, or many times, into arrays."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Final

from ...errors import InvalidArgumentError

_ENTRIES: Final = "entry ids: integers from 0 to 2**32 - 1"
_TIMES: Final = "times: integers of 64 bits (epoch ms)"


def entries_of(entries: object) -> array[int]:
    """Return a range, a list, a tuple, an array or a numpy array of entry ids as an array of typecode ``I``.

    :raises InvalidArgumentError: something in it is not one
    """
    return _array("I", "entries", entries, _ENTRIES)


def times_of(deliver_at: object, count: int) -> array[int]:
    """Return as many times, of typecode ``q``.

    :raises InvalidArgumentError: something in it is none, or there are more or less
    """
    times = _array("q", "deliver_at", deliver_at, _TIMES)
    if len(times) != count:
        raise InvalidArgumentError("deliver_at", len(times), f"as many times as entries ({count})")
    return times


def _array(typecode: str, field: str, values: object, expected: str) -> array[int]:
    try:
        return array(typecode, _items(values))
    except (TypeError, ValueError, OverflowError, NotImplementedError):  # the last where a buffer's kind is unknown
        raise InvalidArgumentError(field, values, expected) from None


def _items(values: object) -> Iterable[int]:
    if isinstance(values, array) or (isinstance(values, Sequence) and not isinstance(values, str | bytes | bytearray)):
        return values
    if isinstance(values, str | bytes | bytearray):
        raise TypeError
    view = memoryview(values)  # type: ignore[arg-type]
    if view.format == "?":  # a mask
        raise TypeError
    items: Iterable[int] = view.tolist()
    return items
