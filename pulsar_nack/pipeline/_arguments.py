"""Checks of what the jobs are called with."""

from __future__ import annotations

import math
from collections.abc import Iterable
from os import PathLike, fspath

from ..errors import InvalidArgumentError

Paths = str | PathLike[str] | Iterable[str | PathLike[str]]
"""One path, or several."""


def path_names(paths: Paths) -> list[str]:
    """Return paths as text; there has to be one."""
    names = [paths] if isinstance(paths, str | PathLike) else list(paths)
    if not names:
        raise InvalidArgumentError("paths", names, "at least one file or folder")
    return [fspath(name) for name in names]


def milliseconds(name: str, value: object, *, least: int = 0) -> int:
    """Return seconds as whole milliseconds; refuses NaN, negative and infinite ones."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value > 1e10:
        raise InvalidArgumentError(name, value, "seconds, up to 10**10")
    found = round(value * 1_000)
    if value < 0 or found < least:
        raise InvalidArgumentError(name, value, f"at least {least / 1_000:g} s")
    return found


def at_least(name: str, value: object, least: float) -> None:
    """Refuse a number below a bound, and one that is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
        raise InvalidArgumentError(name, value, f"at least {least:g}")
