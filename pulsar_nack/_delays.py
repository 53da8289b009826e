"""One place that turns what users give as a delay into whole milliseconds."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from .errors import InvalidArgumentError

Delay = float | timedelta
"""Seconds as a number, or a timedelta."""

MAX_DELAY_MS: Final = 100 * 366 * 86_400_000
"""A century: more is a mistake of units."""

_MAX_DELAY_S: Final = MAX_DELAY_MS // 1000
_FLOAT_ERROR: Final = 1e-15
_EXPECTED: Final = "seconds as a finite number from 0 to a century, or a timedelta"


def delay_ms(value: object, field: str = "delay") -> int:
    """Return ``value`` in whole ms, rounded up: whoever comes back early by less than a bucket is not to be earlier.

    What is above a whole ms by no more than the error of a float counts as that ms.

    Raises :class:`InvalidArgumentError` naming ``field`` for a bool, a str, NaN, an infinite, negative or huge value.
    """
    if type(value) is float or type(value) is int:
        seconds: float = value
    elif isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, float | int) and not isinstance(value, bool):
        seconds = value
    else:
        raise InvalidArgumentError(field, value, _EXPECTED)
    if not 0 <= seconds <= _MAX_DELAY_S:  # false for NaN too
        raise InvalidArgumentError(field, value, _EXPECTED)
    milliseconds = seconds * 1000
    whole = round(milliseconds)
    return whole + (milliseconds - whole > milliseconds * _FLOAT_ERROR)


def delay_seconds(value: object, field: str = "delay") -> float:
    """Return ``value`` in seconds, not rounded; raises what :func:`delay_ms` raises."""
    delay_ms(value, field)
    if isinstance(value, timedelta):
        return value.total_seconds()
    assert isinstance(value, float | int)
    return float(value)
