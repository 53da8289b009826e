"""``holes`` from rows to rows, and its readers of cursor folders and internal statistics."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pulsar_nack import Cursor, CursorConfig, LocalTopic, Position, pipeline
from pulsar_nack.cursor import BatchSet
from pulsar_nack.delayed import LogDelayedCursor
from pulsar_nack.errors import InvalidArgumentError
from pulsar_nack.ledger import LocalLogStore
from pulsar_nack.pipeline._hole_readers import read_cursor_folder

from .rows import check_rows, of_topics
from .test_cli import run
from .test_internal_stats import STATS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUIET = CursorConfig(flush_interval=3_600)
LEDGERS = dict.fromkeys(range(1, 9), 100)

ROWS: list[tuple[Any, ...]] = [
    ("orders", "work", 1_000, "cursor", 1, 1, 1, 800),
    ("orders", "work", 1_000, "ledger", 1, 0, 9, 5_000),
    ("orders", "work", 1_000, "ledger", 2, 0, 9, 7_000),
    ("orders", "work", 1_000, "acked", 1, 3, 4, None),
    # 10 s later: the same hole, and two more
    ("orders", "work", 11_000, "cursor", 1, 1, 1, 840),
    ("orders", "work", 11_000, "state", 1, None, None, 60),
    ("orders", "work", 11_000, "ledger", 1, 0, 9, 5_000),
    ("orders", "work", 11_000, "ledger", 2, 0, 9, 7_000),
    ("orders", "work", 11_000, "acked", 1, 3, 4, None),
    ("orders", "work", 11_000, "acked", 1, 6, 6, None),
    ("orders", "work", 11_000, "acked", 2, 1, 1, None),
    ("orders", "idle", 11_000, "cursor", 2, 9, 9, 20),
    ("orders", "idle", 11_000, "ledger", 1, 0, 9, 5_000),
    ("orders", "idle", 11_000, "ledger", 2, 0, 9, 7_000),
]


SIZES = {767: "none", 768: "near", 895: "near", 896: "paused", 1_023: "paused", 1_024: "over"}
ROWS += [("sizes", str(each), 1, "cursor", 1, 1, 1, each) for each in SIZES]
ROWS += [("oldest", "s", at, "cursor", 1, entry, entry, 1) for at, entry in [(1, 5), (2, 5), (3, 6), (4, 5), (5, 5)]]
ROWS += [("far", "s", at, "cursor", 1, 1, 1, bytes_now) for at, bytes_now in [(-(2**63), 1), (0, 2), (2**62, 3)]]
ROWS += [("bad", "s", 1_000, "cursor", 2, 9, 9, 20)]
ROWS += [("bad", "s", 1_000, "acked", 2, 5, 3, None), ("bad", "s", 1_000, "acked", -2, 5, 7, None)]


def frame(spark: SparkSession) -> DataFrame:
    """Return those rows of holes."""
    from pulsar_nack.pipeline.schemas import HOLES

    return spark.createDataFrame(ROWS, HOLES)


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> list[Any]:
    """Return the result for those rows, with a limit of 1 KiB."""
    return pipeline.holes(frame(spark), limit=1_024).collect()


def test_figures(found: list[Any]) -> None:
    """Each subscription and time is one row, with its counts."""
    names = "subscription at_ms ranges holes acked unacked_below backlog oldest_ledger oldest_entry pinned_ledgers"
    assert of_topics(found, "orders", columns=f"{names} bytes is_stored") == [
        ("idle", 11_000, 0, 0, 0, 0, 0, None, None, 0, 20, True),
        ("work", 1_000, 1, 1, 2, 1, 16, 1, 2, 1, 800, True),
        ("work", 11_000, 3, 4, 4, 6, 14, 1, 2, 1, 900, True),
    ]


def test_growth_and_risk(found: list[Any]) -> None:
    """Two times of a subscription give its growth, and when it will reach the limit at this rate."""
    names = "subscription at_ms bytes_per_s ranges_per_s oldest_since_ms limit_share risk limit_at_ms is_latest"
    assert of_topics(found, "orders", columns=names) == [
        ("idle", 11_000, None, None, None, 20 / 1_024, "none", None, True),
        ("work", 1_000, None, None, 1_000, 800 / 1_024, "near", None, False),
        ("work", 11_000, 10.0, 0.2, 1_000, 900 / 1_024, "paused", 23_400, True),
    ]


def test_risk_is_that_of_the_gate(found: list[Any]) -> None:
    """The marks are those of the gate: it resumes new messages at 3/4, and pauses at 7/8 of the limit."""
    assert dict(of_topics(found, "sizes", columns="bytes risk")) == SIZES


def test_no_limit(spark: SparkSession) -> None:
    """Without a limit nothing is at risk."""
    found = pipeline.holes(frame(spark), limit=0).select("risk", "limit_share", "limit_at_ms").collect()
    assert {tuple(row) for row in found} == {("none", None, None)}


def test_oldest_goes_on(found: list[Any]) -> None:
    """The age of the oldest entry restarts when another entry is the oldest."""
    expected = [(1, 1, None), (2, 1, None), (3, 3, None), (4, 4, None), (5, 4, None)]
    assert of_topics(found, "oldest", columns="at_ms oldest_since_ms limit_at_ms") == expected


def test_no_forecast_beyond_all_calendars(found: list[Any]) -> None:
    """A limit that is reached after the year 9999 is not forecast, and the job does not overflow."""
    assert of_topics(found, "far", columns="at_ms limit_at_ms") == [(-(2**63), None), (0, None), (2**62, None)]


def test_bad_input(spark: SparkSession, found: list[Any]) -> None:
    """Missing columns and an invalid limit are refused before any work; invalid rows are counted."""
    with pytest.raises(InvalidArgumentError, match="ledger"):
        pipeline.holes(frame(spark).drop("ledger"))
    with pytest.raises(InvalidArgumentError, match="max_per_cursor_metadata_size_in_bytes"):
        pipeline.holes(frame(spark), limit=1_000)
    assert {(row.topic, row.at_ms): row.ignored_rows for row in found if row.ignored_rows} == {("bad", 1_000): 2}


# --- cursor folders -------------------------------------------------------------------------------------------------


async def test_cursor_folder(spark: SparkSession, tmp_path: Path) -> None:
    """A cursor's acknowledgements become rows, with their bytes on storage."""
    folder = tmp_path / "orders"
    async with await Cursor.open_local(folder, LEDGERS, QUIET) as cursor:
        await cursor.acknowledge([(1, entry) for entry in (0, 1, 2, 5, 6, 9)])
        await cursor.acknowledge([(3, 7)], batch_sets={Position(3, 7): BatchSet.acked(10, [1, 2])})
        await cursor.flush()
        size = cursor.metadata_size_bytes
    read = pipeline.read_cursors(spark, tmp_path)
    assert read.quarantine.count() == 0
    rows = [
        tuple(row) for row in read.holes.where("kind in ('acked', 'batch', 'cursor')").drop("at_ms", "bytes").collect()
    ]
    assert sorted(rows) == [
        ("orders", "cursor", "acked", 1, 5, 6),
        ("orders", "cursor", "acked", 1, 9, 9),
        ("orders", "cursor", "batch", 3, 7, 7),
        ("orders", "cursor", "cursor", 1, 2, 2),
    ]
    (row,) = pipeline.holes(read.holes).collect()
    assert (row.ranges, row.batches, row.backlog, row.is_stored) == (2, 1, None, True)
    assert abs(row.bytes - size) <= 16
    (segment,) = folder.glob("cursor-??????????.log/*.segment")
    assert row.at_ms == segment.stat().st_mtime_ns // 1_000_000


async def test_bytes_are_those_of_storage(spark: SparkSession, tmp_path: Path) -> None:
    """The size computed from ranges is what a cursor writes, within a marker's numbers."""
    from pyspark.sql import functions as f

    ledgers = dict.fromkeys(range(1, 40), 1_000)
    async with await Cursor.open_local(tmp_path / "t", ledgers, QUIET) as cursor:
        await cursor.acknowledge([(ledger, entry) for ledger in range(1, 40) for entry in range(1, 1_000, ledger + 1)])
        await cursor.flush()
    rows = pipeline.read_cursors(spark, [tmp_path / "t"]).holes
    (stored,) = pipeline.holes(rows).collect()
    unmeasured = rows.where("kind in ('acked', 'cursor')").withColumn("bytes", f.lit(None).cast("long"))
    (computed,) = pipeline.holes(unmeasured).collect()
    assert not computed.is_stored
    assert abs(computed.bytes - stored.bytes) < 100 < stored.bytes


async def test_local_topic_and_its_growth(spark: SparkSession, tmp_path: Path) -> None:
    """Copies of a local topic at two times give the backlog, the pinned ledgers, and the growth."""
    async with await LocalTopic.open(tmp_path / "live") as topic:
        port = await topic.subscribe("work/1")
        for number in range(20):
            await topic.publish(b"%d" % number)
        got = [await port.receive() for _ in range(20)]
        for index, ids in enumerate(([3], [5, 7, 9, 11])):
            await port.acknowledge([got[each].id for each in ids])
            await topic.flush()
            copy = tmp_path / f"copy{index}" / "orders"
            shutil.copytree(tmp_path / "live", copy)
            for file in copy.rglob("*.segment"):
                os.utime(file, (1_000 + 60 * index, 1_000 + 60 * index))
    found = (
        pipeline.holes(pipeline.read_cursors(spark, [tmp_path / "copy0", tmp_path / "copy1"]).holes)
        .orderBy("at_ms")
        .collect()
    )
    assert [(row.topic, row.subscription, row.at_ms) for row in found] == [
        ("orders", "work/1", 1_000_000),
        ("orders", "work/1", 1_060_000),
    ]
    assert [(row.ranges, row.holes, row.backlog) for row in found] == [(1, 1, 19), (5, 5, 15)]
    assert found[1].ranges_per_s == 4 / 60
    assert found[1].bytes_per_s == (found[1].bytes - found[0].bytes) / 60 > 0


async def test_only_subscriptions_of_a_topic(tmp_path: Path) -> None:
    """In a topic's folder, the cursor that names a shared delayed index is not reported as a subscription."""
    async with await LocalTopic.open(tmp_path) as topic:
        await topic.create_subscription("work/1")
    async with (
        await LocalLogStore.open(tmp_path) as store,
        await LogDelayedCursor.open(store, "delayed-index") as index,
    ):
        await index.put_property("key", "1")
    rows = read_cursor_folder(str(tmp_path))
    assert [row.subscription for row in rows if row.kind == "cursor"] == ["work/1"]
    assert all(row.reason is None for row in rows)


async def test_damaged_folder(spark: SparkSession, tmp_path: Path) -> None:
    """A damaged file goes to the quarantine with the reason; other folders are still read."""
    for name in ("good", "bad"):
        async with await Cursor.open_local(tmp_path / name, LEDGERS, QUIET) as cursor:
            for entry in (1, 3):
                await cursor.acknowledge([(1, entry)])
                await cursor.flush()
    (segment,) = (tmp_path / "bad" / "cursor-0000000001.log").glob("*.segment")
    data = bytearray(segment.read_bytes())
    data[len(data) // 4] ^= 0xFF
    segment.write_bytes(data)
    read = pipeline.read_cursors(spark, tmp_path)
    refused = read.quarantine.collect()
    assert [row.reason[:16] for row in refused if row.path == str(segment)] == ["damaged at byte "], refused
    good = [
        tuple(row) for row in read.holes.where("topic = 'good' and kind = 'acked'").select("first", "last").collect()
    ]
    assert sorted(good) == [(1, 1), (3, 3)]


def test_no_folder(spark: SparkSession, tmp_path: Path) -> None:
    """A folder that is missing, or contains nothing of ours, is named."""
    for read in (pipeline.read_cursors, pipeline.read_internal_stats):
        for path in (tmp_path, tmp_path / "none"):
            with pytest.raises(InvalidArgumentError, match=str(path)):
                read(spark, path)
        with pytest.raises(InvalidArgumentError, match="at least one"):
            read(spark, [])


# --- internal statistics --------------------------------------------------------------------------------------------


def test_internal_stats(spark: SparkSession, tmp_path: Path) -> None:
    """Files of the admin API are read, broken ones go to the quarantine with the reason."""
    (tmp_path / "orders@1000.json").write_text(json.dumps(STATS))
    grown = json.loads(json.dumps(STATS).replace("(3:1..3:5]", "(3:1..3:2],(3:3..3:5]"))
    (tmp_path / "orders@61000.json").write_text(json.dumps(grown))
    (tmp_path / "broken.json").write_text('{"cursors": {')
    (tmp_path / "latin.json").write_bytes(b'{"caf\xe9": 1}')
    (tmp_path / "ignored.txt").write_text("x")
    read = pipeline.read_internal_stats(spark, tmp_path)
    refused = {Path(row.path).name: row.reason for row in read.quarantine.collect()}
    assert refused.keys() == {"broken.json", "latin.json"}
    assert refused["broken.json"].startswith("not JSON: ")
    assert refused["latin.json"] == "not UTF-8: byte 5 is 0xe9"
    check_rows(
        pipeline.holes(read.holes).selectExpr(
            "topic", "at_ms", "ranges", "holes", "backlog", "ranges_per_s", "is_stored"
        ),
        [("orders", 1_000, 3, 2, 5, None, False), ("orders", 61_000, 4, 3, 6, 1 / 60, False)],
        "topic string, at_ms bigint, ranges bigint, holes bigint, backlog bigint, ranges_per_s double, "
        "is_stored boolean",
    )


# --- the command ----------------------------------------------------------------------------------------------------


def test_command(spark: SparkSession, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The command prints the figures, and its exit code says whether a subscription is at risk."""
    (tmp_path / "orders@1000.json").write_text(json.dumps(STATS))
    assert run(capsys, "holes", "--stats", str(tmp_path))[0] == 0
    assert run(capsys, "holes", "--stats", "--limit", "100", str(tmp_path))[0] == 2
    many = ",".join(f"(3:{entry}..3:{entry + 1}]" for entry in range(1_000, 90_000, 7))
    (tmp_path / "orders@2000.json").write_text(json.dumps(STATS).replace("(3:1..3:5]", many))
    code, out, _ = run(capsys, "holes", "--stats", "--limit", "1024", "--json", str(tmp_path))
    found = json.loads(out)
    assert code == 1
    assert [(row["at_ms"], row["risk"], row["ranges_lost"]) for row in found["subscriptions"]] == [
        (2_000, "over", 2_717)
    ]
    assert len(found["history"]) == 2
    assert found["quarantine"] == []
