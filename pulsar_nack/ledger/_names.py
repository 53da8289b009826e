"""What the files and folders of a store of logs are called.

In the store's folder, for a log ``NAME``::

    NAME.log/                            the log
    NAME.log/00000000000000000042.segment        the records from 42 on
    NAME.log/00000000000000000042.segment.new    a segment in the making
    NAME.log.new/                        a log in the making
    NAME.log.gone/                       a log that was deleted, not yet removed
    NAME.lock                            locked by who writes to the log, makes or deletes it

Anything else is somebody else's and left alone.
"""

from __future__ import annotations

import re
from typing import Final

from ..errors import InvalidArgumentError

LOG: Final = ".log"
LOCK: Final = ".lock"
NEW: Final = ".new"
GONE: Final = ".gone"
_NAME: Final = re.compile(r"[A-Za-z0-9_#][A-Za-z0-9_.#-]{0,199}")
_SEGMENT: Final = re.compile(r"(\d{20})\.segment")


def check_name(name: object) -> str:
    """Return the name of a log when it is a good one."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgumentError(
            "name", name, "1 to 200 letters, digits, or any of _ - . #, not beginning with - or ."
        )
    return name


def segment_name(first: int) -> str:
    """Return the name of the segment that begins with a record."""
    return f"{first:020}.segment"


def segment_first(name: str) -> int | None:
    """Return which record a segment begins with, or None when this is no segment's name."""
    match = _SEGMENT.fullmatch(name)
    return int(match[1]) if match and int(match[1]) < 1 << 63 else None


def is_own(name: str) -> bool:
    """Return whether a file in a log's folder belongs to it."""
    return segment_first(name.removesuffix(NEW)) is not None


def log_of(name: str, *suffixes: str) -> str | None:
    """Return the log's name when a name in the store's folder has one of these endings."""
    for suffix in suffixes:
        log = name.removesuffix(suffix)
        if log != name and _NAME.fullmatch(log):
            return log
    return None
