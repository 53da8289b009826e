"""The log records of a delayed cursor: a mark-delete position, a property set or removed, and the next generation.

Each record is JSON with one field: ``mark``, ``put``, ``remove`` or ``next``. The first record of a log has ``format``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from ...errors import LogCorruptedError, LogVersionError
from ...ids import Position

_FORMAT: Final = 1
CURSOR_LOG_HEAD: Final = json.dumps({"format": _FORMAT}).encode()
"""The first record of each log."""


class MarkDelete(NamedTuple):
    """Everything up to a position is acknowledged."""

    position: Position


class PutProperty(NamedTuple):
    """A property is set."""

    key: str
    value: str


class RemoveProperty(NamedTuple):
    """A property is removed."""

    key: str


class NextGeneration(NamedTuple):
    """The last record of a log: the log of this generation begins with a snapshot of the state."""

    generation: int


CursorChange = MarkDelete | PutProperty | RemoveProperty


class CursorState:
    """A cursor's mark-delete position and properties: the sum of its durable changes, applied in order."""

    def __init__(self) -> None:
        self.mark_delete_position = Position(0, -1)
        self.properties: dict[str, str] = {}

    def apply(self, change: CursorChange) -> None:
        """Apply a change; an earlier mark-delete position has no effect."""
        if isinstance(change, MarkDelete):
            self.mark_delete_position = max(self.mark_delete_position, change.position)
        elif isinstance(change, PutProperty):
            self.properties[change.key] = change.value
        else:
            self.properties.pop(change.key, None)

    def changes(self) -> Iterator[CursorChange]:
        """Return the changes that turn an empty state into this one."""
        yield MarkDelete(self.mark_delete_position)
        for key, value in self.properties.items():
            yield PutProperty(key, value)


def encode_cursor_change(change: CursorChange | NextGeneration) -> bytes:
    """Return the record of a change."""
    found: Mapping[str, object]
    if isinstance(change, MarkDelete):
        found = {"mark": change.position}
    elif isinstance(change, PutProperty):
        found = {"put": [change.key, change.value]}
    elif isinstance(change, RemoveProperty):
        found = {"remove": change.key}
    else:
        found = {"next": change.generation}
    return json.dumps(found).encode()


def check_cursor_log_head(data: bytes, log: str) -> None:
    """Check the first record of a log.

    :raises LogVersionError: a later release wrote it
    :raises LogCorruptedError: this is not the log of a delayed cursor
    """
    version = _load(data, log, 0).get("format")
    if type(version) is not int or version < 1:
        raise LogCorruptedError(log, "record 0", 0, "this is not the log of a cursor")
    if version > _FORMAT:
        raise LogVersionError(log, "record 0", version)


def decode_cursor_change(data: bytes, log: str, number: int) -> CursorChange | NextGeneration:
    """Read a record after the first.

    :raises LogCorruptedError: the record is not a change
    """
    match _load(data, log, number):
        case {"mark": [int(ledger), int(entry)]} if ledger >= 0 and entry >= -1:
            return MarkDelete(Position(ledger, entry))
        case {"put": [str(key), str(value)]}:
            return PutProperty(key, value)
        case {"remove": str(key)}:
            return RemoveProperty(key)
        case {"next": int(generation)}:
            return NextGeneration(generation)
    raise LogCorruptedError(log, f"record {number}", 0, "this is not a change of a cursor")


def _load(data: bytes, log: str, number: int) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError as error:
        raise LogCorruptedError(log, f"record {number}", 0, str(error)) from error
    return found if isinstance(found, dict) else {}
