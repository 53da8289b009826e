"""Names of the files and folders in a store of logs.

In the store's folder, for a log ``NAME``::

    NAME.log/                                    the log
    NAME.log/00000000000000000042.segment        its records from 42 on
    NAME.log/00000000000000000042.segment.new    a segment that is being made
    NAME.log.new/                                a log that is being made
    NAME.log.gone/                               a deleted log whose files are not removed yet
    NAME.lock                                    locked by the process that writes, makes or deletes the log

Anything else is foreign and is left alone.
"""

from __future__ import annotations

import re
from typing import Final

from ...errors import InvalidArgumentError

LOG: Final = ".log"
LOCK: Final = ".lock"
NEW: Final = ".new"
GONE: Final = ".gone"
_NAME: Final = re.compile(r"[A-Za-z0-9_#][A-Za-z0-9_.#-]{0,199}")
_SEGMENT: Final = re.compile(r"(\d{20})\.segment")


def check_name(name: object) -> str:
    """Return ``name`` if a log can have it, or raise."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgumentError(
            "name", name, "1 to 200 letters, digits, or any of _ - . #, not beginning with - or ."
        )
    return name


def segment_name(first: int) -> str:
    """Return the file name of the segment whose first record is ``first``."""
    return f"{first:020}.segment"


def segment_first(name: str) -> int | None:
    """Return the number of a segment's first record, or None if this is not the name of a segment."""
    match = _SEGMENT.fullmatch(name)
    return int(match[1]) if match and int(match[1]) < 1 << 63 else None


def is_log_file(name: str) -> bool:
    """Return whether a file in a log's folder belongs to the log."""
    return segment_first(name.removesuffix(NEW)) is not None


def log_of(name: str, *suffixes: str) -> str | None:
    """Return the log's name if a name in the store's folder ends in one of these suffixes."""
    for suffix in suffixes:
        log = name.removesuffix(suffix)
        if log != name and _NAME.fullmatch(log):
            return log
    return None
