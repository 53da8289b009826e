"""The Spark session of a pipeline command, and where its tables go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import typer

from .. import pipeline
from .._check import model_of
from .._foreign import shown
from ..config import BucketConfig
from ..errors import InvalidArgumentError
from ._terminal import print_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MAX_ROWS: Final = 50
"""Rows of a table that are printed for people; JSON and files have all rows."""

_BUCKET_SETTINGS: Final = {
    "min_indexes": "delayed_delivery_min_index_count_per_bucket",
    "max_indexes": "max_indexes_per_bucket",
    "segment": "delayed_delivery_max_indexes_per_bucket_snapshot_segment",
    "segment_seconds": "delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds",
}
"""The settings of a bucket tracker by the options of ``build-index``."""


def bucket_config(**options: float | None) -> BucketConfig:
    """Return the config of options.

    :raises InvalidArgumentError: names the option that is wrong
    """
    try:
        return model_of(BucketConfig, {_BUCKET_SETTINGS[name]: value for name, value in options.items()})
    except InvalidArgumentError as error:
        name = next(name for name, setting in _BUCKET_SETTINGS.items() if setting == error.field)
        raise InvalidArgumentError(name, error.value, error.expected) from None


@contextmanager
def session(master: str | None) -> Iterator[SparkSession]:
    """Give the running Spark session, or start one and stop it at the end."""
    start = pipeline.local_session  # raises MissingExtraError without PySpark
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    spark = running or start(master)
    try:
        yield spark
    finally:
        if running is None:
            spark.stop()


def refuse_existing(spark: SparkSession, out: str | None, *, overwrite: bool) -> None:
    """Refuse an output folder that exists, without ``overwrite``; called before anything is read or written."""
    if out is None or overwrite:
        return
    jvm: Any = spark.sparkContext._jvm
    path = jvm.org.apache.hadoop.fs.Path(out)
    if path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()).exists(path):
        raise InvalidArgumentError("out", out, "a folder that does not exist yet (or --overwrite)")


def read_parquet(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Return the rows of Parquet files, or of folders of them.

    :raises InvalidArgumentError: a path does not exist, or holds no Parquet
    """
    from pyspark.errors import AnalysisException

    try:
        return spark.read.parquet(*paths)
    except AnalysisException as error:
        raise InvalidArgumentError("paths", ", ".join(paths), "Parquet files that exist, or folders of them") from error


def report_refused(read: pipeline.Read, out: str | None = None) -> None:
    """Print on stderr how many lines were refused, by reason; called when all arguments have been checked.

    :param out: the output folder; refused lines are written there as the table ``quarantine``
    """
    if out is not None:
        from ..pipeline.schemas import QUARANTINE

        where = f"{out}/quarantine"
        read.quarantine.write.mode("overwrite").parquet(where)
        read = read._replace(quarantine=read.quarantine.sparkSession.read.schema(QUARANTINE).parquet(where))
    for reason, count in read.refused().items():
        typer.echo(f"left out {count} lines: {reason}", err=True)


def write_or_print(tables: Mapping[str, DataFrame], *, out: str | None, as_json: bool) -> None:
    """Write tables as Parquet, or print them for people or as JSON (``{table: [rows]}``)."""
    if out is not None:
        for name, table in tables.items():
            table.write.mode("overwrite").parquet(f"{out}/{name}")
        if as_json:
            print_json({name: f"{out}/{name}" for name in tables})
    elif as_json:
        print_json({name: [row.asDict(recursive=True) for row in table.collect()] for name, table in tables.items()})
    else:
        for name, table in tables.items():
            typer.echo(f"\n{name}\n")
            _print(table)


def _print(table: DataFrame) -> None:
    rows = table.limit(_MAX_ROWS + 1).collect()
    cells = [list(table.columns), *([_cell(value) for value in row] for row in rows[:_MAX_ROWS])]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    if len(rows) > _MAX_ROWS:
        typer.echo(f"... and more: --json prints and --out writes all rows (here the first {_MAX_ROWS})")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,.1f}" if isinstance(value, float) else shown(str(value))
