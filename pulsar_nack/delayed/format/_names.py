"""The names of snapshots: the cursor properties that name them, and the names of their logs.

Pulsar's properties are ``#pulsar.internal.delayed.bucket_<first ledger>_<last ledger>``, with the snapshot id as value.
Here a ledger range may have several buckets. The keys of the further ones are
``#pulsar.internal.delayed.part_<first ledger>_<last ledger>_<n>``, with n from 1; Pulsar ignores them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping
from hashlib import sha256
from itertools import count
from typing import Final, NamedTuple

from ...config import DELAYED_PREFIX

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
