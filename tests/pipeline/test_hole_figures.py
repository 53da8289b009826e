"""What one snapshot of acknowledgement state says, from its rows; no Spark session is needed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack.ids import Position
from pulsar_nack.index import EntryRanges

pytest.importorskip("google.protobuf")

from pulsar_nack.cursor.format._ledger_acks import LedgerAcks
from pulsar_nack.cursor.format._legacy import LegacyRecord, encode_legacy
from pulsar_nack.pipeline._hole_figures import SnapshotRow, figures_of

LEDGERS: list[SnapshotRow] = [("ledger", 1, 0, 9, 100), ("ledger", 2, 0, 9, 200), ("ledger", 3, 0, 9, 400)]


def test_holes_are_counted() -> None:
    """Ranges above the mark-delete position are counted, and what lies between them, with the oldest of it."""
    stored: list[SnapshotRow] = [("cursor", 1, 1, 1, 20), ("state", 1, None, None, 9)]
    found = figures_of([*stored, ("acked", 1, 4, 5, None), ("acked", 3, 0, 2, None), *LEDGERS])
    assert (found.mark_delete_ledger, found.mark_delete_entry) == (1, 1)
    assert (found.ledgers, found.ranges, found.acked) == (2, 2, 5)
    # 1: 2-3 and 6-9, all of 2, none in 3
    assert (found.holes, found.unacked_below) == (3, 2 + 4 + 10)
    assert found.backlog == 6 + 10 + 7
    assert (found.oldest_ledger, found.oldest_entry) == (1, 2)
    assert (found.bytes, found.is_stored) == (29, True)
    assert (found.pinned_ledgers, found.pinned_bytes, found.pinned_done) == (2, 300, 0)


def test_nothing_is_known_of_ledgers() -> None:
    """Without the lengths of ledgers there is no backlog, and what lies after a ledger's last range is left out."""
    found = figures_of([("cursor", 5, -1, -1, None), ("acked", 5, 0, 0, None), ("acked", 7, 3, 3, None)])
    assert (found.holes, found.unacked_below, found.backlog, found.pinned_ledgers) == (1, 3, None, None)
    assert (found.oldest_ledger, found.oldest_entry) == (5, 1)


def test_ledgers_that_are_done_are_pinned_by_an_older_one() -> None:
    """A ledger of which all is acknowledged stays while one before it is not, unless it is the last."""
    acked: list[SnapshotRow] = [("acked", 2, 0, 9, None), ("acked", 3, 0, 9, None)]
    found = figures_of([("cursor", 1, 8, 8, None), *acked, *LEDGERS])
    assert (found.pinned_ledgers, found.pinned_bytes, found.pinned_done) == (2, 300, 1)
    assert (found.oldest_ledger, found.oldest_entry) == (1, 9)


def test_nothing_is_left() -> None:
    """Where all is acknowledged there is no oldest entry and nothing pinned."""
    found = figures_of([("cursor", 3, 9, 9, None), *LEDGERS])
    assert (found.backlog, found.holes, found.oldest_ledger, found.pinned_ledgers) == (0, 0, None, 0)


def test_overlaps_and_what_is_passed() -> None:
    """Ranges that overlap count once; what lies at or before the mark-delete position does not count."""
    acked: list[SnapshotRow] = [("acked", 1, 3, 6, None), ("acked", 1, 5, 8, None), ("acked", 1, 5, 8, None)]
    batches: list[SnapshotRow] = [("batch", 1, 2, 2, None), ("batch", 1, 12, 12, None), ("batch", 1, 7, 7, None)]
    found = figures_of([*acked, ("cursor", 1, 4, 4, None), *batches, ("acked", 0, 0, 9, None)])
    assert (found.ranges, found.acked, found.batches) == (1, 4, 1)


@pytest.mark.parametrize(
    "fact",
    [
        ("acked", 1, 5, 4, None),
        ("acked", 1, -1, 4, None),
        ("acked", None, 0, 4, None),
        ("acked", 1, 0, None, None),
        ("acked", 1, 0, 2**63 - 1, None),
        ("acked", -1, 0, 1, None),
        ("something", 1, 0, 1, None),
        ("ledger", 1, 0, -2, None),
    ],
)
def test_rows_that_make_no_sense_are_counted(fact: SnapshotRow) -> None:
    """A row that can mean nothing changes no figure, and is counted."""
    good: list[SnapshotRow] = [("cursor", 1, 1, 1, None), ("acked", 1, 3, 3, None)]
    assert figures_of([*good, fact]) == figures_of(good)._replace(ignored_rows=1)


@given(st.sets(st.tuples(st.integers(1, 3), st.integers(0, 30)), max_size=40), st.integers(-1, 9))
def test_sizes_are_those_of_the_cursor(acked: set[tuple[int, int]], at: int) -> None:
    """Bytes are what the cursor would write: one record for each ledger with a marker, and all in one record."""
    states = {
        ledger: LedgerAcks(
            EntryRanges.from_ranges((e, e) for each, e in acked if each == ledger and (each, e) > (1, at))
        )
        for ledger in (1, 2, 3)
    }
    states = {ledger: each for ledger, each in states.items() if each}
    found = figures_of([("cursor", 1, at, at, None), *(("acked", ledger, e, e, None) for ledger, e in acked)])
    marked = len(encode_legacy(LegacyRecord(Position(1, 0), {})).record) - 4  # Pulsar writes no mark
    assert found.single_bytes == len(encode_legacy(LegacyRecord(Position(1, at), states)).record) - marked
    assert found.ranges == sum(each.ranges.range_count for each in states.values())
