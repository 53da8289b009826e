"""The snippets of the pipeline's pages run, on small data in the places that they name."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pulsar_nack import Cursor
from tests.test_docs import PAGES, run_snippets, snippets_of

from .rows import PLAIN
from .test_internal_stats import STATS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARK = "runs on Spark"
SAID = {
    "accuracy.md": "|orders|work|1-10s|1|1|",
    "build-index.md": "1001",
    "holes.md": "|path|reason|",
    "pipeline.md": "1-10s1120.0",
    "plan.md": "|orders|-1|work|nack|",
    "report.md": "",
    "retries.md": "|orders|work|acked|1|",
    "watch.md": "",
}
"""What each page prints, in part, without spaces."""


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all data that the pages read; no test changes it."""
    from pulsar_nack.pipeline.schemas import METADATA

    folder = tmp_path_factory.mktemp("pages")
    known = PLAIN | {"topic": "orders", "subscription": "work"}
    nack = known | {"time_ms": 1_000, "delay_ms": 2_000, "deadline_ms": 3_000}
    arrive = {"event": "arrive", "time_ms": 3_500, "attempt": 1, "deadline_ms": 3_000, "actual_ms": 3_500}
    rows = [
        nack,
        known | arrive,
        known | {"event": "ack", "time_ms": 4_000, "attempt": 1, "reason": "ack"},
        nack | {"entry": 1},
        known | {"event": "arrive", "time_ms": 200_000, "entry": 2},
        known | {"event": "arrive", "time_ms": 400_000, "entry": 3},
    ]
    (folder / "traces").mkdir()
    for number, some in enumerate((rows[:5], rows[5:]), 1):
        text = "".join(f"{json.dumps(row)}\n" for row in some)
        (folder / "traces" / f"trace-1000-ab-{number}.jsonl").write_text(text)
    delayed = [("orders", 0, 3, entry, -1, 1_000, 4_000_000_000_000 + entry, 0) for entry in range(100)]
    spark.createDataFrame(delayed, METADATA).write.parquet(str(folder / "metadata.parquet"))
    (folder / "stats").mkdir()
    (folder / "stats" / "orders@1000.json").write_text(json.dumps(STATS))
    asyncio.run(acknowledge(folder / "var" / "lib" / "orders"))
    return folder


async def acknowledge(path: Path) -> None:
    """Make the cursor of the pages."""
    async with await Cursor.open_local(path, {1: 100}) as cursor:
        await cursor.acknowledge([(1, 3)])
        await cursor.flush()


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    """Return a copy of that folder."""
    return Path(shutil.copytree(made, tmp_path, dirs_exist_ok=True))


@pytest.fixture
def queries(spark: SparkSession) -> Iterator[SparkSession]:
    """Return the session; streams that a page starts are stopped at the end, and its settings undone."""
    before = spark.conf.getAll
    yield spark
    for query in spark.streams.active:
        query.stop()
    for name, value in before.items():
        if spark.conf.isModifiable(name):
            spark.conf.set(name, value)


@pytest.mark.parametrize("page", [page for page in PAGES if snippets_of(page, MARK)], ids=lambda page: page.name)
def test_snippets_run(queries: SparkSession, data: Path, page: Path) -> None:
    """Each snippet runs on the existing session, finds its data, and does what its page says."""
    alerts: list[tuple[str, int]] = []

    def page_somebody(batch: Any, _: int) -> None:
        alerts.extend((row.kind, row.entry) for row in batch.collect())

    said = run_snippets(page, MARK, names={"page_somebody": page_somebody}, paths=data)
    assert SAID[page.name] in said.replace(" ", "")
    for query in queries.streams.active:
        query.processAllAvailable()
    if page.name == "watch.md":
        assert alerts == [("missing", 1)]
    if page.name == "report.md":
        assert "cursor of orders" in (data / "report.html").read_text()
    if page.name == "retries.md":
        assert (data / "poison" / "_SUCCESS").exists()
    if page.name == "build-index.md":
        assert said.split()[-1] == "100"
        assert (data / "data" / "delayed" / "orders" / "manifest.json").is_file()


def test_every_page_is_known() -> None:
    """Each page of a job has a snippet that runs."""
    assert {page.name for page in PAGES if snippets_of(page, MARK)} == SAID.keys()
    assert {page.name for page in PAGES if page.parent.name == "pipeline"} < SAID.keys()
