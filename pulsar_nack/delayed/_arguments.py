"""Checks of the trackers' arguments. Each raises InvalidArgumentError, which names the field and the value."""

from __future__ import annotations

import inspect
from array import array
from collections.abc import Iterable, Sequence
from typing import Final

from .._check import INT64_MAX, INT64_MIN, check_integer
from .._delays import MAX_DELAY_MS
from ..errors import InvalidArgumentError

_ENTRIES: Final = "entry ids: integers from 0 to 2**32 - 1"
_TIMES: Final = "times: integers of 64 bits (epoch ms)"


def check_message(ledger_id: object, entry_id: object, deliver_at: object = 0) -> None:
    """Raise unless this is a position and a time."""
    check_integer("ledger_id", ledger_id, 0, INT64_MAX)
    check_integer("entry_id", entry_id, 0, INT64_MAX)
    check_integer("deliver_at", deliver_at, INT64_MIN, INT64_MAX)


def check_tick(tick_ms: object) -> None:
    """Raise unless this is a tick: 0 ms to a century."""
    check_integer("tick_ms", tick_ms, 0, MAX_DELAY_MS)


def check_on_due(on_due: object) -> None:
    """Raise unless this is a plain function or None."""
    if on_due is not None and (not callable(on_due) or inspect.iscoroutinefunction(on_due)):
        raise InvalidArgumentError("on_due", on_due, "a plain function without arguments (set an event in it)")


def entries_of(entries: object) -> array[int]:
    """Return a range, list, tuple, array or numpy array of entry ids as an array of typecode ``I``."""
    return _array("I", "entries", entries, _ENTRIES)


def times_of(deliver_at: object, count: int) -> array[int]:
    """Return ``count`` times, given like entry ids, as an array of typecode ``q``."""
    times = _array("q", "deliver_at", deliver_at, _TIMES)
    if len(times) != count:
        raise InvalidArgumentError("deliver_at", len(times), f"as many times as entries ({count})")
    return times


def _array(typecode: str, field: str, values: object, expected: str) -> array[int]:
    try:
        return array(typecode, _items(values))
    except (TypeError, ValueError, OverflowError, NotImplementedError):  # the last for an unknown kind of buffer
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
