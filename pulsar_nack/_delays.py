"""One place that turns what users give as a delay into whole milliseconds."""

from __future__ import annotations

import math
from datetime import timedelta

from .errors import InvalidArgumentError

Delay = float | timedelta
"""Seconds as a number, or a timedelta."""

MAX_DELAY_MS = 100 * 366 * 86_400_000
"""A century: more is a mistake of units."""

_EXPECTED = "seconds as a finite number from 0 to a century, or a timedelta"


def delay_ms(value: object, field: str = "delay") -> int:
    """Return ``value`` in whole ms, rounded to the nearest.

    Raises :class:`InvalidArgumentError` naming ``field`` for a bool, a str, NaN, an infinite, negative or huge value.
    """
    if type(value) is float or type(value) is int:
        seconds: float = value
    elif isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, float | int) and not isinstance(value, bool):
        seconds = float(value)
    else:
        raise InvalidArgumentError(field, value, _EXPECTED)
    if not 0 <= seconds <= MAX_DELAY_MS / 1000 or math.isnan(seconds):
        raise InvalidArgumentError(field, value, _EXPECTED)
    return round(seconds * 1000)
