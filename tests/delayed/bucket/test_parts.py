"""The parts without clock or storage: queue, segments, names, merge candidates, sealing rules."""

from __future__ import annotations

import heapq
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_nack import BucketConfig
from pulsar_nack.delayed.bucket._buckets import ImmutableBucket, MutableBucket
from pulsar_nack.delayed.bucket._queue import TAIL, DueQueue
from pulsar_nack.delayed.bucket._snapshot_builder import (
    MergeSource,
    SnapshotBuilder,
    choose_pair,
    take_merged,
    wanted_of,
)
from pulsar_nack.delayed.format import (
    Columns,
    Index,
    NamedSnapshot,
    decode_metadata,
    decode_segment,
    free_key,
    named_snapshots,
)
from pulsar_nack.index import NEVER
from tests.for_each import for_each

INDEX = st.tuples(st.integers(0, 50), st.integers(0, 3), st.integers(0, 9))


def bucket_of(start: int, end: int, size: int, snapshot_id: int = 1) -> ImmutableBucket:
    """Return a bucket of one segment."""
    return ImmutableBucket(
        NamedSnapshot(f"{start}_{end}", snapshot_id, start, end), mins=[10], maxs=[20], counts=[size]
    )


def cut(times: list[int], step: int, most: int, piece: int = 100) -> SnapshotBuilder:
    """Cut indexes with these times, given in pieces."""
    builder = SnapshotBuilder(step, most)
    indexes = [(at, 1, entry) for entry, at in enumerate(times)]
    for place in range(0, len(indexes), piece):
        builder.add(indexes[place : place + piece])
    return builder.finish()


def read(data: bytes) -> list[Index]:
    """Return what is in a segment."""
    steps = decode_segment(data)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return list(done.value)


@pytest.mark.parametrize(
    ("times", "step", "most", "counts"),
    [
        ([10, 20, 30], 10, -1, [1, 1, 1]),
        ([7, 7, 7, 7, 7], 10, 2, [2, 2, 1]),
        ([10, 19, 20, 29, 30], 10, -1, [2, 2, 1]),
        ([15, 24, 25, 34], 10, -1, [2, 2]),
        ([5], 10, 1, [1]),
        ([], 10, 1, []),
    ],
)
def test_segments(times: list[int], step: int, most: int, counts: list[int]) -> None:
    """D17: a segment ends by its window, which starts at its own first time, and by its size."""
    assert cut(times, step, most).counts == counts


@given(st.lists(st.integers(0, 200)), st.integers(1, 50), st.sampled_from([-1, 1, 2, 7]), st.integers(1, 20))
def test_segments_say_what_is_in_them(times: list[int], step: int, most: int, piece: int) -> None:
    """However the indexes are given, each is in one segment, and times, sizes and bitmaps describe it."""
    times.sort()
    snapshot = cut(times, step, most, piece)
    segments = [read(segment) for segment in snapshot.segments]
    assert [at for segment in segments for at, _, _ in segment] == times
    assert snapshot.counts == [len(segment) for segment in segments]
    assert snapshot.mins == [segment[0][0] for segment in segments]
    assert snapshot.maxs == [segment[-1][0] for segment in segments]
    assert all(high - low < step for low, high in zip(snapshot.mins, snapshot.maxs, strict=True))
    assert most == -1 or all(count <= most for count in snapshot.counts)
    for one, other in pairwise(segments):
        assert other[0][0] - one[0][0] >= step or len(one) == most
    if segments:
        rows = decode_metadata(snapshot.metadata)
        assert [(row.min_at, row.max_at) for row in rows] == list(zip(snapshot.mins, snapshot.maxs, strict=True))


@given(st.lists(st.one_of(INDEX, st.lists(INDEX, min_size=1), st.none())))
def test_queue_gives_the_earliest(steps: list[Index | list[Index] | None]) -> None:
    """Pushed singly or added as a run, indexes come out in order, and owners know how many of theirs are left."""
    owners = [MutableBucket.of(BucketConfig()) for _ in range(2)]
    queue, model = DueQueue(owners[0]), list[Index]()
    counts = [0, 0]
    for step in steps:
        if isinstance(step, list):
            queue.add(Columns(sorted(step)), owners[1])
            counts[1] += len(step)
            model += step
            heapq.heapify(model)
        elif step is not None:
            queue.push(step)
            counts[0] += 1
            heapq.heappush(model, step)
        elif model:
            assert queue.first() == heapq.heappop(model)
            counts[owners.index(queue.pop())] -= 1  # type: ignore[arg-type]
        assert queue.earliest == (model[0][0] if model else NEVER)
        assert [owner.loaded for owner in owners] == counts
        assert (queue.bytes > 0) == bool(model)
    queue.change_tail_owner(owners[1])
    assert sum(len(list(run.rest())) for run in queue.runs([owners[0]])) == counts[0]
    queue.drop([owners[0]])
    assert (owners[0].loaded, owners[1].loaded) == (0, counts[1])
    queue.clear()
    assert queue.first() is None
    assert queue.bytes == 0


def test_queue_folds_a_full_tail() -> None:
    """Added indexes are kept in columns except the last few, and come out in order."""
    owner = MutableBucket.of(BucketConfig())
    queue = DueQueue(owner)
    for number in range(3 * TAIL + 5):
        queue.push((number * 7919 % 10_007, 1, number))
    assert len(queue.runs([owner])) == 3
    assert queue.bytes < 3 * TAIL * 24 + 3 * 400 + 5 * 200
    times = []
    while (first := queue.first()) is not None:
        times.append(first[0])
        queue.pop()
    assert times == sorted(times)
    assert len(times) == 3 * TAIL + 5


def test_choice_of_a_merge() -> None:
    """D25: of buckets with 5, 3, 2, 4, 3 indexes the second and the third are merged."""
    buckets = [bucket_of(10 * i, 10 * i + 5, size) for i, size in enumerate((5, 3, 2, 4, 3))]
    pair = choose_pair(buckets)
    assert pair == (buckets[1], buckets[2])
    buckets[2].is_merging = True
    assert choose_pair(buckets) == (buckets[3], buckets[4])
    buckets[4].is_late = True
    assert choose_pair(buckets) == (buckets[0], buckets[1])
    assert choose_pair(buckets[:1]) is None
    assert choose_pair([]) is None


@given(st.lists(st.lists(st.lists(INDEX, max_size=4), max_size=4), max_size=3))
def test_merge_of_pieces(sources: list[list[list[Index]]]) -> None:
    """Sources that arrive piece by piece are merged in order, each piece requested once and in time."""
    flat = [sorted(index for piece in source for index in piece) for source in sources]
    pieces = []
    for source, ordered in zip(sources, flat, strict=True):
        rest = iter(ordered)
        pieces.append([[next(rest) for _ in piece] for piece in source])
    fed = [MergeSource() for _ in sources]
    merged = list[Index]()
    while True:
        while (wanted := wanted_of(fed)) is not None:
            left = pieces[fed.index(wanted)]
            wanted.feed(Columns(left.pop(0)) if left else None)
        taken = take_merged(fed)
        if not taken:
            break
        merged += taken
    assert merged == sorted(index for ordered in flat for index in ordered)


def test_names() -> None:
    """A range in use gets another key, which Pulsar ignores; all are found again, the widest first."""
    held = {"other": "5"}
    for snapshot_id in (401, 402, 403):
        held[free_key(400, 400, held)] = str(snapshot_id)
    held[free_key(399, 400, held)] = "404"
    assert list(held)[1:] == [
        "#pulsar.internal.delayed.bucket_400_400",
        "#pulsar.internal.delayed.part_400_400_1",
        "#pulsar.internal.delayed.part_400_400_2",
        "#pulsar.internal.delayed.bucket_399_400",
    ]
    found = named_snapshots(held)
    assert [each.snapshot_id for each in found] == [404, 403, 402, 401]
    assert found[0] == NamedSnapshot("#pulsar.internal.delayed.bucket_399_400", 404, 399, 400)


@for_each(
    ("key", "value"),
    [
        ("bucket_400", "1"),
        ("bucket_400_401", "x"),
        ("bucket_400_401", "-1"),
        ("bucket_401_400", "1"),
        ("bucket_400_401_402", "1"),
        ("part_400_401", "1"),
        ("bucket_-1_401", "1"),
    ],
)
def test_names_that_are_none(key: str, value: str) -> None:
    """A property that only resembles a name is ignored."""
    assert named_snapshots({f"#pulsar.internal.delayed.{key}": value}) == []


def test_when_to_seal() -> None:
    """A bucket with enough indexes is sealed at a new ledger, at its maximum size, or when it is old; never before."""
    bucket = MutableBucket(min_size=3, max_size=5, max_age_ms=100)
    for number in range(3):
        bucket.add(7, 1_000 + number)
        bucket.loaded += 1
        assert not (number < 2 and bucket.is_full(8, 10_000))
        assert bucket.old_at == (NEVER if number < 2 else 1_100)
    assert bucket.is_full(8, 1_002)
    assert not bucket.is_full(7, 1_099)
    assert not bucket.is_full(6, 1_099)
    assert bucket.is_full(7, 1_100)
    bucket.loaded = 5
    assert bucket.is_full(7, 1_002)
    bucket.add(3, 1_003)
    assert (bucket.start, bucket.end, bucket.added) == (3, 7, 4)


def test_limits_of_a_config() -> None:
    """The limits are read from the config; a bucket is never sealed below the least size."""
    bucket = MutableBucket.of(BucketConfig())
    assert (bucket.min_size, bucket.max_size, bucket.max_age_ms) == (50_000, 100_000, 300_000)
    config = BucketConfig(delayed_delivery_min_index_count_per_bucket=70, max_indexes_per_bucket=50)
    assert MutableBucket.of(config).max_size == 70


def test_a_bucket_is_used_up_segment_by_segment() -> None:
    """The next segment is wanted when half of the present one is used; sizes follow."""
    bucket = ImmutableBucket(NamedSnapshot("k", 1, 1, 2), mins=[10, 20, 30], maxs=[19, 29, 39], counts=[4, 2, 1])
    assert (bucket.size, bucket.next_at, bucket.following_at) == (7, 10, 20)
    assert bucket.can_load_next
    bucket.note_loaded(4)
    bucket.loaded = 4
    assert (bucket.size, bucket.next_at, bucket.can_load_next) == (7, 20, False)
    bucket.loaded = 2
    assert bucket.can_load_next
    assert [bucket.first_reaching(at) for at in (5, 29, 30, 39, 40)] == [1, 1, 2, 2, 3]
    bucket.skip_to(3)
    assert (bucket.size, bucket.next_at, bucket.following_at, bucket.is_used_up) == (2, NEVER, NEVER, False)
    bucket.loaded = 0
    assert bucket.is_used_up
