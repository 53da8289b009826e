"""Reading traces: what is sound, and what is not with the reason; no line is dropped in silence.

A line is refused for the first of these: it is no JSON object, or a field has another type; its version is unknown; a
field that every line has is missing; its event is unknown; a time is negative or beyond the year 9999.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType, StructField, StructType

from ..errors import InvalidArgumentError
from ._arguments import Paths, path_names
from ._checks import require_columns
from .schemas import BROKEN, EVENTS, MAX_TIME_MS, QUARANTINE, REQUIRED, TIMES, TRACE, TRACE_VERSION

_CORRUPT: Final = "_corrupt"
_PARSED: Final = StructType([*TRACE.fields, StructField(_CORRUPT, StringType())])
_COLUMNS: Final = TRACE.fieldNames()


class Read(NamedTuple):
    """Traces that were read: ``traces`` with the schema ``TRACE``, and ``quarantine`` with ``QUARANTINE``.

    Both are lazy, so what is refused is read again when it is looked at: ``refused()`` counts it by reason.
    """

    traces: DataFrame
    quarantine: DataFrame

    def refused(self) -> dict[str, int]:
        """Return how many lines were refused, by reason; empty where all is sound. Reads the input."""
        rows = self.quarantine.groupBy("reason").count().orderBy("reason").collect()
        return {row["reason"]: row["count"] for row in rows}


def read_traces(spark: SparkSession, paths: Paths, *, include_open: bool = False) -> Read:
    """Read trace files, ``.jsonl`` (also ``.jsonl.gz``) and ``.parquet``, from files and from folders at any depth.

    :param paths: of anything that Spark can read, together
    :param include_open: read files that are still being written too; a line that is half there goes to quarantine
    :raises InvalidArgumentError: there is no such file, or the columns of Parquet are not those of a trace
    """
    where = path_names(paths)
    glob = "*.{jsonl,jsonl.gz,jsonl.open}" if include_open else "*.{jsonl,jsonl.gz}"
    try:
        lines = spark.read.text(where, pathGlobFilter=glob, recursiveFileLookup=True)
    except AnalysisException as error:
        raise InvalidArgumentError("paths", where, "files or folders that exist") from error
    parquet = _parquet(spark, where)
    if not lines.inputFiles():
        if parquet is None:
            raise InvalidArgumentError("paths", where, "trace files (.jsonl, closed, or .parquet) in them")
        return check_traces(parquet)
    read = parse_lines(lines.select(sf.col("_metadata.file_path").alias("file"), sf.col("value").alias("line")))
    if parquet is None:
        return read
    more = check_traces(parquet)
    return Read(read.traces.unionByName(more.traces), read.quarantine.unionByName(more.quarantine))


def parse_lines(lines: DataFrame) -> Read:
    """Parse JSON lines: a DataFrame with the string columns ``file`` (may be null) and ``line``."""
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    event = sf.from_json(sf.col("line"), _PARSED, options)
    parsed = lines.select("file", "line", event.alias("event"))
    value = sf.col("event")
    is_broken = value.isNull() | value[_CORRUPT].isNotNull()
    reason = sf.when(is_broken, sf.lit(BROKEN)).otherwise(_fault(value))
    judged = parsed.withColumn("fault", reason)
    is_sound = sf.col("fault").isNull()
    return Read(
        _with_schema(judged.where(is_sound), [value[name].alias(name) for name in _COLUMNS], TRACE),
        _with_schema(judged.where(~is_sound), ["file", "line", sf.col("fault").alias("reason")], QUARANTINE),
    )


def check_traces(df: DataFrame) -> Read:
    """Split events that are in a DataFrame already, from Parquet for instance, as :func:`read_traces` does.

    :raises InvalidArgumentError: columns are missing; those wanted and found are named
    """
    require_columns(df, TRACE)
    row = sf.struct(*[sf.col(name) for name in _COLUMNS])
    judged = df.select(*_COLUMNS, _fault(row).alias("fault"))
    is_sound = sf.col("fault").isNull()
    line = sf.to_json(row, {"ignoreNullFields": "false"}).alias("line")
    refused = [sf.lit(None).cast("string").alias("file"), line, sf.col("fault").alias("reason")]
    return Read(
        _with_schema(judged.where(is_sound), list(_COLUMNS), TRACE),
        _with_schema(judged.where(~is_sound), refused, QUARANTINE),
    )


def _parquet(spark: SparkSession, where: list[str]) -> DataFrame | None:
    """Return what is there as Parquet, whose files hold their own schema; None where there is none."""
    try:
        return spark.read.parquet(*where, pathGlobFilter="*.parquet", recursiveFileLookup=True)
    except AnalysisException as error:
        if error.getCondition() == "UNABLE_TO_INFER_SCHEMA":
            return None
        raise


def _fault(event: Column) -> Column:
    """Return why an event, a struct, is refused; null where it is not."""
    v, kind = event["v"], event["event"]
    faults = [
        sf.when(v != TRACE_VERSION, sf.concat(sf.lit("unknown version "), v.cast("string"))),
        *(sf.when(event[name].isNull(), sf.lit(f"{name} is missing")) for name in REQUIRED),
        sf.when(~kind.isin(*EVENTS), sf.concat(sf.lit("unknown event "), kind)),
        *(
            sf.when(
                (event[name] < 0) | (event[name] > MAX_TIME_MS), sf.lit(f"{name} is negative or beyond the year 9999")
            )
            for name in TIMES
        ),
        sf.when(event["delay_ms"] < 0, sf.lit("delay_ms is negative")),
    ]
    return sf.coalesce(*faults)


def _with_schema(df: DataFrame, columns: Sequence[str | Column], schema: StructType) -> DataFrame:
    """Select columns; those that were checked to hold no nulls are declared so."""
    return df.select(*columns).to(_relaxed(schema))


def _relaxed(schema: StructType) -> StructType:
    return StructType([StructField(field.name, field.dataType) for field in schema.fields])
