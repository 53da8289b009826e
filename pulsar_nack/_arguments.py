"""Settings and clocks as they are given, checked before anything is made."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel

from .clock import Clock, WallClock
from .errors import InvalidArgumentError

_T = TypeVar("_T", bound=BaseModel)


def config_of(field: str, config: object, kind: type[_T]) -> _T:
    """Return settings of this kind, the defaults for None.

    :raises InvalidArgumentError: they are something else
    """
    if config is None:
        return kind()
    if not isinstance(config, kind):
        raise InvalidArgumentError(field, config, f"a {kind.__name__}")
    return config


def clock_of(clock: object) -> Clock:
    """Return what was given as a clock, the wall clock for None.

    :raises InvalidArgumentError: it is none
    """
    if clock is None:
        return WallClock()
    if not isinstance(clock, Clock):
        raise InvalidArgumentError("clock", clock, "a Clock, with now_ms()")
    return clock
