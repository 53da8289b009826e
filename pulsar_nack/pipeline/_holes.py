"""The job ``holes``: the size of acknowledgement state, its growth, and which subscriptions are near the gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from .._check import check_metadata_limit
from ..config import CursorConfig
from ._checks import require_columns, schema_of
from ._hole_figures import figures_of
from .schemas import HOLES, MAX_TIME_MS

if TYPE_CHECKING:
    import pyarrow

DEFAULT_LIMIT: Final = CursorConfig().max_per_cursor_metadata_size_in_bytes
_SUBSCRIPTIONS: Final = schema_of(
    "topic string, subscription string, at_ms long, mark_delete_ledger long, mark_delete_entry long, ledgers long, "
    "ranges long, holes long, acked long, unacked_below long, batches long, backlog long, bytes long, "
    "is_stored boolean, single_bytes long, ranges_lost long, oldest_ledger long, oldest_entry long, "
    "pinned_ledgers long, pinned_bytes long, pinned_done long, ignored_rows long"
)
"""The figures of one snapshot of a subscription; ``holes`` adds those of several snapshots, and of the gate."""
_KEY: Final = ("topic", "subscription")
_ROW: Final = ("kind", "ledger", "first", "last", "bytes")
_NEAR: Final = 0.75
_PAUSED: Final = 7 / 8


def holes(df: DataFrame, *, limit: int = DEFAULT_LIMIT) -> DataFrame:
    """Return a row for each subscription and time: its holes, their size on storage, and how near the gate is.

    One task takes all rows of a subscription and time: some hundred bytes of memory a range.

    :param df: rows of :data:`~pulsar_nack.pipeline.schemas.HOLES`, of any number of times
    :param limit: ``maxPerCursorMetadataSizeInBytes``; below 1: none, and nothing is at risk
    :raises InvalidArgumentError: a column is missing or of another type, or the limit is from 1 to 1 023
    """
    limit = check_metadata_limit("max_per_cursor_metadata_size_in_bytes", limit)
    require_columns(df, HOLES)
    figures = df.select(*HOLES.fieldNames()).groupBy(*_KEY, "at_ms").applyInArrow(_figures, _SUBSCRIPTIONS)
    return _with_gate(_with_time(figures), limit)


def _figures(table: pyarrow.Table) -> pyarrow.Table:
    """Return the figures of the rows of one snapshot."""
    import pyarrow
    from pyspark.sql.pandas.types import to_arrow_schema

    key = [table.column(name)[0].as_py() for name in (*_KEY, "at_ms")]
    columns = (table.column(name).to_pylist() for name in _ROW)
    row = [*key, *figures_of(zip(*columns, strict=True))]
    schema = to_arrow_schema(_SUBSCRIPTIONS)
    arrays = [pyarrow.array([value], kind) for value, kind in zip(row, schema.types, strict=True)]
    return pyarrow.Table.from_arrays(arrays, schema=schema)


def _with_time(figures: DataFrame) -> DataFrame:
    """Add the columns that compare the snapshots of a subscription over time."""
    in_time = Window.partitionBy(*_KEY).orderBy("at_ms")
    so_far = in_time.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    oldest = sf.struct("oldest_ledger", "oldest_entry")
    at, size = (sf.col(name).cast("double") for name in ("at_ms", "bytes"))  # differences of longs may overflow
    seconds = (at - sf.lag(at).over(in_time)) / 1_000
    is_other = sf.coalesce(~oldest.eqNullSafe(sf.lag(oldest).over(in_time)), sf.expr("true"))
    found = (
        figures.withColumn("bytes_per_s", (size - sf.lag(size).over(in_time)) / seconds)
        .withColumn("ranges_per_s", (sf.col("ranges") - sf.lag("ranges").over(in_time)) / seconds)
        .withColumn("is_latest", sf.lead(sf.lit(1)).over(in_time).isNull())
        .withColumn("since", sf.when(is_other, sf.col("at_ms")))
    )
    since = sf.last("since", ignorenulls=True).over(so_far)
    has_oldest = sf.col("oldest_ledger").isNotNull()
    return found.withColumn("oldest_since_ms", sf.when(has_oldest, since)).drop("since")


def _with_gate(figures: DataFrame, limit: int) -> DataFrame:
    """Add how near the gate is, which depends on the persisted size."""
    if not limit:
        nothing = sf.lit(None).cast
        return (
            figures.withColumn("limit_share", nothing("double"))
            .withColumn("risk", sf.lit("none"))
            .withColumn("limit_at_ms", nothing("long"))
        )
    share = sf.col("bytes") / sf.lit(limit)
    left_ms = (sf.lit(limit) - sf.col("bytes")) / sf.nullif("bytes_per_s", sf.lit(0.0)) * 1_000
    grows = (sf.col("bytes_per_s") > 0) & (sf.col("bytes") < limit) & (sf.col("at_ms") + left_ms <= MAX_TIME_MS)
    return (
        figures.withColumn("limit_share", share)
        .withColumn("risk", _risk(share))
        .withColumn("limit_at_ms", sf.when(grows, sf.col("at_ms") + sf.ceil(left_ms)).cast("long"))
    )


def _risk(share: Column) -> Column:
    return sf.when(share >= 1, "over").when(share >= _PAUSED, "paused").when(share >= _NEAR, "near").otherwise("none")
