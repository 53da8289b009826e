"""What the records of a cursor's log say: a ledger's state, a marker, or everything at once as in the old form."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..ids import Position
from ..index import EntryRanges
from ..ledger import Log
from ._batch import BatchSet
from ._ledger_acks import LedgerAcks
from ._records import Stored


class UnreadableError(Exception):
    """A record, or what belongs together, cannot be read."""


class Contents(NamedTuple):
    """What a marker says beside where the ledgers' states lie."""

    mark_delete: Position
    properties: Mapping[str, int]
    cursor_properties: Mapping[str, str]


class Head(NamedTuple):
    """The contents of a marker and its sequence number."""

    sequence: int
    contents: Contents

    @property
    def mark_delete(self) -> Position:
        """Return the mark-delete position."""
        return self.contents.mark_delete

    @property
    def cursor_properties(self) -> Mapping[str, str]:
        """Return the cursor's properties."""
        return self.contents.cursor_properties


def encode_whole(head: Head, index: Mapping[int, Stored], *, limit: int) -> list[bytes]:
    """Return the records of a marker that names where each ledger's state lies."""
    del limit
    return [
        _dump("marker", head, refs={ledger: stored.numbers for ledger, stored in index.items()}, base=None, gone=[])
    ]


def encode_marker(
    head: Head, changes: Mapping[int, Stored], dropped: Iterable[int], *, base: int, limit: int
) -> list[bytes]:
    """Return the records of a marker that says what is different from the one at ``base``."""
    del limit
    refs = {ledger: stored.numbers for ledger, stored in changes.items()}
    return [_dump("marker", head, refs=refs, base=base, gone=list(dropped))]


def encode_head(head: Head) -> bytes:
    """Return a snapshot: a marker that names no ledger."""
    return encode_whole(head, {}, limit=0)[0]


def decode_head(record: bytes) -> Head:
    """Return what a snapshot says."""
    return _head_of(_load(record))


def is_marker(record: bytes) -> bool:
    """Return whether this is the last record of a marker."""
    return _kind(record) == "marker"


def is_single(record: bytes) -> bool:
    """Return whether this is a record in the old form."""
    return _kind(record) == "single"


def is_entry(record: bytes) -> bool:
    """Return whether this is a ledger's state, or part of something."""
    return _kind(record) == "entry"


async def read_marker(log: Log, number: int) -> tuple[Head, dict[int, tuple[int, ...]]]:
    """Read a marker whose last record this is, and those that it is the difference to.

    :raises UnreadableError: one of them cannot be read
    """
    chain = []
    at: int | None = number
    while at is not None:
        found = _load((await log.read(at, at))[0])
        if found["kind"] != "marker" or (found["base"] is not None and not 0 <= found["base"] < at):
            raise UnreadableError(f"record {at} is no marker, or goes on after itself")
        chain.append(found)
        at = found["base"]
    references: dict[int, tuple[int, ...]] = {}
    for found in reversed(chain):
        for ledger in found["gone"]:
            references.pop(ledger, None)
        references.update({int(ledger): tuple(numbers) for ledger, numbers in found["refs"].items()})
    return _head_of(chain[0]), references


def encode_state(ledger: int, acks: LedgerAcks, limit: int) -> list[bytes]:
    """Return the records of a ledger's state."""
    del limit
    return [json.dumps({"kind": "entry", "ledger": ledger, "acks": _plain(acks)}).encode()]


def decode_state(ledger: int, records: Sequence[bytes]) -> LedgerAcks:
    """Return a ledger's state.

    :raises UnreadableError: it cannot be read, or is another ledger's
    """
    found = _load(records[0])
    if found["kind"] != "entry" or found["ledger"] != ledger:
        raise UnreadableError(f"not the state of ledger {ledger}")
    return _acks_of(found["acks"])


def encode_old(head: Head, states: Mapping[int, LedgerAcks], most: int) -> tuple[bytes, int]:
    """Return everything as one record, and how many ranges were left out."""
    del most
    return _dump("single", head, acks={ledger: _plain(acks) for ledger, acks in states.items()}), 0


def read_single(record: bytes) -> tuple[int, Contents, dict[int, LedgerAcks]]:
    """Return what a record in the old form says."""
    found = _load(record)
    head = _head_of(found)
    return head.sequence, head.contents, {int(ledger): _acks_of(acks) for ledger, acks in found["acks"].items()}


def marker_size(count: int) -> int:
    """Return about how many bytes a marker that names so many ledgers takes."""
    return 20 + 16 * count


def state_size(acks: LedgerAcks) -> int:
    """Return about how many bytes a ledger's state takes."""
    return 10 + 2 * acks.ranges.range_count


def _dump(kind: str, head: Head, **rest: Any) -> bytes:
    sequence, (mark_delete, properties, cursor_properties) = head
    known = {"sequence": sequence, "mark_delete": mark_delete, "longs": dict(properties)}
    return json.dumps({"kind": kind, **known, "strings": dict(cursor_properties), **rest}).encode()


def _head_of(found: dict[str, Any]) -> Head:
    contents = Contents(Position(*found["mark_delete"]), found["longs"], found["strings"])
    return Head(found["sequence"], contents)


def _load(record: bytes) -> dict[str, Any]:
    try:
        found = json.loads(record)
    except ValueError as error:
        raise UnreadableError(str(error)) from error
    if not isinstance(found, dict) or "kind" not in found:
        raise UnreadableError("no record of a cursor")
    return found


def _kind(record: bytes) -> str:
    try:
        return str(_load(record)["kind"])
    except UnreadableError:
        return ""


def _plain(acks: LedgerAcks) -> list[Any]:
    return [list(acks.ranges.ranges()), [[entry, each.size, each.unacked] for entry, each in acks.batches.items()]]


def _acks_of(plain: Any) -> LedgerAcks:
    ranges, batches = plain
    return LedgerAcks(
        EntryRanges.from_ranges(map(tuple, ranges)), {entry: BatchSet(size, bits) for entry, size, bits in batches}
    )
