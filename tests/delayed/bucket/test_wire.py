"""The protobuf form of snapshots: exact bytes, the older form, and foreign bytes."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack import BucketDelayedDeliveryTracker
from pulsar_nack.delayed.format import (
    STEP,
    Columns,
    Index,
    SegmentRow,
    decode_metadata,
    decode_segment,
    encode_indexes,
    encode_metadata,
    snapshot_protobuf,
)
from pulsar_nack.errors import MissingExtraError, SnapshotFormatError
from pulsar_nack.index import PositionSet
from pulsar_nack.testing import MemoryDelayedCursor, MemorySnapshotStorage
from tests.for_each import for_each

INDEXES = st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**32 - 1)))


def read(data: bytes) -> Columns:
    """Decode a segment without pauses."""
    steps = decode_segment(data)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            columns: Columns = done.value
            return columns


def test_the_bytes_are_those_of_pulsar() -> None:
    """Field numbers and types: an index is timestamp 1, ledger 2, entry 3, in field 1 of a segment."""
    assert encode_indexes([(300, 2, 1)]).hex() == "0a07" + "08ac02" + "1002" + "1801"
    row = SegmentRow(5, 300, {7: b"\x01\x02"})
    assert encode_metadata([row]).hex() == "0a0d" + "0a06" + "0807" + "12020102" + "10ac02" + "1805"


@given(INDEXES.filter(bool))
def test_segments_come_back_in_order(indexes: list[Index]) -> None:
    """Written indexes are read in order of time, also if the writer had no order."""
    assert [index[0] for index in read(encode_indexes(indexes))] == sorted(index[0] for index in indexes)
    assert sorted(read(encode_indexes(indexes))) == sorted(indexes)


def test_parts_make_a_segment() -> None:
    """Joined parts are one segment, and a large one is read in steps."""
    indexes = [(at, 1, at) for at in range(3 * STEP)]
    data = encode_indexes(indexes[:STEP]) + encode_indexes(indexes[STEP:])
    assert list(read(data)) == indexes
    assert len(list(decode_segment(data))) == 3


def test_metadata_come_back() -> None:
    """Rows are equal when read; bitmaps pass unchanged."""
    sets = PositionSet()
    sets.add(3, 4)
    rows = [SegmentRow(1, 2, sets.dump()), SegmentRow(2, 9, {})]
    assert decode_metadata(encode_metadata(rows)) == rows


def test_reads_the_older_form() -> None:
    """D29: metadata without min_schedule_timestamp are read; the time is unknown then."""
    assert decode_metadata(encode_metadata([SegmentRow(None, 2, {})])) == [SegmentRow(None, 2, {})]


@for_each(
    "bad",
    [
        b"",
        b"\x0a",
        b"\x0a\xff",
        encode_indexes([(300, 2, 1)])[:-1],
        b"\x0a\x04\x08\x01\x10\x02",  # no entry
        b"not a segment at all",
        bytes.fromhex("0a0f08ffffffffffffffffff0110021801"),  # a time above 2**63
        bytes.fromhex("0a0a08011002188080808010"),  # entry 2**32
    ],
)
def test_segments_that_are_none(bad: bytes) -> None:
    """Truncated, damaged or foreign bytes are not read as segments."""
    with pytest.raises(SnapshotFormatError, match="snapshot segment"):
        read(bad)


@for_each(
    "bad",
    [
        b"",
        encode_metadata([SegmentRow(1, 2, {1: b"abc"})])[:-3],
        encode_metadata([SegmentRow(3, 2, {})]),
        encode_metadata([SegmentRow(3, 2**63, {})]),
        encode_metadata([SegmentRow(1, 2, {2**63: b""})]),
        b"\x12\x00",
        b"\x00\x01\x02",
    ],
)
def test_metadata_that_are_none(bad: bytes) -> None:
    """Metadata that are truncated, contradict themselves, or have no segments are refused."""
    with pytest.raises(SnapshotFormatError, match="snapshot metadata"):
        decode_metadata(bad)


@given(st.binary(max_size=60))
def test_random_bytes_never_surprise(data: bytes) -> None:
    """Any bytes are read or refused with the one error."""
    for decode in (read, decode_metadata):
        try:
            assert len(decode(data)) >= 0
        except SnapshotFormatError:
            continue


async def test_says_which_extra_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without protobuf, opening a tracker names the extra that installs it."""
    snapshot_protobuf.cache_clear()
    monkeypatch.delattr("pulsar_nack.delayed._snapshot_pb2", raising=False)
    monkeypatch.setitem(sys.modules, "pulsar_nack.delayed._snapshot_pb2", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'pulsar-nack\[bucket\]'"):
        await BucketDelayedDeliveryTracker.open(MemorySnapshotStorage(), MemoryDelayedCursor())
