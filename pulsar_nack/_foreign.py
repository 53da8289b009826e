"""Makes text from outside (from brokers and issuers, metadata, file names) safe for errors, logs and terminals.

It is cut to 200 characters, and control characters are escaped.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final

MAX_SHOWN: Final = 200
_CREDENTIALS: Final = re.compile(r"(?<=//).*@|(?<=[?#]).+", re.DOTALL)


def shown(text: str | bytes) -> str:
    """Return text from outside, cut to 200 characters, with control characters escaped."""
    if isinstance(text, bytes):
        text = text[: 4 * MAX_SHOWN + 1].decode("utf-8", "backslashreplace")
    if len(text) <= MAX_SHOWN and text.isprintable():
        return text
    escaped = _escaped(text[: MAX_SHOWN + 1])
    return escaped if len(escaped) <= MAX_SHOWN else f"{escaped[:MAX_SHOWN]}..."


def quoted(value: object) -> str:
    """Return a short repr. Never fails, even for an int of 10 000 digits or a broken ``__repr__``."""
    text = f"{type(value).__name__} that cannot be shown"
    with suppress(Exception):
        text = repr(value)
    if len(text) > MAX_SHOWN:
        text = f"{text[: MAX_SHOWN // 2]}...{text[-MAX_SHOWN // 4 :]}"
    return text if text.isprintable() else _escaped(text)


def error_text(error: BaseException) -> str:
    """Return the type and the text of an error. Never fails, even for a broken ``__str__``."""
    text = "an error that cannot be shown"
    with suppress(Exception):
        text = str(error)
    return f"{type(error).__name__}: {text}"


def without_credentials(url: str) -> str:
    """Return a URL without possible secrets: user and password, and everything after ``?`` or ``#``."""
    return _CREDENTIALS.sub("***", url)


def _escaped(text: str) -> str:
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )
