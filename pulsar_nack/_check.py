"""Checks of arguments. Each raises InvalidArgumentError, which names the field and the value."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from .clock import Clock, WallClock
from .errors import InvalidArgumentError

_T = TypeVar("_T", bound=BaseModel)


def check_kind(field: str, value: object, kind: type[Any], expected: str) -> None:
    """Raise unless ``value`` is None or an instance of ``kind``, a class or protocol; a class itself is refused."""
    if value is not None and (isinstance(value, type) or not isinstance(value, kind)):
        raise InvalidArgumentError(field, value, expected)


def check_config(config: object, kind: type[Any], field: str = "config") -> None:
    """Raise unless ``config`` is None or settings of this class: another class may lack the names that are read."""
    check_kind(field, config, kind, f"a {kind.__name__} or None")


def config_of(config: object, kind: type[_T], field: str = "config") -> _T:
    """Return the settings after a check; for None the defaults."""
    check_config(config, kind, field)
    return config if isinstance(config, kind) else kind()


def check_clock(clock: object, field: str = "clock") -> None:
    """Raise unless ``clock`` is None or a clock."""
    check_kind(field, clock, Clock, "a Clock (an object with now_ms()) or None")


def clock_of(clock: object) -> Clock:
    """Return the clock after a check; for None the wall clock."""
    check_clock(clock)
    return clock if isinstance(clock, Clock) else WallClock()


def check_callable(field: str, value: object, expected: str) -> None:
    """Raise unless ``value`` can be called."""
    if not callable(value):
        raise InvalidArgumentError(field, value, expected)


def check_has(field: str, value: object, names: tuple[str, ...], expected: str) -> None:
    """Raise unless ``value`` has all these attributes: a sample of a protocol that has many."""
    if isinstance(value, type) or not all(hasattr(value, name) for name in names):
        raise InvalidArgumentError(field, value, expected)


def check_list(field: str, value: object, expected: str) -> None:
    """Raise unless ``value`` is an iterable other than text or bytes."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise InvalidArgumentError(field, value, expected)


def check_flag(field: str, value: object) -> None:
    """Raise unless ``value`` is True or False."""
    if not isinstance(value, bool):
        raise InvalidArgumentError(field, value, "True or False")


def path_of(value: object) -> Path | None:
    """Return what was given as a path; None for what is none, or an empty one."""
    text = fspath(value) if isinstance(value, str | PathLike) else None
    return Path(text) if isinstance(text, str) and text else None


def check_text(field: str, value: object) -> None:
    """Raise unless ``value`` is a str."""
    if not isinstance(value, str):
        raise InvalidArgumentError(field, value, "a str")


def suggest_name(name: str, known: Sequence[str]) -> str:
    """Return what was expected in place of an unknown setting, with the known name that is nearest to it."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"the name of a setting{f' ({near[0]}?)' if near else ''}"
