"""The holes in a real broker's internal statistics."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pulsar_nack import Cursor, CursorConfig, Position, pipeline
from tests.broker._admin import Admin
from tests.consumer.official import nothing_comes, numbered, send, subscribed, take
from tests.patience import patience

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUBSCRIPTION = "sub"
FIRST = {0, 1, 2, 5, 6, 9, *range(25, 30)}
"""The acknowledged entries of the 30 of the first ledger."""
SECOND = {0, 1, 3}
"""The acknowledged entries of the 10 of the second ledger."""


async def until_backlog(admin: Admin, topic: str, count: int) -> Any:
    """Wait until the broker has all acknowledgements; return its internal statistics."""
    async with asyncio.timeout(patience(10)):
        while await asyncio.to_thread(admin.backlog, topic, SUBSCRIPTION) != count:
            await asyncio.sleep(0.1)
    return await asyncio.to_thread(admin.internal_stats, topic)


async def make_holes(url: str, admin: Admin, topic: str) -> tuple[int, int, Any]:
    """Acknowledge out of order over two ledgers; return their ids and the internal statistics."""
    async with subscribed(url, topic) as (client, consumer):
        await send(client, topic, numbered(30))
        messages = await take(consumer, 30)
        first = messages[0].id.ledger
        assert [(each.id.ledger, each.id.entry) for each in messages] == [(first, entry) for entry in range(30)]
        for message in messages:
            if message.id.entry in FIRST:
                await message.ack()
        await until_backlog(admin, topic, 30 - len(FIRST))
        await asyncio.to_thread(admin.unload, topic)  # the next messages get a new ledger
        assert await nothing_comes(consumer, 1.0)
        await send(client, topic, numbered(10, 30))
        messages = await take(consumer, 10)
        second = messages[0].id.ledger
        assert second > first
        for message in messages:
            if message.id.entry in SECOND:
                await message.ack()
        return first, second, await until_backlog(admin, topic, 40 - len(FIRST) - len(SECOND))


async def test_holes(spark: SparkSession, service_url: str, admin: Admin, topic: str, tmp_path: Path) -> None:
    """Ranges, counts and bytes are those of the acknowledgements, cut where one ledger ends."""
    first, second, stats = await make_holes(service_url, admin, topic)
    at_ms = time.time_ns() // 1_000_000
    (tmp_path / f"{quote(topic, safe='')}@{at_ms}.json").write_text(json.dumps(stats))
    read = pipeline.read_internal_stats(spark, tmp_path)
    assert read.quarantine.collect() == []
    rows = read.holes.where("kind in ('acked', 'cursor')").select("topic", "at_ms", "kind", "ledger", "first", "last")
    expected = [
        ("acked", first, 5, 6),
        ("acked", first, 9, 9),
        ("acked", first, 25, 29),
        ("acked", second, 0, 1),
        ("acked", second, 3, 3),
        ("cursor", first, 2, 2),
    ]
    assert sorted(tuple(row) for row in rows.collect()) == [(topic, at_ms, *each) for each in expected]
    (row,) = pipeline.holes(read.holes).collect()
    sizes = {each["ledgerId"]: each["size"] for each in stats["ledgers"]}
    assert (row.topic, row.subscription, row.at_ms) == (topic, SUBSCRIPTION, at_ms)
    assert (row.mark_delete_ledger, row.mark_delete_entry) == (first, 2)
    assert (row.oldest_ledger, row.oldest_entry) == (first, 3)
    assert (row.ledgers, row.ranges, row.acked) == (2, 5, 11)
    assert (row.holes, row.unacked_below, row.backlog) == (4, 20, 26)
    assert (row.pinned_ledgers, row.pinned_bytes, row.pinned_done) == (1, sizes[first], 0)
    assert (row.is_stored, row.risk, row.ignored_rows) == (False, "none", 0)
    assert abs(row.bytes - await stored_bytes(tmp_path / "cursor", first, second)) <= 16


async def stored_bytes(folder: Path, first: int, second: int) -> int:
    """Return how many bytes our own cursor with the same acknowledgements takes on storage."""
    config = CursorConfig(flush_interval=3_600)
    async with await Cursor.open_local(folder, {first: 30, second: 10}, config) as cursor:
        acked = [(first, entry) for entry in FIRST] + [(second, entry) for entry in SECOND]
        await cursor.acknowledge([Position(*each) for each in acked])
        await cursor.flush()
        return cursor.metadata_size_bytes
