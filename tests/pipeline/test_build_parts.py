"""Buckets cut and encoded with numpy, compared with the tracker's own code on the same rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack import BucketConfig, InvalidArgumentError
from pulsar_nack.delayed.bucket._index import BucketIndex
from pulsar_nack.delayed.bucket._snapshot_builder import SnapshotBuilder
from pulsar_nack.delayed.format import decode_metadata
from pulsar_nack.pipeline._build_buckets import (
    Rows,
    Unit,
    buckets_of,
    encode_bucket,
    make_units,
    split_evenly,
)

from .local_build import rows_of

LATEST = 1 << 56
NUMBERS = st.one_of(st.integers(0, 300), st.integers(0, 2**32 - 1))
TIMES = st.one_of(st.integers(0, 2_000), st.integers(0, LATEST))


def sorted_rows(found: dict[tuple[int, int], int]) -> Rows:
    """Return rows in order of position."""
    positions = sorted(found)
    return rows_of(
        [ledger for ledger, _ in positions], [entry for _, entry in positions], [found[each] for each in positions]
    )


ROWS = st.dictionaries(
    st.tuples(st.one_of(st.integers(0, 5), st.integers(0, 2**63 - 1)), NUMBERS), TIMES, min_size=1, max_size=80
).map(sorted_rows)


@given(ROWS, st.sampled_from([0.001, 0.1, 1.0, 300.0]), st.sampled_from([-1, 1, 3, 50]))
def test_bucket_has_the_bytes_that_the_tracker_writes(rows: Rows, step: float, most: int) -> None:
    """Segments equal the tracker's byte by byte, and metadata agree, for any numbers."""
    config = BucketConfig(
        delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds=step,
        delayed_delivery_max_indexes_per_bucket_snapshot_segment=most,
    )
    builder = SnapshotBuilder(config.segment_step_ms, most)
    builder.add(sorted(zip(rows.times.tolist(), rows.ledgers.tolist(), rows.entries.tolist(), strict=True)))
    expected = builder.finish()
    metadata, segments = encode_bucket(rows, config)
    assert segments == expected.segments
    assert decode_metadata(metadata) == decode_metadata(expected.metadata)
    assert (rows.times.min(), rows.times.max()) == (expected.mins[0], expected.maxs[-1])


@given(ROWS, st.integers(1, 8), st.one_of(st.none(), st.integers(1, 20)), st.integers(1, 30))
def test_cuts_are_where_the_tracker_seals(rows: Rows, least: int, most: int | None, batch: int) -> None:
    """Rows in batches of any size are cut where a tracker seals that gets them one by one."""
    config = BucketConfig(delayed_delivery_min_index_count_per_bucket=least, max_indexes_per_bucket=most)
    index = BucketIndex(config)
    for ledger, entry, at in zip(*(column.tolist() for column in rows), strict=True):
        index.add(ledger, entry, at, 0)
    expected = [sealing.added for sealing in index.sealing] + [index.mutable.added]
    found = list(buckets_of((rows.part(at, at + batch) for at in range(0, rows.length, batch)), config))
    assert [bucket.length for bucket in found] == expected
    assert np.concatenate([bucket.entries for bucket in found]).tolist() == rows.entries.tolist()


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_position_that_comes_twice_is_refused(batch: int) -> None:
    """Two rows of one position are found in one batch and over two."""
    rows = rows_of([3, 3, 4, 4, 5], [1, 2, 2, 2, 2], [9, 9, 9, 8, 9])
    config = BucketConfig(delayed_delivery_min_index_count_per_bucket=2, max_indexes_per_bucket=4)
    with pytest.raises(InvalidArgumentError, match="ledger_id 4, entry_id 2 more than once"):
        list(buckets_of((rows.part(at, at + batch) for at in range(0, 5, batch)), config))


def test_units_begin_where_buckets_do() -> None:
    """Counts of blocks alone determine where buckets end, their ids, and how many of a ledger's buckets come before."""
    config = BucketConfig(delayed_delivery_min_index_count_per_bucket=10, max_indexes_per_bucket=20)
    blocks = [(1, 0, 9), (2, 0, 3), (3, 0, 45), (3, 1, 16), (3, 2, 12), (9, 5, 4)]
    assert make_units(blocks, config, 10) == [
        Unit(1, 0, 1, 0, 12, 2),
        Unit(3, 0, 2, 0, 73, 3),  # 20, 20, 20 and 13
        Unit(9, 0, 6, 0, 4, 9),
    ]


def test_long_ledger_is_divided_at_blocks() -> None:
    """A ledger that no bucket's end divides is divided where a bucket has enough rows."""
    config = BucketConfig(delayed_delivery_min_index_count_per_bucket=10, max_indexes_per_bucket=20)
    blocks = [(7, number, 15) for number in range(4)]
    assert make_units(blocks, config, 30) == [Unit(7, 0, 1, 0, 30, 7), Unit(7, 2 << 16, 3, 2, 30, 7)]


def test_no_rows_are_no_units() -> None:
    """Without rows there are no units."""
    assert make_units([], BucketConfig()) == []
    assert split_evenly([], 4) == []
