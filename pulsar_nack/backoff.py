"""Pure strategies: from the redelivery count (0 for the first nack) to a delay.

Any ``Callable[[int], float | timedelta]`` is one; floats are seconds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from datetime import timedelta

from ._delays import Delay, delay_ms
from .errors import InvalidArgumentError

Backoff = Callable[[int], float | timedelta]
"""What every strategy is: redelivery count in, delay out."""


class Fixed:
    """The same delay each time, in seconds or as a timedelta."""

    def __init__(self, delay: Delay) -> None:
        self._seconds = _seconds(delay, "delay")

    def __call__(self, redelivery_count: int) -> float:  # noqa: ARG002
        """Return the delay in seconds."""
        return self._seconds

    def __repr__(self) -> str:
        return f"Fixed({self._seconds!r})"


class Multiplier:
    """``minimum * multiplier ** count`` up to ``maximum``, as the Java client's MultiplierRedeliveryBackoff."""

    def __init__(self, minimum: Delay = 10.0, maximum: Delay = 600.0, multiplier: float = 2.0) -> None:
        self._minimum = _seconds(minimum, "minimum")
        self._maximum = _seconds(maximum, "maximum")
        if self._maximum < self._minimum:
            raise InvalidArgumentError("maximum", maximum, f"at least the minimum ({self._minimum} s)")
        if isinstance(multiplier, bool) or not isinstance(multiplier, int | float):
            raise InvalidArgumentError("multiplier", multiplier, "a finite number of at least 1")
        if not 1 <= multiplier < math.inf:
            raise InvalidArgumentError("multiplier", multiplier, "a finite number of at least 1")
        self._multiplier = float(multiplier)

    def __call__(self, redelivery_count: int) -> float:
        """Return the delay in seconds; a negative count counts as 0."""
        if redelivery_count <= 0 or self._minimum == 0:
            return self._minimum
        try:
            return min(self._minimum * self._multiplier**redelivery_count, self._maximum)
        except OverflowError:
            return self._maximum

    def __repr__(self) -> str:
        return f"Multiplier({self._minimum!r}, {self._maximum!r}, {self._multiplier!r})"


class Exponential:
    """``base * 2 ** count`` up to ``maximum``; with ``jitter`` a random share between half of that and all of it."""

    def __init__(
        self, base: Delay, maximum: Delay, *, jitter: bool = True, random: Callable[[], float] = random.random
    ) -> None:
        self._raw = Multiplier(base, maximum)
        self._jitter = bool(jitter)
        self._random = random

    def __call__(self, redelivery_count: int) -> float:
        """Return the delay in seconds."""
        delay = self._raw(redelivery_count)
        return delay * (0.5 + self._random() / 2) if self._jitter else delay

    def __repr__(self) -> str:
        return f"Exponential({self._raw._minimum!r}, {self._raw._maximum!r}, jitter={self._jitter})"


class Steps:
    """The delays of a list in turn, the last one from then on."""

    def __init__(self, delays: Iterable[Delay]) -> None:
        self._delays = [_seconds(delay, f"delays[{index}]") for index, delay in enumerate(delays)]
        if not self._delays:
            raise InvalidArgumentError("delays", [], "at least one delay")

    def __call__(self, redelivery_count: int) -> float:
        """Return the delay in seconds; a negative count counts as 0."""
        return self._delays[min(max(redelivery_count, 0), len(self._delays) - 1)]

    def __repr__(self) -> str:
        return f"Steps({self._delays!r})"


def as_backoff(value: object) -> Backoff:
    """Return ``value`` as a strategy: a callable as it is, a delay as ``Fixed``, a list as ``Steps``.

    :raises InvalidArgumentError: none of these
    """
    if callable(value):
        return value
    if isinstance(value, int | float | timedelta) and not isinstance(value, bool):
        return Fixed(value)
    if isinstance(value, list | tuple):
        return Steps(value)
    raise InvalidArgumentError("backoff", value, "a callable, a delay, or a list of delays")


def _seconds(value: object, field: str) -> float:
    return delay_ms(value, field) / 1000 if isinstance(value, timedelta) else _checked(value, field)


def _checked(value: object, field: str) -> float:
    delay_ms(value, field)
    return float(value)  # type: ignore[arg-type]
