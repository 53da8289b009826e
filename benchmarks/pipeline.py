"""The jobs of the pipeline on two cores: rows per second, memory and growth, compared with one Python process.

All input is generated: metadata by the expressions that the job reads, traces as Parquet and JSON lines in a
temporary folder. The JVM runs the driver and both executor cores; workers are all Python processes of Spark.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import _pipeline_data as data
import _pipeline_peers as peers
from _pipeline_memory import DRIVER, JVM, WORKERS, PeakMemory
from _report import Report
from _targets import Targets
from pyspark.sql import DataFrame, SparkSession

from pulsar_nack import pipeline

CORES = 2
INDEX_NS = 2_000.0
"""Target: 500 000 rows a second into an index."""
ACCURACY_S = 60.0
"""Target: accuracy over 20 M events from Parquet."""
MAX_BITS = 12
COLUMNS = ["job", "rows", "s", "rows/s", "JVM MiB", "workers MiB", "driver MiB"]


class Sizes(NamedTuple):
    """The number of rows of each kind; ``lines`` are JSON lines, ``alone`` the input of the one process."""

    metadata: int
    smaller: int
    events: int
    fewer: int
    lines: int
    alone: int


FULL = Sizes(50_000_000, 5_000_000, 20_000_000, 5_000_000, 2_000_000, 500_000)
QUICK = Sizes(40_000, 10_000, 8_000, 4_000, 4_000, 2_000)


class Measured(NamedTuple):
    """The figures of a job."""

    seconds: float
    mib: dict[str, float]

    def row(self, name: str, rows: int) -> list[object]:
        """Return a table row."""
        return [name, rows, self.seconds, rows / self.seconds, *(self.mib.get(each) for each in (JVM, WORKERS, DRIVER))]


def measure(work: Callable[[], object]) -> Measured:
    """Run a job to its end, and clear what the session caches for its tables."""
    with PeakMemory() as memory:
        spent = peers.seconds(lambda: exhaust(work()))
    if (session := SparkSession.getActiveSession()) is not None:
        session.catalog.clearCache()
    return Measured(spent, dict(memory.mib))


def exhaust(result: object) -> None:
    """Compute all tables of a result."""
    for table in tables(result):
        table.write.format("noop").mode("overwrite").save()


def tables(result: object) -> Iterator[DataFrame]:
    """Yield the tables of a result: one, or those of a dict, a tuple or a dataclass."""
    if isinstance(result, DataFrame):
        yield result
    elif isinstance(result, dict):
        yield from (each for each in result.values() if isinstance(each, DataFrame))
    elif isinstance(result, tuple):
        yield from (each for each in result if isinstance(each, DataFrame))
    elif is_dataclass(result):
        found = (getattr(result, each.name) for each in fields(result))
        yield from (each for each in found if isinstance(each, DataFrame))


class Run:
    """All jobs, in one session."""

    def __init__(self, spark: SparkSession, report: Report, sizes: Sizes, folder: Path) -> None:
        self.spark = spark
        self.report = report
        self.targets = Targets()
        self.sizes = sizes
        self.folder = folder

    def warm(self) -> DataFrame:
        """Return a DataFrame that starts the JVM, its compilers and Python workers."""
        made = data.metadata(self.spark, 1_000_000)
        return made.mapInArrow(lambda batches: batches, made.schema)

    def job(self, name: str) -> Callable[..., Any] | None:
        """Return a job, or None if this release does not have it."""
        return getattr(pipeline, name, None)

    def build_index(self) -> None:
        """Build indexes of two sizes, with Spark and in one process."""
        build = self.job("build_index")
        if build is None:
            return
        rows, times = [], []
        for size in (self.sizes.smaller, self.sizes.metadata):
            path = self.folder / "index"
            measured = measure(lambda: build(self.spark, data.metadata(self.spark, size), path))  # noqa: B023
            rows.append(measured.row("build_index", size))
            times.append(measured.seconds)
            shutil.rmtree(path)
        self.check("build_index", times, self.sizes.smaller, self.sizes.metadata)
        if self.sizes == FULL:
            self.targets.check("build_index, ns a row", 1e9 * times[-1] / self.sizes.metadata, INDEX_NS)
        for name, work in (("one process, numpy", peers.with_numpy), ("one process, add_message", peers.by_hand)):
            size = self.sizes.smaller if work is peers.with_numpy else self.sizes.alone
            spent = work(self.folder / "alone", size)
            rows.append(Measured(spent, {}).row(name, size))
            shutil.rmtree(self.folder / "alone")
        self.report.table("Metadata to the index of a bucket tracker", COLUMNS, rows)

    def traces(self) -> None:
        """Run the jobs over traces: from Parquet in two sizes, from JSON lines, and in one process."""
        large, small, lines = (str(self.folder / name) for name in ("large", "small", "lines"))
        data.trace(self.spark, self.sizes.events).write.parquet(large)
        data.trace(self.spark, self.sizes.fewer).write.parquet(small)
        data.trace(self.spark, self.sizes.lines).write.option("ignoreNullFields", "false").json(lines)
        for part in Path(lines).glob("part-*.json"):
            part.rename(part.with_suffix(".jsonl"))
        alone: dict[str, Callable[[Iterator[str]], None]] = {
            "accuracy": peers.accuracy,
            "retries": peers.retries,
            "plan": lambda found: peers.plan(found, MAX_BITS),
        }
        for name, peer in alone.items():
            job = self.job(name)
            if job is None:
                continue
            options = {"max_bits": MAX_BITS} if name == "plan" else {}
            rows, times = [], []
            for path, size in ((small, self.sizes.fewer), (large, self.sizes.events)):
                measured = measure(lambda: job(self.spark.read.parquet(path), **options))  # noqa: B023
                rows.append(measured.row(f"{name}, Parquet", size))
                times.append(measured.seconds)
            self.check(name, times, self.sizes.fewer, self.sizes.events)
            if name == "accuracy" and self.sizes == FULL:
                self.targets.check("accuracy over 20 M events, s", times[-1], ACCURACY_S)
            if (read := self.job("read_traces")) is not None:
                measured = measure(lambda: job(read(self.spark, [lines]).traces, **options))  # noqa: B023
                rows.append(measured.row(f"{name}, JSON lines", self.sizes.lines))
            spent = peers.seconds(lambda: peer(self._lines(Path(lines))))  # noqa: B023
            rows.append(Measured(spent, {}).row("one process, JSON lines", self.sizes.alone))
            self.report.table(f"Traces: {name}", COLUMNS, rows)

    def check(self, name: str, times: list[float], fewer: int, more: int) -> None:
        """Check that the time of a job grows at most linearly with its rows."""
        if self.sizes == FULL:
            self.targets.check(f"{name}, growth of time by growth of rows", times[1] / times[0] * fewer / more, 1.0)

    def _lines(self, folder: Path) -> Iterator[str]:
        def read() -> Iterator[str]:
            for path in sorted(folder.glob("part-*")):
                with path.open() as file:
                    yield from file

        return islice(read(), self.sizes.alone)

    def holes(self) -> None:
        """Run the job over acknowledged ranges."""
        job = self.job("holes")
        if job is None:
            return
        rows, times = [], []
        for size in (self.sizes.fewer, self.sizes.events):
            measured = measure(lambda: job(data.holes(self.spark, size)))  # noqa: B023
            rows.append(measured.row("holes", size))
            times.append(measured.seconds)
        self.check("holes", times, self.sizes.fewer, self.sizes.events)
        columns = ["topic", "subscription", "ledger", "first", "last"]
        listed = [tuple(row) for row in data.holes(self.spark, self.sizes.alone).select(*columns).collect()]
        spent = peers.seconds(lambda: peers.holes(listed))
        rows.append(Measured(spent, {}).row("one process, rows in memory", self.sizes.alone))
        self.report.table("Acknowledged ranges: holes", COLUMNS, rows)


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description="the jobs of the pipeline, compared with one Python process")
    parser.add_argument("--quick", action="store_true", help="few rows, to check that it runs")
    parser.add_argument("--save", action="store_true", help="store the tables in benchmarks/results")
    parser.add_argument("--folder", type=Path, help="where to put temporary files (some gigabytes)")
    parser.add_argument("--only", choices=("build_index", "traces", "holes"), help="only these jobs")
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL
    report = Report("The pipeline")
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        settings = {"spark.driver.memory": "2g", "spark.local.dir": str(folder / "spark")}
        spark = pipeline.local_session(f"local[{CORES}]", name="benchmark", config=settings)
        try:
            began = time.perf_counter()
            run = Run(spark, report, sizes, folder)
            exhaust(run.warm())  # starts everything that is started once
            warm = time.perf_counter() - began
            report.note(f"Spark {spark.version}, {CORES} cores, a heap of 2 GiB; warm after {warm:.1f} s.")
            for part in (run.build_index, run.traces, run.holes):
                if options.only in (None, part.__name__):
                    part()
            report.note(run.targets.summary())
        finally:
            spark.stop()
    if options.save:
        report.save("pipeline")


if __name__ == "__main__":
    main()
