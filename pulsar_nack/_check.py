"""Checks of arguments. Each raises InvalidArgumentError, which has the name and the value of the argument."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike, fsencode, fspath
from pathlib import Path
from typing import Any, Final, TypeGuard, TypeVar

from pydantic import BaseModel, ValidationError

from .clock import Clock, WallClock
from .errors import InvalidArgumentError

_T = TypeVar("_T", bound=BaseModel)
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")

INT64_MAX: Final = 2**63 - 1
INT64_MIN: Final = -(2**63)
_MIN_METADATA_LIMIT: Final = 1_024


def check_kind(field: str, value: object, kind: type[Any], expected: str) -> None:
    """Raise unless ``value`` is None or an instance of ``kind``, a class or protocol."""
    if value is not None and (isinstance(value, type) or not isinstance(value, kind)):
        raise InvalidArgumentError(field, value, expected)


def check_config(config: object, kind: type[Any], field: str = "config") -> None:
    """Raise unless ``config`` is None or settings of class ``kind``."""
    check_kind(field, config, kind, f"a {kind.__name__} or None")


def config_of(config: object, kind: type[_T], field: str = "config") -> _T:
    """Check settings and return them; return the defaults for None."""
    check_config(config, kind, field)
    return config if isinstance(config, kind) else kind()


def check_clock(clock: object, field: str = "clock") -> None:
    """Raise unless ``clock`` is None or a clock."""
    check_kind(field, clock, Clock, "a Clock (an object with now_ms()) or None")


def clock_of(clock: object) -> Clock:
    """Check a clock and return it; return the wall clock for None."""
    check_clock(clock)
    return clock if isinstance(clock, Clock) else WallClock()


def check_callable(field: str, value: object, expected: str) -> None:
    """Raise unless ``value`` can be called."""
    if not callable(value):
        raise InvalidArgumentError(field, value, expected)


def check_has(field: str, value: object, names: tuple[str, ...], expected: str) -> None:
    """Raise unless ``value`` has the attributes ``names``, which stand for a protocol with more."""
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


def check_integer(field: str, value: object, lowest: int, highest: int | None = None) -> int:
    """Return ``value``; raise unless it is a plain int, no bool, from ``lowest`` to ``highest``."""
    if type(value) is not int or value < lowest or (highest is not None and value > highest):
        bounds = f"of at least {lowest}" if highest is None else f"from {lowest} to {highest}"
        raise InvalidArgumentError(field, value, f"an integer {bounds}")
    return value


def check_metadata_limit(field: str, value: object) -> int:
    """Return the most bytes of acknowledgement state, 0 for no limit; raise for 1 to 1 023, and unless it is an int."""
    if isinstance(value, bool) or not isinstance(value, int) or 1 <= value < _MIN_METADATA_LIMIT:
        raise InvalidArgumentError(
            field, value, f"whole bytes: at least {_MIN_METADATA_LIMIT:,}, or below 1 for no limit"
        )
    return max(value, 0)


def check_one_of(field: str, value: object, known: tuple[str, ...]) -> None:
    """Raise unless ``value`` is one of the strings ``known``."""
    if not isinstance(value, str) or value not in known:
        raise InvalidArgumentError(field, value, f"one of {', '.join(known)}")


def path_of(value: object) -> Path | None:
    """Return ``value`` as a path, None if it is empty, or not a path that the system can have."""
    text = fspath(value) if isinstance(value, str | PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        return None
    try:
        fsencode(text)
    except UnicodeEncodeError:  # a lone surrogate that stands for no byte
        return None
    return Path(text)


def as_folder(
    field: str, value: object, *, for_urls: str = "the path of a folder; for object storage ObjectLogStore.from_url"
) -> Path:
    """Return the path of a folder; raise for anything else, and for a URL, which would become a folder's name.

    :param for_urls: what is expected in place of a URL
    """
    path = path_of(value)
    if path is None:
        raise InvalidArgumentError(field, value, "the path of a folder")
    if _URL.match(fspath(value)):  # type: ignore[call-overload]
        raise InvalidArgumentError(field, value, for_urls)
    return path


def is_text(value: object) -> TypeGuard[str]:
    """Return whether ``value`` is a str that UTF-8 can encode: without lone surrogates."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_text(field: str, value: object, most: int | None = None) -> None:
    """Raise unless ``value`` is a str that UTF-8 can encode, of at most ``most`` characters."""
    if not is_text(value):
        raise InvalidArgumentError(field, value, "a str without lone surrogates")
    if most is not None and len(value) > most:
        raise InvalidArgumentError(field, value, f"text, at most {most:,} characters")


def check_name(field: str, value: object, expected: str = "a name") -> str:
    """Return ``value``; raise unless it is a str that is not empty and that UTF-8 can encode."""
    if not is_text(value) or not value:
        raise InvalidArgumentError(field, value, expected)
    return value


def check_strings(field: str, value: object) -> None:
    """Raise unless ``value`` is a mapping from str to str that UTF-8 can encode."""
    if not isinstance(value, Mapping) or not all(is_text(text) for pair in value.items() for text in pair):
        raise InvalidArgumentError(field, value, "a mapping from str to str")


def model_of(kind: type[_T], settings: Mapping[str, Any], *, hides_unknown: bool = False) -> _T:
    """Return a model with these settings.

    :param hides_unknown: the error names only the type of an unknown setting's value, which may be a secret
    :raises InvalidArgumentError: names the first setting that is wrong or unknown
    """
    try:
        return kind(**settings)
    except ValidationError as error:
        first = error.errors()[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, InvalidArgumentError):
            raise cause from None
        name, given = ".".join(map(str, first["loc"])), first["input"]
        if first["type"] == "extra_forbidden":
            expected = suggest_name(name, list(kind.model_fields))
            given = type(given) if hides_unknown else given
        else:
            expected = first["msg"].removeprefix("Input should be ")
        raise InvalidArgumentError(name, given, expected) from None


def suggest_name(name: str, known: Sequence[str]) -> str:
    """Return what was expected in place of an unknown setting, with the known name that is nearest to it."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"the name of a setting{f' ({near[0]}?)' if near else ''}"
