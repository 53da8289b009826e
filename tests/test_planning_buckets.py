"""The plan of buckets on storage, beside a tracker that is really filled and emptied."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from pulsar_nack import BucketConfig, BucketDelayedDeliveryTracker, InvalidArgumentError
from pulsar_nack.planning import BucketLoad, BucketSize, Kind, Workload, bucket_size, make_bucket_plan
from pulsar_nack.testing import ManualClock, MemoryDelayedCursor, MemorySnapshotStorage

MIB = 1 << 20
HOUR_MS = 3_600_000
LEDGER = 10_000
LEDGER_ID = 1_000_000
FIXED = 600_000
"""The formula's fixed part, for storage and loop, which the tracker's own figure leaves out."""


def load_of(messages: int, *, is_scattered: bool, ledger: int = 50_000, min_indexes: int = 50_000) -> BucketLoad:
    """Return a load with deadlines over an hour, with all messages delayed."""
    return BucketLoad(Workload(Kind.DELAYED, messages / 3600, 3600, 1, ledger), is_scattered, min_indexes)


async def figures(load: BucketLoad, size: BucketSize) -> dict[str, Any]:
    """Fill and empty a tracker; return the figures that the plan predicts."""
    config = BucketConfig(
        is_delayed_delivery_deliver_at_time_strict=True,
        delayed_delivery_min_index_count_per_bucket=load.min_indexes,
        delayed_delivery_max_num_buckets=size.buckets,
        delayed_delivery_max_indexes_per_bucket_snapshot_segment=size.segment,
    )
    clock, storage, dice = ManualClock(10**12), MemorySnapshotStorage(), random.Random(5)
    tracker = await BucketDelayedDeliveryTracker.open(storage, MemoryDelayedCursor(), config, clock=clock)
    async with tracker:
        count, used = round(load.messages), 0
        for at in range(0, count, LEDGER):
            late = [dice.random() if load.is_scattered else number / count for number in range(at, at + LEDGER)]
            times = [10**12 + 60_000 + int(each * HOUR_MS) for each in late]
            tracker.add_entries(LEDGER_ID + at // LEDGER, range(LEDGER), times)
            await tracker.wait_until_idle()
            used = max(used, tracker.buffer_memory_usage)
        found = {
            "filling": used,
            "buckets": tracker.statistics().buckets,
            "segments": sum(len(entries) - 1 for entries in storage.snapshots.values()),
            "disk": tracker.statistics().snapshot_bytes,
            "merges": tracker.statistics().operations["merge", "succeed"],
        }
        used = 0
        while tracker.number_of_delayed_messages:
            clock.advance(10_000)
            while tracker.get_scheduled_messages(1_000):
                await tracker.wait_until_idle()
            await tracker.wait_until_idle()
            used = max(used, tracker.buffer_memory_usage)
        return found | {"draining": used}


@pytest.mark.slow
@pytest.mark.parametrize("is_scattered", [False, True])
@pytest.mark.parametrize("most", [5, 50])
async def test_beside_a_real_one(most: int, is_scattered: bool) -> None:
    """Memory is at most what the plan says, and not far below it; so are segments and bytes on storage."""
    load = load_of(200_000, is_scattered=is_scattered, ledger=LEDGER, min_indexes=LEDGER)
    size = bucket_size(load, most, 2_000)
    assert (load.ledgers, load.sealed, load.max_buckets, size.buckets) == (20, 10_000, 20, min(most, 20))
    found = await figures(load, size)
    sealed = 190_000 / 200_000
    assert found["buckets"] in {size.buckets, size.buckets - 1}
    assert (found["merges"] > 0) == (size.rewrites > 0) == (most == 5)
    assert 0.8 * sealed * size.segments <= found["segments"] <= size.segments
    assert sealed * size.disk_bytes / 1.25 <= found["disk"] <= size.disk_bytes
    assert found["filling"] <= size.filling_bytes
    assert 0.4 * (size.draining_bytes - FIXED) <= found["draining"] <= size.draining_bytes


def test_hundred_million() -> None:
    """For 100 M messages over an hour, in any order, 30 MiB take segments of 1 000 and some hundred buckets."""
    plan = make_bucket_plan(load_of(100_000_000, is_scattered=True), 30 * MIB)
    assert (plan.load.messages, plan.load.ledgers, plan.load.max_buckets) == (100_000_000, 2_000, 2_000)
    best = plan.recommended
    assert best.segment == 1_000
    assert 200 <= best.buckets <= 300
    assert 29 * MIB <= best.bytes <= 30 * MIB
    assert 18e8 <= best.disk_bytes <= 20e8
    assert best in plan.rows
    assert f"delayedDeliveryMaxNumBuckets={best.buckets}" in plan.reason
    assert "delayedDeliveryMaxIndexesPerBucketSnapshotSegment=1000" in plan.reason
    assert "written 4.1 times" in plan.reason
    more = bucket_size(plan.load, best.buckets + 1, best.segment)
    assert more.bytes > 30 * MIB


def test_in_order_takes_little() -> None:
    """With deadlines in the order of positions the default segments suffice, and the limit is that of names."""
    plan = make_bucket_plan(load_of(100_000_000, is_scattered=False), 30 * MIB)
    assert (plan.recommended.buckets, plan.recommended.segment) == (1_000, 5_000)
    assert plan.recommended.bytes < 10 * MIB
    small = make_bucket_plan(load_of(10_000_000, is_scattered=False), 30 * MIB)
    assert small.recommended.buckets == small.load.max_buckets == 200
    assert "Nothing has to be merged" in small.reason


@pytest.mark.slow
def test_too_little_memory() -> None:
    """If nothing fits, the plan says how much the least takes, and recommends that."""
    plan = make_bucket_plan(load_of(100_000_000, is_scattered=True), MIB)
    assert plan.recommended.bytes == min(row.bytes for row in plan.rows)
    assert "nothing takes less than" in plan.reason
    assert "1.00 MiB" in plan.reason


def test_sparse_messages() -> None:
    """With a hundredth of the messages delayed a bucket spans several ledgers, and bitmaps are lists."""
    load = BucketLoad(Workload(Kind.DELAYED, 10_000, 1_000, 0.01, 50_000), is_scattered=True)
    assert load.messages == 100_000
    assert load.sealed == 50_000
    assert load.ledgers == 200
    size = bucket_size(load, 2, 5_000)
    assert size.draining_bytes < 4 * MIB


def test_as_plain_values() -> None:
    """A plan can be written as JSON, with the sizes that are computed."""
    plan = make_bucket_plan(load_of(1_000_000, is_scattered=True), 20 * MIB)
    found = json.loads(json.dumps(plan.as_dict()))
    assert found["messages"] == 1_000_000
    assert found["recommended"]["bytes"] == plan.recommended.bytes
    assert [row["buckets"] for row in found["rows"]] == sorted({row.buckets for row in plan.rows})


@pytest.mark.parametrize("memory", [0, -1, float("nan"), float("inf"), 2**50])
def test_memory_that_is_none(memory: float) -> None:
    """Memory must be a positive number of bytes."""
    with pytest.raises(InvalidArgumentError, match="memory_bytes"):
        make_bucket_plan(load_of(1_000, is_scattered=False), memory)


def test_nacks_have_no_buckets_on_storage() -> None:
    """A load of nacks is refused."""
    with pytest.raises(InvalidArgumentError, match="kind"):
        BucketLoad(Workload(Kind.NACK))
