"""What the commands of the pipeline share: their options, the session, and where results go."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ..errors import InvalidArgumentError, MissingExtraError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..pipeline import Read

Paths = Annotated[list[str], typer.Argument(help="Files or folders, of anything that Spark reads.", show_default=False)]
Master = Annotated[
    str | None, typer.Option(help="Where Spark runs: local[2], spark://..., yarn. [default: all cores here]")
]
Out = Annotated[str | None, typer.Option(help="Write Parquet to this folder, one folder in it for each table.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace results that are in the folder already.")]
IncludeOpen = Annotated[
    bool, typer.Option("--include-open", help="Also read files that are being written, or were left by a kill (.open).")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

SHOWN: Final = 50
"""Rows of a table that people are shown; JSON and files hold all."""


@contextmanager
def session(master: str | None) -> Iterator[SparkSession]:
    """Give a session, and stop it at the end if it was started here."""
    try:
        from pyspark.sql import SparkSession

        from ..pipeline import local_session
    except ModuleNotFoundError as error:
        raise MissingExtraError("the pipeline", str(error.name), "spark") from error
    running = SparkSession.getActiveSession()
    spark = running or local_session(master)
    try:
        yield spark
    finally:
        if running is None:
            spark.stop()


def refuse_existing(spark: SparkSession, out: str | None, *, overwrite: bool) -> None:
    """Refuse an output folder that exists, unless told; nothing has been read or written yet."""
    if out is None or overwrite:
        return
    jvm: Any = spark.sparkContext._jvm
    path = jvm.org.apache.hadoop.fs.Path(out)
    if path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()).exists(path):
        raise InvalidArgumentError("out", out, "a folder that does not exist yet (or --overwrite)")


def read(spark: SparkSession, paths: list[str], *, include_open: bool = False) -> DataFrame:
    """Read traces; what was refused is counted on stderr, with the reason."""
    from ..pipeline import read_traces

    found = read_traces(spark, paths, include_open=include_open)
    tell_refused(found)
    return found.traces


def tell_refused(found: Read, out: str | None = None) -> None:
    """Count what was refused on stderr, with the reason.

    :param out: where it is written too, as the table ``quarantine``; call this when all arguments were checked
    """
    if out is not None:
        from ..pipeline.schemas import QUARANTINE

        where = f"{out}/quarantine"
        found.quarantine.write.mode("overwrite").parquet(where)
        found = found._replace(quarantine=found.quarantine.sparkSession.read.schema(QUARANTINE).parquet(where))
    for reason, count in found.refused().items():
        typer.echo(f"left out {count} lines: {reason}", err=True)


def deliver(tables: Mapping[str, DataFrame], *, out: str | None, as_json: bool) -> None:
    """Write tables as Parquet, or print them, as JSON ({table: [rows]}) or for people."""
    if out is not None:
        for name, table in tables.items():
            table.write.mode("overwrite").parquet(f"{out}/{name}")
        if as_json:
            typer.echo(json.dumps({name: f"{out}/{name}" for name in tables}, indent=2))
        return
    if as_json:
        found = {name: [row.asDict(recursive=True) for row in table.collect()] for name, table in tables.items()}
        typer.echo(json.dumps(found, indent=2, default=str))
        return
    for name, table in tables.items():
        typer.echo(f"\n{name}\n")
        _show(table)


def _show(table: DataFrame) -> None:
    rows = table.limit(SHOWN + 1).collect()
    cells = [list(table.columns), *([_cell(value) for value in row] for row in rows[:SHOWN])]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    if len(rows) > SHOWN:
        typer.echo(f"... and more: --json prints and --out writes all (here the first {SHOWN})")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,.1f}" if isinstance(value, float) else str(value)
