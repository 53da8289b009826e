"""``watch`` as a streaming query: alerts once each, over batches and restarts; rates; sinks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pulsar_nack import pipeline
from pulsar_nack.errors import InvalidArgumentError

from .rows import PLAIN, check_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
BUSY = "Python worker failed to connect back"
"""Why Spark ends a stream on a busy machine: it gives its worker ten seconds to start, which cannot be changed."""


def line(event: str, time_ms: int, entry: int, **values: Any) -> str:
    """Return a line of a trace."""
    known = {"event": event, "time_ms": time_ms, "mono_ns": time_ms * 1_000_000, "entry": entry}
    return json.dumps(PLAIN | {"topic": "orders", "subscription": "work"} | known | values)


def nack(time_ms: int, entry: int, deadline_ms: int) -> str:
    """Return the line of a nack."""
    return line("nack", time_ms, entry, delay_ms=deadline_ms - time_ms, deadline_ms=deadline_ms)


def back(time_ms: int, entry: int) -> str:
    """Return the line of a redelivered message."""
    return line("arrive", time_ms, entry, actual_ms=time_ms)


def finish(start: Callable[[], StreamingQuery], until: Callable[[], Any] = lambda: False) -> StreamingQuery:
    """Run a query to its end, or until a condition holds; start it again if the machine was too busy for Spark."""
    while True:
        query = start()
        try:
            while not (until() or query.awaitTermination(1)):
                pass
        except Exception as error:
            if BUSY not in str(error):
                raise
        else:
            return query
        finally:
            query.stop()


class Folder:
    """A folder of traces that grows, and a stream of it."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root
        self.count = 0
        (root / "traces").mkdir()

    def add(self, *lines: str) -> None:
        """Add a file, as a trace writer closes it."""
        self.count += 1
        path = self.root / "traces" / f"trace-{self.count:013}-ab-{self.count}.jsonl"
        path.write_text("".join(f"{each}\n" for each in lines))

    def stream(self) -> DataFrame:
        """Return the stream, one file in each batch."""
        from pulsar_nack.pipeline.schemas import TRACE

        reader = self.spark.readStream.schema(TRACE).option("maxFilesPerTrigger", 1)
        return reader.json(str(self.root / "traces"))

    def run(self, name: str = "alerts", **options: Any) -> None:
        """Continue from the checkpoint until all files were read."""
        found = pipeline.watch(self.stream(), **{"bound_ms": 100, "lateness_ms": 1_000, **options})
        finish(lambda: pipeline.start_watch(found, self.root / name, self.root / f"{name}.checkpoint", once=True))

    def alerts(self, name: str = "alerts") -> DataFrame:
        """Return the written alerts."""
        return self.spark.read.schema(pipeline.ALERTS).parquet(str(self.root / name))


@pytest.fixture
def folder(spark: SparkSession, tmp_path: Path) -> Iterator[Folder]:
    """Return a folder of traces, and restore the session's state store afterwards."""
    before = spark.conf.get(STATE_STORE)
    assert before is not None
    yield Folder(spark, tmp_path)
    spark.conf.set(STATE_STORE, before)


def test_alerts_over_restarts(folder: Folder) -> None:
    """Messages that are not back in time raise one alert each, wherever the query was stopped and restarted."""
    folder.add(nack(1_000, 1, 2_000), nack(1_000, 2, 2_000), nack(1_000, 3, 2_000), nack(1_500, 4, 60_000))
    folder.run()
    assert folder.alerts().count() == 0
    folder.add(back(2_050, 1), back(2_300, 2))
    folder.run()
    folder.add(nack(9_000, 5, 9_500), line("hold", 9_500, 5, reason="paused"))
    folder.run()
    folder.run()
    folder.add(nack(20_000, 6, 90_000))
    folder.run()
    folder.add(back(20_500, 3))
    folder.run()
    names = ["kind", "entry", "nacked_ms", "delay_ms", "deadline_ms", "due_ms", "actual_ms", "reason"]
    check_rows(
        folder.alerts().select("topic", "subscription", *names),
        [
            ("orders", "work", "late", 2, 1_000, 1_000, 2_000, 2_100, 2_300, None),
            ("orders", "work", "missing", 3, 1_000, 1_000, 2_000, 2_100, None, None),
            ("orders", "work", "missing", 5, 9_000, 500, 9_500, 9_600, None, "paused"),
        ],
    )


def test_a_function_that_fails(folder: Folder) -> None:
    """A function that fails gets the same alerts again, under the same number, when the query is restarted."""
    folder.add(nack(1_000, 1, 2_000), nack(1_000, 2, 2_000))
    folder.add(nack(50_000, 3, 99_000))
    seen: list[tuple[int, list[int]]] = []

    def take(batch: DataFrame, number: int) -> None:
        entries = sorted(row.entry for row in batch.collect())
        if entries:
            seen.append((number, entries))
            if len(seen) == 1:
                raise RuntimeError("it fails once")

    def start() -> StreamingQuery:
        found = pipeline.watch(folder.stream(), bound_ms=100, lateness_ms=1_000)
        return pipeline.start_watch(found, take, folder.root / "checkpoint", once=True)

    with pytest.raises(Exception, match="it fails once"):
        finish(start)
    finish(start)
    finish(start)
    assert seen == [(seen[0][0], [1, 2])] * 2


def test_wall_clock(folder: Folder) -> None:
    """By the wall clock an alert is raised although no further event comes."""
    folder.add(nack(1_000, 1, 2_000), back(1_900, 1), nack(1_950, 2, 2_000), nack(1_950, 3, 4_000_000_000_000))
    stream = pipeline.watch(folder.stream(), bound_ms=0, lateness_ms=0, clock="wall")

    finish(
        lambda: pipeline.start_watch(stream, folder.root / "wall", folder.root / "checkpoint", every_ms=100),
        lambda: list((folder.root / "wall").glob("*.parquet")) and folder.alerts("wall").count(),
    )
    assert [(row.entry, row.kind) for row in folder.alerts("wall").collect()] == [(2, "missing")]


def test_rates(folder: Folder) -> None:
    """Events are counted in windows of time, each emitted once it is over."""
    folder.add(nack(1_000, 1, 2_000), nack(2_000, 2, 3_000), line("redeliver", 9_999, 1, actual_ms=9_999))
    folder.add(line("arrive", 10_000, 1, deadline_ms=2_000, actual_ms=10_000), line("ack", 10_001, 1, reason="ack"))
    folder.add(nack(90_000, 3, 99_000))
    rates = pipeline.watch_rates(folder.stream(), window_ms=10_000, lateness_ms=1_000)
    finish(lambda: pipeline.start_watch(rates, folder.root / "rates", folder.root / "rates.checkpoint", once=True))
    names = "start_ms end_ms nacks redeliveries arrivals acks holds nacks_per_s worst_late_ms"
    check_rows(
        folder.spark.read.parquet(str(folder.root / "rates")).select(*names.split()),
        [(0, 10_000, 2, 1, 0, 0, 0, 0.2, None), (10_000, 20_000, 0, 0, 1, 1, 0, 0.0, 8_000)],
        "start_ms bigint, end_ms bigint, nacks bigint, redeliveries bigint, arrivals bigint, acks bigint, "
        "holds bigint, nacks_per_s double, worst_late_ms bigint",
    )


def test_times_that_cannot_be(folder: Folder) -> None:
    """One event of an impossible time does not make all others too late."""
    folder.add(nack(2**62, 1, 2**62), nack(-5, 2, 0), nack(1_000, 3, 2_000))
    folder.add(nack(90_000, 4, 99_000))
    folder.run()
    assert [row.entry for row in folder.alerts().collect()] == [3]


def test_bad_settings(folder: Folder) -> None:
    """An invalid setting is named, and so is another state store than the one that timers need."""
    wrong: list[dict[str, Any]] = [
        {"bound_ms": -1}, {"lateness_ms": 1.5}, {"until": "ack"}, {"clock": "sun"}, {"bound_ms": True},
    ]  # fmt: skip
    for setting in wrong:
        with pytest.raises(InvalidArgumentError, match=next(iter(setting))):
            pipeline.watch(folder.stream(), **setting)
    folder.spark.conf.set(STATE_STORE, "something.Else")
    with pytest.raises(
        InvalidArgumentError, match=r"providerClass: expected .*RocksDBStateStoreProvider, got 'something"
    ):
        pipeline.watch(folder.stream())
    with pytest.raises(InvalidArgumentError, match="deadline_ms"):
        pipeline.watch(folder.stream().drop("deadline_ms"))
