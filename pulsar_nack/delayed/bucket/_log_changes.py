"""What a cursor writes to its log: a mark-delete position, a property set or removed, and where the log goes on.

Each is a record of JSON with one field, ``mark``, ``put``, ``remove`` or ``next``; a log begins with ``format``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from ...errors import LogCorruptedError, LogVersionError
from ...ids import Position

FORMAT: Final = 1
HEAD: Final = json.dumps({"format": FORMAT}).encode()


class Mark(NamedTuple):
    """Everything up to a position is acknowledged."""

    position: Position


class Put(NamedTuple):
    """A property has this value."""

    key: str
    value: str


class Remove(NamedTuple):
    """A property is not there any more."""

    key: str


class Next(NamedTuple):
    """Nothing follows here: the log of this generation, which holds the whole state, goes on."""

    generation: int


Change = Mark | Put | Remove


class State:
    """What a cursor knows; changed by the changes that are durable, in their order."""

    def __init__(self) -> None:
        self.mark_delete_position = Position(0, -1)
        self.properties: dict[str, str] = {}

    def apply(self, change: Change) -> None:
        """Change it; a mark-delete position does not go back."""
        if isinstance(change, Mark):
            self.mark_delete_position = max(self.mark_delete_position, change.position)
        elif isinstance(change, Put):
            self.properties[change.key] = change.value
        else:
            self.properties.pop(change.key, None)

    def changes(self) -> Iterator[Change]:
        """Return what makes this state of a new one."""
        yield Mark(self.mark_delete_position)
        for key, value in self.properties.items():
            yield Put(key, value)


def encode(change: Change | Next) -> bytes:
    """Return the record of a change."""
    found: Mapping[str, object]
    if isinstance(change, Mark):
        found = {"mark": change.position}
    elif isinstance(change, Put):
        found = {"put": [change.key, change.value]}
    elif isinstance(change, Remove):
        found = {"remove": change.key}
    else:
        found = {"next": change.generation}
    return json.dumps(found).encode()


def check_head(data: bytes, log: str) -> None:
    """Check the first record.

    :raises LogVersionError: a later release wrote it
    :raises LogCorruptedError: this is no cursor's log
    """
    version = _load(data, log, 0).get("format")
    if type(version) is not int or version < 1:
        raise LogCorruptedError(log, "record 0", 0, "this is not the log of a cursor")
    if version > FORMAT:
        raise LogVersionError(log, "record 0", version)


def decode(data: bytes, log: str, number: int) -> Change | Next:
    """Read a record.

    :raises LogCorruptedError: it is none of these
    """
    match _load(data, log, number):
        case {"mark": [int(ledger), int(entry)]} if ledger >= 0 and entry >= -1:
            return Mark(Position(ledger, entry))
        case {"put": [str(key), str(value)]}:
            return Put(key, value)
        case {"remove": str(key)}:
            return Remove(key)
        case {"next": int(generation)}:
            return Next(generation)
    raise LogCorruptedError(log, f"record {number}", 0, "this is no change of a cursor")


def _load(data: bytes, log: str, number: int) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError as error:
        raise LogCorruptedError(log, f"record {number}", 0, str(error)) from error
    return found if isinstance(found, dict) else {}
