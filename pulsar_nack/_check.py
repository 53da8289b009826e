"""Checks of arguments, before anything has changed: the error names the field and the value."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from .clock import Clock, WallClock
from .errors import InvalidArgumentError

_T = TypeVar("_T", bound=BaseModel)


def check_kind(field: str, value: object, kind: type[Any], expected: str) -> None:
    """Refuse all but None and an instance of a class, or of a protocol; a class itself is none."""
    if value is not None and (isinstance(value, type) or not isinstance(value, kind)):
        raise InvalidArgumentError(field, value, expected)


def check_config(config: object, kind: type[Any], field: str = "config") -> None:
    """Refuse all but None and settings of this class: those of another one may have none of the same names."""
    check_kind(field, config, kind, f"a {kind.__name__} or None")


def config_of(config: object, kind: type[_T], field: str = "config") -> _T:
    """Return checked settings, the defaults for None."""
    check_config(config, kind, field)
    return config if isinstance(config, kind) else kind()


def check_clock(clock: object, field: str = "clock") -> None:
    """Refuse all but None and a clock."""
    check_kind(field, clock, Clock, "a Clock (an object with now_ms()) or None")


def clock_of(clock: object) -> Clock:
    """Return a checked clock, the wall clock for None."""
    check_clock(clock)
    return clock if isinstance(clock, Clock) else WallClock()


def check_callable(field: str, value: object, expected: str) -> None:
    """Refuse what cannot be called."""
    if not callable(value):
        raise InvalidArgumentError(field, value, expected)


def check_has(field: str, value: object, names: tuple[str, ...], expected: str) -> None:
    """Refuse what lacks one of these attributes: where a protocol has too many to ask for all."""
    if isinstance(value, type) or not all(hasattr(value, name) for name in names):
        raise InvalidArgumentError(field, value, expected)


def check_list(field: str, value: object, expected: str) -> None:
    """Refuse what is no list, or another iterable; text and bytes are none, though they can be gone through."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise InvalidArgumentError(field, value, expected)


def check_flag(field: str, value: object) -> None:
    """Refuse all but True and False."""
    if not isinstance(value, bool):
        raise InvalidArgumentError(field, value, "True or False")


def path_of(value: object) -> Path | None:
    """Return what was given as a path; None for what is none, or an empty one."""
    text = fspath(value) if isinstance(value, str | PathLike) else None
    return Path(text) if isinstance(text, str) and text else None


def check_text(field: str, value: object) -> None:
    """Refuse all but a str."""
    if not isinstance(value, str):
        raise InvalidArgumentError(field, value, "a str")
