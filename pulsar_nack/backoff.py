"""Backoffs: functions from the redelivery count (0 for the first nack) to a delay.

Any ``Callable[[int], float | timedelta]`` is one; floats are seconds.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Final

from ._check import check_callable, check_flag, check_list
from ._delays import Delay, delay_seconds
from .errors import InvalidArgumentError

__all__ = ["Backoff", "Exponential", "Fixed", "Multiplier", "Steps", "as_backoff"]

_MAX_COUNT: Final = 2**32 - 1  # Pulsar counts redeliveries in 32 bits

Backoff = Callable[[int], float | timedelta]
"""Takes a redelivery count and returns a delay."""


class Fixed:
    """A constant delay, in seconds or as a timedelta."""

    def __init__(self, delay: Delay) -> None:
        self._seconds = delay_seconds(delay, "delay")

    def __call__(self, redelivery_count: int) -> float:  # noqa: ARG002
        """Return the delay in seconds."""
        return self._seconds

    def __repr__(self) -> str:
        return f"Fixed({self._seconds!r})"


class Multiplier:
    """``minimum * multiplier ** count`` up to ``maximum``, as the Java client's MultiplierRedeliveryBackoff."""

    def __init__(self, minimum: Delay = 10.0, maximum: Delay = 600.0, multiplier: float = 2.0) -> None:
        self._minimum, self._maximum = _bounds("minimum", minimum, maximum)
        self._multiplier = _as_factor(multiplier)

    def __call__(self, redelivery_count: int) -> float:
        """Return the delay in seconds; a negative count counts as 0."""
        if redelivery_count <= 0 or self._minimum == 0:
            return self._minimum
        try:
            return min(self._minimum * self._multiplier ** min(redelivery_count, _MAX_COUNT), self._maximum)
        except OverflowError:
            return self._maximum

    def __repr__(self) -> str:
        return f"Multiplier({self._minimum!r}, {self._maximum!r}, {self._multiplier!r})"


class Exponential:
    """``base * 2 ** count`` up to ``maximum``; with ``jitter`` a random share of this, from half to all."""

    def __init__(
        self, base: Delay, maximum: Delay, jitter: bool = True, *, random: Callable[[], float] = random.random
    ) -> None:
        self._base, self._maximum = _bounds("base", base, maximum)
        check_flag("jitter", jitter)
        check_callable("random", random, "a callable that gives numbers from 0 to 1")
        self._raw = Multiplier(self._base, self._maximum)
        self._jitter = jitter
        self._random = random

    def __call__(self, redelivery_count: int) -> float:
        """Return the delay in seconds."""
        delay = self._raw(redelivery_count)
        return delay * (0.5 + self._random() / 2) if self._jitter else delay

    def __repr__(self) -> str:
        return f"Exponential({self._base!r}, {self._maximum!r}, jitter={self._jitter})"


class Steps:
    """The delays of a list in order, then always the last one."""

    def __init__(self, delays: Iterable[Delay]) -> None:
        check_list("delays", delays, "a list of delays")
        self._delays = [delay_seconds(delay, f"delays[{index}]") for index, delay in enumerate(delays)]
        if not self._delays:
            raise InvalidArgumentError("delays", [], "at least one delay")

    def __call__(self, redelivery_count: int) -> float:
        """Return the delay in seconds; a negative count counts as 0."""
        return self._delays[min(max(redelivery_count, 0), len(self._delays) - 1)]

    def __repr__(self) -> str:
        return f"Steps({self._delays!r})"


def as_backoff(value: object) -> Backoff:
    """Return ``value`` as a backoff: a callable as it is, a delay as ``Fixed``, a sequence as ``Steps``.

    :raises InvalidArgumentError: ``value`` is not one of these
    """
    if callable(value):
        return value
    if isinstance(value, int | float | timedelta) and not isinstance(value, bool):
        return Fixed(delay_seconds(value, "backoff"))
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview) and value:
        return Steps(delay_seconds(delay, f"backoff[{index}]") for index, delay in enumerate(value))
    raise InvalidArgumentError("backoff", value, "a callable, a delay, or a list of delays")


def _as_factor(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= sys.float_info.max:
        raise InvalidArgumentError("multiplier", value, "a finite number of at least 1")
    return float(value)


def _bounds(lower_name: str, lower: Delay, maximum: Delay) -> tuple[float, float]:
    lowest, highest = delay_seconds(lower, lower_name), delay_seconds(maximum, "maximum")
    if highest < lowest:
        raise InvalidArgumentError("maximum", maximum, f"at least the {lower_name} ({lowest} s)")
    return lowest, highest
