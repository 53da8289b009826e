"""Inspections of local topics."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from pulsar_nack.config import BucketConfig, TopicConfig
from pulsar_nack.inspection import BucketReport, inspect_folder
from pulsar_nack.topic import LocalTopic
from tests.patience import patience

pytest.importorskip("google.protobuf")


async def write(folder: Path) -> None:
    """Publish 20 messages in ledgers of eight; one subscription acknowledges every second of ten, one nothing."""
    async with await LocalTopic.open(folder, config=TopicConfig(max_entries_per_ledger=8)) as topic:
        port = await topic.subscribe("a/b ü", "shared")
        for number in range(20):
            await topic.publish(b"message %d" % number)
        for number in range(10):
            delivery = await port.receive()
            if number % 2 == 0:
                await port.acknowledge([delivery.id])
        await topic.subscribe("audit", "shared", initial_position="earliest")


async def test_topic(tmp_path: Path) -> None:
    """Ledgers with their entries, and subscriptions by name, with their backlogs."""
    await write(tmp_path)
    report = inspect_folder(tmp_path)
    assert not report.is_damaged
    (store,) = report.stores
    assert store.topic is not None
    assert [(each.ledger, each.entries, each.is_sealed) for each in store.topic.ledgers] == [
        (1, 8, True),
        (2, 8, True),
        (3, 4, False),
    ]
    backlogs = {each.name: (each.mark_delete, each.backlog) for each in store.topic.subscriptions}
    assert backlogs["a/b ü"] == ((1, 0), 15)
    assert backlogs["audit"] in ((None, None), ((1, -1), 20))
    assert {log.kind for log in store.logs} == {"topic", "cursor"}


async def test_missing_ledger(tmp_path: Path) -> None:
    """A missing ledger in the middle is reported; at the beginning it was trimmed."""
    await write(tmp_path)
    shutil.rmtree(tmp_path / "ledger-00000000000000000001.log")
    assert not inspect_folder(tmp_path).is_damaged
    await write(tmp_path / "other")
    shutil.rmtree(tmp_path / "other" / "ledger-00000000000000000002.log")
    (damage,) = inspect_folder(tmp_path / "other").damage
    assert (damage.kind, damage.log) == ("missing", "ledger-00000000000000000003")


def _buckets(folder: Path) -> list[BucketReport]:
    return [bucket for store in inspect_folder(folder).stores for each in store.delayed for bucket in each.buckets]


@pytest.mark.parametrize("is_shared", [False, True])
async def test_delayed_messages(tmp_path: Path, is_shared: bool) -> None:
    """Buckets are reported with the cursor of their subscription, or of the shared index, once."""
    config = BucketConfig(
        delayed_delivery_tracker_factory_class_name="bucket",
        delayed_delivery_shared_index_enabled=is_shared,
        delayed_delivery_min_index_count_per_bucket=10,
    )
    async with await LocalTopic.open(tmp_path, delayed=config) as topic:
        ports = [await topic.subscribe(name, "shared") for name in ("billing", *["audit"] * is_shared)]
        for number in range(60):
            await topic.publish(b"later", deliver_at=4_000_000_000_000 + number)
        async with asyncio.timeout(patience(20)):
            while not any(bucket.key for bucket in _buckets(tmp_path)):
                await asyncio.sleep(0.05)
        for port in ports:
            await port.close()
    (store,) = inspect_folder(tmp_path).stores
    assert store.damage == ()
    (report,) = store.delayed
    assert report.cursor == ("delayed-index" if is_shared else "subscription.billing")
    assert report.buckets
    assert all(bucket.key and bucket.messages for bucket in report.buckets)
    assert {log.kind for log in store.logs} == {"topic", "cursor", "snapshot", *["delayed cursor"] * is_shared}
