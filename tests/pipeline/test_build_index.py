"""The Spark job that builds an index, compared with the same build in one process."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pulsar_nack import BucketConfig, InvalidArgumentError, pipeline
from pulsar_nack.errors import LogStorageError
from pulsar_nack.pipeline import _build_folder
from pulsar_nack.pipeline._build_buckets import make_units
from tests.small_disk import small_disk

from .delivering import Row, contents, deliveries, moments
from .test_build_local import ROWS, SMALL, FailingFiles, build

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "ledger_id long, entry_id long, deliver_at long"


def frame(spark: SparkSession, rows: list[Any], partitions: int = 3) -> DataFrame:
    """Return rows as a table of the least columns, in some partitions."""
    return spark.createDataFrame(rows, SCHEMA).repartition(partitions)


@settings(deadline=None, max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ROWS.filter(len), st.integers(5, 30), st.booleans())
@example([(5, 39, 376), (0, 9, 464), (4, 39, 164)], 18, True)  # noqa: FBT003 - still in one part
async def test_delivers_what_a_tracker_fed_by_hand_does(
    spark: SparkSession, rows: list[Row], unit_rows: int, is_far: bool
) -> None:
    """The job writes the same bytes as the local build, and messages come at the same times as if added singly."""
    if is_far:  # too far for one number of ledger and entry
        rows = [(ledger * 2**40, entry, at) for ledger, entry, at in rows]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        built = pipeline.build_index(spark, frame(spark, rows), folder / "spark", SMALL, unit_rows=unit_rows)
        assert built.rows == len(rows)
        build(rows, folder / "local", unit_rows=unit_rows)
        assert contents(folder / "spark") == contents(folder / "local")
        found = await deliveries(folder / "spark", SMALL, moments(rows))
        assert found == await deliveries(folder / "fed", SMALL, moments(rows), sorted(rows))


WIDE_ROWS = st.dictionaries(
    st.tuples(st.integers(0, 2), st.sampled_from([*range(4), *range(65_533, 65_540), *range(2**32 - 4, 2**32)])),
    st.integers(1, 500),
    max_size=50,
).map(lambda found: [(*position, at) for position, at in found.items()])
_APART = 1_000


@settings(deadline=None, max_examples=2, suppress_health_check=list(HealthCheck))
@given(st.lists(st.one_of(ROWS, WIDE_ROWS).filter(len), min_size=10, max_size=25), st.integers(1, 60))
async def test_many_sets_in_one_job(spark: SparkSession, sets: list[list[Row]], unit_rows: int) -> None:
    """Many sets in separate ledgers, built by one job, are delivered as by trackers that got only one set.

    So neither the neighbours of a message nor the distribution of rows matter; the bytes are those of the local build.
    """
    rows = [(ledger + _APART * tag, entry, at) for tag, some in enumerate(sets) for ledger, entry, at in some]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        built = pipeline.build_index(spark, frame(spark, rows, 5), folder / "spark", SMALL, unit_rows=unit_rows)
        assert built.rows == len(rows)
        build(rows, folder / "local", unit_rows=unit_rows)
        assert contents(folder / "spark") == contents(folder / "local")
        found: list[set[Row]] = [set() for _ in sets]
        for at, positions in await deliveries(folder / "spark", SMALL, moments(rows)):
            for ledger, entry in positions:
                found[ledger // _APART].add((ledger % _APART, entry, at))
        for tag, some in enumerate(sets):
            alone = await deliveries(folder / f"fed{tag}", SMALL, moments(some), sorted(some))
            assert found[tag] == {(*each, at) for at, positions in alone for each in positions} == set(some)


def test_rerun_gives_the_same_bytes(spark: SparkSession, tmp_path: Path) -> None:
    """Other partitions, another order, and additional columns give the same files, and no others."""
    from pyspark.sql import functions as f

    rows = spark.range(50_000).select(
        (f.col("id") / 7_500).cast("long").alias("ledger_id"),
        (f.col("id") % 7_500).alias("entry_id"),
        (f.lit(1_700_000_000_000) + f.hash("id") % 100_000).alias("deliver_at"),
        f.lit("topic").alias("topic"),
    )
    config = BucketConfig(delayed_delivery_min_index_count_per_bucket=5_000)
    first = pipeline.build_index(spark, rows, tmp_path / "a", config, unit_rows=12_500)
    assert (first.rows, first.buckets) == (50_000, 7)
    mixed = rows.repartition(7).sort(f.hash("deliver_at"))
    again = pipeline.build_index(spark, mixed, tmp_path / "b", config, unit_rows=25_000)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert again.bytes == first.bytes
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


BAD: list[tuple[tuple[Any, ...], str]] = [
    ((-1, 0, 5), "ledger_id: .*got -1"),
    ((0, 2**32, 5), "entry_id: .*got 4294967296"),
    ((4, 6, -7), "deliver_at: .*ledger_id 4, entry_id 6, got -7"),
    ((4, 6, 2**60), "deliver_at: .*epoch time in ms"),
    ((4, 6, None), "deliver_at: .*ledger_id 4, entry_id 6, got None"),
    ((None, 6, 5), "ledger_id: .*got None"),
    ((4, 5, 9), "df: .*ledger_id 4, entry_id 5 more than once"),
]


def test_bad_row_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """An invalid row is named with the column and its value, and nothing is left."""
    for row, said in BAD:
        with pytest.raises(InvalidArgumentError, match=said):
            pipeline.build_index(spark, frame(spark, [(4, 5, 1), row], 1), tmp_path / "index")
        assert list(tmp_path.iterdir()) == []


def test_wrong_columns_are_named(spark: SparkSession, tmp_path: Path) -> None:
    """The required and the found columns are named before any work; a time that is not an integer is not converted."""
    from pyspark.sql import functions as f

    with pytest.raises(
        InvalidArgumentError,
        match=r"type: deliver_at.*, got the columns ledger_id bigint, entry_id bigint",
    ):
        pipeline.build_index(spark, frame(spark, [(4, 5, 1)]).drop("deliver_at"), tmp_path / "index")
    with pytest.raises(InvalidArgumentError, match="another type: deliver_at"):
        pipeline.build_index(spark, frame(spark, [(4, 5, 1)]).withColumn("deliver_at", f.now()), tmp_path / "index")
    assert list(tmp_path.iterdir()) == []


def test_rows_that_change_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Rows that differ when they are read a second time are detected before the commit."""
    visits = tmp_path / "visits"
    visits.mkdir()

    def lose_one(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        visit = len(list(visits.iterdir()))
        (visits / str(visit)).touch()
        for batch in batches:
            yield batch.slice(visit)

    changing = frame(spark, [(1, entry, 5) for entry in range(50)], 1).mapInArrow(lose_one, SCHEMA)
    with pytest.raises(InvalidArgumentError, match="do not change"):
        pipeline.build_index(spark, changing, tmp_path / "index")
    assert list(tmp_path.iterdir()) == [visits]


@pytest.mark.parametrize("partitions", [1, 4])
def test_position_that_comes_twice_far_apart(spark: SparkSession, tmp_path: Path, partitions: int) -> None:
    """Rows of one position are found whatever lies between them, and although their times differ."""
    rows = [(ledger, entry, 1_000 + entry) for ledger in range(4) for entry in range(500)]
    with pytest.raises(InvalidArgumentError, match="ledger_id 2, entry_id 77 more than once"):
        pipeline.build_index(
            spark, frame(spark, [*rows, (2, 77, 5)], partitions), tmp_path / "index", SMALL, unit_rows=100
        )
    assert list(tmp_path.iterdir()) == []


async def test_highest_numbers(spark: SparkSession, tmp_path: Path) -> None:
    """The highest possible ledger, entry and time are accepted, beside the lowest."""
    rows = [(0, 0, 0), (0, 2**32 - 1, 2**56), (2**63 - 1, 0, 1), (2**63 - 1, 2**32 - 1, 2**56)]
    built = pipeline.build_index(spark, frame(spark, rows), tmp_path / "index", SMALL)
    assert (built.rows, built.first_at, built.last_at) == (4, 0, 2**56)
    build(rows, tmp_path / "local")
    assert contents(tmp_path / "index") == contents(tmp_path / "local")
    ((_, positions),) = await deliveries(tmp_path / "index", SMALL, [2**56])
    assert sorted(map(tuple, positions)) == [row[:2] for row in rows if row[2] > 0]


@pytest.mark.parametrize("overwrite", [False, True])
def test_file_in_the_place_of_the_folder(spark: SparkSession, tmp_path: Path, overwrite: bool) -> None:
    """A file, or a link, is never replaced by an index."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        with pytest.raises(InvalidArgumentError, match="path"):
            pipeline.build_index(spark, frame(spark, [(1, 1, 1)]), tmp_path / name, overwrite=overwrite)
    assert (tmp_path / "file").read_text() == "mine"
    assert (tmp_path / "link").is_symlink()


def test_full_disk(spark: SparkSession, tmp_path: Path) -> None:
    """On a full disk the job says so, leaves nothing, and keeps the old index; with room a rerun works."""
    rows = [(ledger, entry, 1_000 + entry) for ledger in range(30) for entry in range(200)]
    build(rows, tmp_path / "local")
    with small_disk(tmp_path / "disk", 256) as disk:
        index = disk.folder / "index"
        pipeline.build_index(spark, frame(spark, [(9, 9, 9)]), index, SMALL)
        old = contents(index)
        for overwrite in (False, True):
            target = index if overwrite else disk.folder / "other"
            with pytest.raises(LogStorageError, match="No space left on device"):
                pipeline.build_index(spark, frame(spark, rows), target, SMALL, overwrite=overwrite)
            assert [path.name for path in disk.folder.iterdir()] == ["index"]
            assert contents(index) == old
        disk.resize(64 << 10)
        pipeline.build_index(spark, frame(spark, rows), index, SMALL, overwrite=True)
        assert contents(index) == contents(tmp_path / "local")
        assert [path.name for path in disk.folder.iterdir()] == ["index"]


@pytest.mark.slow  # it imports PySpark
def test_full_disk_on_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that finds the disk full says so, and does not ask for another attempt."""
    import pyarrow as pa

    from pulsar_nack.pipeline import _build_index

    monkeypatch.setattr(_build_folder, "_files", FailingFiles(1))
    units = make_units([(1, 0, 3)], SMALL)
    batch = pa.RecordBatch.from_pydict({"ledger_id": [1, 1, 1], "entry_id": [1, 2, 3], "deliver_at": [5, 5, 5]})
    with _build_folder.building(tmp_path / "index") as staging:
        work = _build_index._worker(units, str(staging), SMALL, _build_index._decode_columns)
        (record,) = [record for found in work([batch]) for record in found.to_pylist()]
        error = _build_index._error(json.loads(record["problem"]), staging)
    assert isinstance(error, LogStorageError)
    assert "No space left" in str(error)


def test_storage_that_refuses_a_worker(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that cannot write ends the job with an error that says so, and nothing is left."""
    from pulsar_nack.pipeline import _build_index

    @contextmanager
    def without_room(target: Path) -> Iterator[Path]:
        with _build_folder.building(target) as staging:
            (staging / _build_folder.ATTEMPTS).rmdir()
            (staging / _build_folder.ATTEMPTS).touch()
            yield staging

    monkeypatch.setattr(_build_index, "building", without_room)
    with pytest.raises(LogStorageError, match="Not a directory"):
        pipeline.build_index(spark, frame(spark, [(1, 1, 1)]), tmp_path / "index")
    assert list(tmp_path.iterdir()) == []


def test_killed_worker_leaves_nothing_and_a_rerun_gives_the_same(spark: SparkSession, tmp_path: Path) -> None:
    """A run whose worker is killed fails and leaves nothing; the next one writes the usual bytes."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    rows = [(ledger, entry, 1_000 + entry) for ledger in range(20) for entry in range(50)]
    source = frame(spark, rows, 1)
    visits = tmp_path / "visits"
    visits.mkdir()

    def kill_once(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == 0:
                (visits / str(len(list(visits.iterdir())))).touch()
            if len(list(visits.iterdir())) == 2:  # the second reading of the first run
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    killing = source.mapInArrow(kill_once, SCHEMA)
    with pytest.raises((PySparkException, Py4JJavaError)):
        pipeline.build_index(spark, killing, tmp_path / "index", SMALL)
    assert list(tmp_path.iterdir()) == [visits]
    pipeline.build_index(spark, killing, tmp_path / "index", SMALL)
    build(rows, tmp_path / "local")
    assert contents(tmp_path / "index") == contents(tmp_path / "local")
