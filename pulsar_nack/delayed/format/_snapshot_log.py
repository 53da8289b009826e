"""How snapshots are named and stored: the cursor properties that name them, and their logs.

Pulsar's properties are ``#pulsar.internal.delayed.bucket_<first ledger>_<last ledger>``, with the snapshot id as value.
Here a ledger range may have several buckets. The keys of the further ones are
``#pulsar.internal.delayed.part_<first ledger>_<last ledger>_<n>``, with n from 1; Pulsar ignores them.

The log ``snapshot-<digest>-<id>`` is sealed. Its records are the entries of the snapshot, the metadata first, and then
the *footer*, which describes them in JSON: the format, the bucket's key, topic, cursor, the number of entries, and the
entries that were too large for one record and take several. The seal is the commit point: a log without it is what a
crash left behind, or a truncated file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Mapping
from hashlib import sha256
from itertools import count
from typing import Final, NamedTuple

from ...config import DELAYED_PREFIX
from ...errors import LogVersionError

_FORMAT: Final = 1
_BUCKET: Final = re.compile(re.escape(DELAYED_PREFIX) + r"bucket_(\d{1,19})_(\d{1,19})")
_PART: Final = re.compile(re.escape(DELAYED_PREFIX) + r"part_(\d{1,19})_(\d{1,19})_\d{1,9}")
_ID: Final = re.compile(r"\d{1,19}")
SNAPSHOT_LOG_NAME: Final = re.compile(r"snapshot-([0-9a-f]{32})-(\d{1,19})")
"""Matches the name of a snapshot's log; the groups are digest and snapshot id."""


class NamedSnapshot(NamedTuple):
    """A cursor property that names a snapshot, and the snapshot's first and last ledger."""

    key: str
    snapshot_id: int
    start: int
    end: int


def bucket_key(start: int, end: int, number: int) -> str:
    """Return the key of a bucket: the ``number``-th of its ledger range, counted from 0."""
    return f"{DELAYED_PREFIX}part_{start}_{end}_{number}" if number else f"{DELAYED_PREFIX}bucket_{start}_{end}"


def free_key(start: int, end: int, taken: Container[str]) -> str:
    """Return the first key of a ledger range that is not taken."""
    keys = (bucket_key(start, end, number) for number in count())
    return next(key for key in keys if key not in taken)


def named_snapshots(properties: Mapping[str, str]) -> list[NamedSnapshot]:
    """Return the snapshots that cursor properties name, the widest first, so that a merged one precedes its sources.

    Malformed keys and values are skipped.
    """
    found = []
    for key, value in properties.items():
        match = _BUCKET.fullmatch(key) or _PART.fullmatch(key)
        if match and _ID.fullmatch(value) and int(match[1]) <= int(match[2]):
            found.append(NamedSnapshot(key, int(value), int(match[1]), int(match[2])))
    return sorted(found, key=lambda each: (each.start - each.end, each.start, -each.snapshot_id))


def snapshot_log_name(topic_name: str, cursor_name: str, snapshot_id: int) -> str:
    """Return the name of a snapshot's log."""
    return f"snapshot-{subscription_digest(topic_name, cursor_name)}-{snapshot_id}"


def subscription_digest(topic_name: str, cursor_name: str) -> str:
    """Return the digest of topic and cursor in the names of their snapshots' logs."""
    return sha256(json.dumps([topic_name, cursor_name]).encode()).hexdigest()[:32]


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
