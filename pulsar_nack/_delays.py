"""Converts delays and publish times, as users and their backoffs give them, to whole milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from .errors import InvalidArgumentError
from .ids import MessageId

Delay = float | timedelta
"""Seconds as a number, or a timedelta."""

MAX_DELAY_MS: Final = 100 * 366 * 86_400_000
"""A century: a longer delay is a mistake of units."""

FIRST_PUBLISH_MS: Final = 978_307_200_000
"""The year 2001: an earlier time other than 0 is a mistake of units."""

_LAST_PUBLISH_MS: Final = 32_503_680_000_000
"""The year 3000: a later time is a mistake of units."""

_MS: Final = timedelta(milliseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_DELAY_S: Final = MAX_DELAY_MS // 1000
MAX_NUMBER_S: Final = 366 * 86_400
"""A year in seconds: a larger number is most likely meant as ms."""
_FLOAT_ERROR: Final = 1e-15
_EXPECTED: Final = "seconds as a finite number from 0 to a year, or a timedelta of at most a century"
_AS_MS: Final = "seconds, at most a year as a number: this is most likely meant as ms (if not, use a timedelta)"


def delay_ms(value: object, field: str = "delay") -> int:
    """Return ``value`` in whole ms, rounded up so that a redelivery is not earlier than by less than a bucket.

    A value that exceeds a whole ms by no more than the error of a float counts as that ms.

    :raises InvalidArgumentError: names ``field``; for a bool, a str, NaN, an infinite, negative or huge value, and for
        a number above a year of seconds, which is most likely meant as ms
    """
    most = MAX_NUMBER_S
    if type(value) is float or type(value) is int:
        seconds: float = value
    elif isinstance(value, timedelta):
        seconds, most = value.total_seconds(), _MAX_DELAY_S
    elif isinstance(value, float):
        seconds = float(value)  # rounding a numpy float does not return an int
    elif isinstance(value, int) and not isinstance(value, bool):
        seconds = int(value)
    else:
        raise InvalidArgumentError(field, value, _EXPECTED)
    if not 0 <= seconds <= most:  # false for NaN too
        raise InvalidArgumentError(field, value, _AS_MS if most < seconds <= MAX_DELAY_MS else _EXPECTED)
    milliseconds = seconds * 1000
    whole = round(milliseconds)
    return whole + (milliseconds - whole > milliseconds * _FLOAT_ERROR)


def positive_delay_ms(value: object, field: str = "delay") -> int:
    """Return ``value`` in whole ms, like :func:`delay_ms`; 0 is refused too."""
    milliseconds = delay_ms(value, field)
    if not milliseconds:
        raise InvalidArgumentError(field, value, "more than 0 seconds, or None")
    return milliseconds


def delay_seconds(value: object, field: str = "delay") -> float:
    """Return ``value`` in seconds, not rounded; at most a year, otherwise like :func:`delay_ms`."""
    delay_ms(value, field)
    if isinstance(value, timedelta):
        if value.total_seconds() > MAX_NUMBER_S:
            raise InvalidArgumentError(field, value, "at most a year")
        return value.total_seconds()
    assert isinstance(value, float | int)
    return float(value)


def backoff_ms(backoff: Callable[[int], Delay], redelivery_count: int) -> int:
    """Return the delay of a backoff in ms.

    :raises InvalidArgumentError: the backoff raised, or did not return a delay; the error names ``backoff``
    """
    field = f"backoff({redelivery_count})"
    try:
        delay = backoff(redelivery_count)
    except Exception as error:
        raise InvalidArgumentError(field, error, "a delay from the strategy, and it raised") from error
    return delay_ms(delay, field)


def seek_position(value: object, field: str = "position", *, earliest_ms: int = FIRST_PUBLISH_MS) -> MessageId | int:
    """Return the target of a seek: a message, or a publish time in epoch ms, for which a datetime is accepted too.

    :param earliest_ms: an earlier time is refused, except 0, which is before all messages
    :raises InvalidArgumentError: seconds, microseconds or nanoseconds instead of ms, or a wrong type
    """
    if isinstance(value, MessageId):
        return value
    expected = "a MessageId, a datetime, or a publish time in epoch ms"
    if isinstance(value, datetime):
        try:
            return max((value.astimezone(UTC) - _EPOCH) // _MS, 0)
        except (OverflowError, OSError, ValueError) as error:
            raise InvalidArgumentError(field, value, expected) from error
    expected += wrong_unit(value, earliest_ms)
    if type(value) is not int or not (value == 0 or earliest_ms <= value <= _LAST_PUBLISH_MS):
        raise InvalidArgumentError(field, value, expected)
    return value


def wrong_unit(value: object, earliest_ms: int = FIRST_PUBLISH_MS) -> str:
    """Return, in brackets, the unit in which a time is most likely meant if it is not epoch ms; empty if it is."""
    if (type(value) is int or type(value) is float) and not earliest_ms <= value <= _LAST_PUBLISH_MS:
        for unit, per_ms in (("seconds", 1e-3), ("microseconds", 1e3), ("nanoseconds", 1e6)):
            if FIRST_PUBLISH_MS * per_ms <= value <= _LAST_PUBLISH_MS * per_ms:  # an int may be too large for a float
                return f" (not in {unit}: int(time.time() * 1000) is now)"
    return ""
