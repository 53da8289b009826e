"""The properties of the cursor that name snapshots.

Pulsar's own is ``#pulsar.internal.delayed.bucket_<first ledger>_<last ledger>`` with the snapshot's id as its value. A
ledger may have several buckets here: the others of the same range are named
``#pulsar.internal.delayed.part_<first ledger>_<last ledger>_<n>``, n from 1 on, which Pulsar passes over.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from itertools import count
from typing import Final, NamedTuple

from ...config import DELAYED_PREFIX

_BUCKET: Final = re.compile(re.escape(DELAYED_PREFIX) + r"bucket_(\d{1,19})_(\d{1,19})")
_PART: Final = re.compile(re.escape(DELAYED_PREFIX) + r"part_(\d{1,19})_(\d{1,19})_\d{1,9}")
_ID: Final = re.compile(r"\d{1,19}")


class NamedSnapshot(NamedTuple):
    """A property that names a snapshot, and the ledgers that it covers."""

    key: str
    snapshot_id: int
    start: int
    end: int


def free_key(start: int, end: int, taken: Container[str]) -> str:
    """Return the key of a new bucket."""
    key = f"{DELAYED_PREFIX}bucket_{start}_{end}"
    if key not in taken:
        return key
    parts = (f"{DELAYED_PREFIX}part_{start}_{end}_{number}" for number in count(1))
    return next(key for key in parts if key not in taken)


def named_snapshots(properties: Mapping[str, str]) -> list[NamedSnapshot]:
    """Return the snapshots that properties name, the widest first, so that what was merged comes before its sources.

    What only looks like one is passed over.
    """
    found = []
    for key, value in properties.items():
        match = _BUCKET.fullmatch(key) or _PART.fullmatch(key)
        if match and _ID.fullmatch(value) and int(match[1]) <= int(match[2]):
            found.append(NamedSnapshot(key, int(value), int(match[1]), int(match[2])))
    return sorted(found, key=lambda each: (each.start - each.end, each.start, -each.snapshot_id))
