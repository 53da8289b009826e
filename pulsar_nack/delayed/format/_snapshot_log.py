"""How a snapshot is stored in a log.

The log ``snapshot-<digest>-<id>`` is sealed. Its records are the entries of the snapshot, the metadata first, and then
the *footer*, which describes them in JSON: the format, the bucket's key, topic, cursor, the number of entries, and the
entries that were too large for one record and take several. The seal is the commit point: a log without it is what a
crash left behind, or a truncated file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from ...errors import LogVersionError

_FORMAT: Final = 1


class Footer(NamedTuple):
    """The last record of a snapshot's log; ``parts`` has the number of records of each entry that takes several."""

    key: str
    topic: str
    cursor: str
    entries: int
    parts: Mapping[int, int]

    @property
    def records(self) -> int:
        """Return the number of records before the footer."""
        return self.entries + sum(self.parts.values()) - len(self.parts)

    def encode(self) -> bytes:
        """Return the footer's record."""
        parts = {str(entry): count for entry, count in self.parts.items()}
        return json.dumps({"format": _FORMAT, **self._asdict(), "parts": parts}).encode()


def decode_footer(data: bytes, log: str) -> Footer:
    """Read a footer.

    :raises ValueError: the record is not a sound footer
    :raises LogVersionError: a later release wrote it
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not _is_count(version := found.pop("format", None)):
        raise ValueError("its last record is not a footer")
    if version > _FORMAT:
        raise LogVersionError(log, "the footer", version)
    try:
        parts = {int(entry): count for entry, count in found.pop("parts").items()}
        footer = Footer(**found, parts=parts)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError("its footer is incomplete") from error
    if not all(map(_is_count, (footer.entries, *parts.values()))) or any(entry >= footer.entries for entry in parts):
        raise ValueError("its footer contradicts itself")
    return footer


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def split_entries(entries: Iterable[bytes], max_bytes: int) -> tuple[list[bytes], dict[int, int]]:
    """Return the records of some entries, each at most ``max_bytes``, and the footer's ``parts``."""
    records: list[bytes] = []
    parts: dict[int, int] = {}
    for number, entry in enumerate(entries):
        if len(entry) <= max_bytes:
            records.append(bytes(entry))
            continue
        pieces = [bytes(entry[at : at + max_bytes]) for at in range(0, len(entry), max_bytes)]
        records += pieces
        parts[number] = len(pieces)
    return records, parts
