"""What the objects of a store of logs are called.

Below the prefix of the store::

    catalog/00000000000000000007                     which logs there are; the highest number counts
    logs/NAME.f3a9...01/00000000000000000042         slot 42 of a log: records, or its manifest
    logs/NAME.f3a9...01/00000000000000000000-2-9c...f1.segment     many records, as a manifest names them

A log that was made anew under an old name has another folder: nothing is ever written twice under one key. In a name
of a folder ``#`` is ``_``; the catalog has the true one. Anything else is somebody else's and left alone.
"""

from __future__ import annotations

import re
import secrets
from typing import Final

CATALOG: Final = "catalog"
LOGS: Final = "logs"
_NUMBER: Final = re.compile(r"\d{20}")
_SEGMENT: Final = re.compile(r"\d{20}-(\d{1,20})-[0-9a-f]{16}\.segment")
_FOLDER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.[0-9a-f]{16}")


def token() -> str:
    """Return a name that nobody else has."""
    return secrets.token_hex(8)


def slot_name(number: int) -> str:
    """Return the name of a slot, or of a version of the catalog."""
    return f"{number:020}"


def slot_number(name: str) -> int | None:
    """Return the number of a slot or version, or None when this is not the name of one."""
    return int(name) if _NUMBER.fullmatch(name) else None


def segment_name(first: int, epoch: int) -> str:
    """Return a new name for a segment that begins with a record and was written in an epoch."""
    return f"{first:020}-{epoch}-{token()}.segment"


def segment_epoch(name: str) -> int | None:
    """Return in which epoch a segment was written, or None when this is not the name of one."""
    match = _SEGMENT.fullmatch(name)
    return int(match[1]) if match else None


def folder_name(log: str, instance: str) -> str:
    """Return the name of a log's folder."""
    return f"{log.replace('#', '_')}.{instance}"


def is_folder(name: str) -> bool:
    """Return whether this is the name of a log's folder."""
    return _FOLDER.fullmatch(name) is not None
