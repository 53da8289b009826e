"""Folders to inspect, and their contents from outside."""

from __future__ import annotations

from pathlib import Path

from pulsar_nack import BucketConfig, BucketDelayedDeliveryTracker, Consumer, Position
from pulsar_nack.ledger import LocalLogStore
from pulsar_nack.testing import FakePort, ManualClock

BUCKETS = BucketConfig(
    delayed_delivery_tick_time_millis=1,
    delayed_delivery_min_index_count_per_bucket=1_000,
    delayed_delivery_max_indexes_per_bucket_snapshot_segment=500,
)


async def write_buckets(folder: Path, messages: int = 5_200) -> None:
    """Store delayed messages of ledger 7, a bucket for each 2 000, ten ms apart from 60 s on."""
    async with await BucketDelayedDeliveryTracker.open_local(folder, BUCKETS, clock=ManualClock(0)) as tracker:
        for entry in range(messages):
            tracker.add_message(7, entry, 60_000 + 10 * entry)
        await tracker.wait_until_idle()
        await tracker.cursor.put_property("mine", "yes")
        await tracker.cursor.mark_delete(Position(6, 5))


async def write_nacks(folder: Path) -> None:
    """Make a consumer nack ten messages, for 1 000 s and more, and acknowledge five."""
    port = FakePort()
    for number in range(15):
        port.topic.publish(b"order %d" % number)
    async with Consumer(port, durable=folder) as consumer:
        for number in range(10):
            await (await consumer.receive()).nack(delay=1_000 + number)
        for _ in range(5):
            await (await consumer.receive()).ack()


async def write_plain(folder: Path, records: int = 40, *, name: str = "events", seal: bool = False) -> None:
    """Write a log of records of 50 bytes, 19 of them in each file, one sync for each."""
    async with await LocalLogStore.open(folder, max_segment_bytes=1_500) as store, await store.create(name) as log:
        for number in range(records):
            await log.append(b"%050d" % number)
        if seal:
            await log.seal()


def everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return all files and folders with their times and contents."""
    return {
        str(each.relative_to(folder)): (each.stat().st_mtime_ns, each.read_bytes() if each.is_file() else b"")
        for each in sorted(folder.rglob("*"))
    }


def segments(folder: Path, log: str) -> list[Path]:
    """Return the files of a log, in order."""
    return sorted((folder / f"{log}.log").glob("*.segment"))
