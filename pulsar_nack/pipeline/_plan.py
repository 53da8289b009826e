"""The job that plans the width of buckets from real input: the nacks of a trace, or delayed messages.

For each stream it finds the moment at which most messages wait, and puts the messages that wait then into the library's
own index, once for each number of bits, on the workers. Moments are an eighth of the mean delay apart, at most a
second. Running sums of arrivals and deadlines count the waiting messages, so no stream has to fit into memory: only the
messages that wait at its moment are collected, in order, and streamed through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import to_arrow_schema

from .._check import check_integer
from .._delays import MAX_DELAY_MS
from ..errors import InvalidArgumentError
from ..planning import Kind
from ._checks import require_columns, schema_of
from ._messages import parsed_once
from ._plan_measure import Arrival, IndexBuilder, Measured, PlannedRow, plan_rows
from .schemas import MAX_TIME_MS, METADATA, TRACE

_MAX_BITS: Final = 30
_STREAM: Final = ("topic", "partition", "subscription")
_ARRIVAL: Final = ("time_ms", "delay_ms", "ledger", "entry", "message_partition", "batch_index")
_ORDER: Final = ("time_ms", "ledger", "entry", "batch_index", "message_partition", "delay_ms")
"""The order in which messages are added to an index: its size may depend on it."""
_NACKS: Final = ("event", "topic", "subscription", "time_ms", "partition", "ledger", "entry", "batch_index", "delay_ms")
_DELAYED: Final = ("topic", "partition", "ledger_id", "entry_id", "publish_time", "deliver_at")
_MEASURED: Final = schema_of(
    "topic string, partition int, subscription string, at_ms long, bits long, pending long, buckets long, bytes long, "
    "early_ms double, delay_ms double, last_ms long, entries long, ledgers long, members long"
)
PLAN: Final = schema_of(
    "topic string, partition int, subscription string, kind string, at_ms long, pending long, delay_ms double, "
    "bits int, width_ms long, buckets long, wake_ups_per_second double, early_ms double, bytes long, "
    "bytes_per_message double, predicted_bytes double, proposal_bytes double, is_recommended boolean, reason string"
)
"""A row for each stream and number of bits, see :func:`plan`."""


def plan(df: DataFrame, *, kind: str | None = None, max_bits: int = 16) -> DataFrame:
    """Return the memory of buckets of each width when most messages wait, with a recommended width for each stream.

    Nacks form a stream for each topic and subscription (partition -1), delayed messages one for each topic and
    partition. A cancelled nack counts until its deadline.

    :param df: traces, of which nacks are used, or metadata
    :param kind: ``nack`` or ``delayed``; None: depends on the columns
    :param max_bits: widths from 1 to ``2**max_bits`` ms are tried, at most 30
    :returns: columns of :data:`PLAN`: ``bytes`` is the real size of the index, ``predicted_bytes`` that of the formulas
        for a steady stream like this one, ``proposal_bytes`` that of Pulsar's formula, ``early_ms`` how early messages
        come on average; the recommended row has a ``reason``
    :raises InvalidArgumentError: columns are missing, or an argument is invalid
    """
    check_integer("max_bits", max_bits, 0, _MAX_BITS)
    chosen = _kind(df, kind)
    arrivals = _nacks(df) if chosen == Kind.NACK else _delayed(df)
    keys = [*_STREAM, "at_ms", "bits"]
    bits = sf.explode(sf.sequence(sf.lit(0), sf.lit(max_bits))).alias("bits")
    waiting = _waiting(arrivals).select(*_STREAM, "at_ms", *_ARRIVAL, bits)
    ordered = waiting.repartition(*keys).sortWithinPartitions(*keys, *_ORDER)
    measured = ordered.mapInArrow(_measurer(chosen), _MEASURED)
    return measured.groupBy(*_STREAM).applyInArrow(_planner(chosen), PLAN)


def _kind(df: DataFrame, kind: str | None) -> Kind:
    if kind is None:
        kind = Kind.NACK if "event" in df.columns else Kind.DELAYED
    if kind not in set(Kind):
        raise InvalidArgumentError("kind", kind, "nack or delayed")
    return Kind(kind)


def _nacks(df: DataFrame) -> DataFrame:
    require_columns(df, TRACE, _NACKS)
    is_sound = sf.col("time_ms").between(0, MAX_TIME_MS) & sf.col("delay_ms").between(1, MAX_DELAY_MS)
    is_nack = (sf.col("event") == "nack") & is_sound & sf.col("ledger").isNotNull()
    return parsed_once(df.where(is_nack), _NACKS).select(
        sf.coalesce("topic", sf.lit("")).alias("topic"),
        sf.lit(-1).alias("partition"),
        sf.coalesce("subscription", sf.lit("")).alias("subscription"),
        *("time_ms", "delay_ms", "ledger", "entry"),
        sf.col("partition").alias("message_partition"),
        "batch_index",
    )


def _delayed(df: DataFrame) -> DataFrame:
    require_columns(df, METADATA, _DELAYED)
    is_sound = (sf.col("ledger_id") >= 0) & (sf.col("entry_id") >= 0) & (sf.col("publish_time") >= 0)
    delayed = df.where(is_sound & (sf.col("deliver_at") > sf.col("publish_time")))
    return delayed.select(
        sf.coalesce("topic", sf.lit("")).alias("topic"),
        sf.coalesce("partition", sf.lit(-1)).alias("partition"),
        sf.lit("").alias("subscription"),
        sf.col("publish_time").alias("time_ms"),
        (sf.col("deliver_at") - sf.col("publish_time")).alias("delay_ms"),
        sf.col("ledger_id").alias("ledger"),
        sf.col("entry_id").alias("entry"),
        sf.lit(-1).alias("message_partition"),
        sf.lit(-1).alias("batch_index"),
    )


def _waiting(arrivals: DataFrame) -> DataFrame:
    """Return the messages of each stream that wait at the moment when most do, with that moment."""
    step = sf.greatest(sf.lit(1), sf.least(sf.lit(1000), sf.floor(sf.avg("delay_ms") / 8))).cast("long").alias("step")
    stepped = _join(arrivals, arrivals.groupBy(*_STREAM).agg(step))
    comes = sf.floor(sf.col("time_ms") / sf.col("step")).cast("long") + 1
    goes = sf.floor((sf.col("time_ms") + sf.col("delay_ms")) / sf.col("step")).cast("long") + 1
    pairs = [sf.struct(at.alias("at"), sf.lit(by).alias("by")) for at, by in ((comes, 1), (goes, -1))]
    change = sf.explode(sf.array(*pairs))
    changes = stepped.select(*_STREAM, "step", change.alias("change"))
    changes = changes.groupBy(*_STREAM, "step", "change.at").agg(sf.sum("change.by").alias("by"))
    until = Window.partitionBy(*_STREAM).orderBy("at").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    counts = changes.withColumn("pending", sf.sum("by").over(until))
    highest = sf.max(sf.struct("pending", -sf.col("at") * sf.col("step"))).alias("highest")
    peaks = counts.groupBy(*_STREAM).agg(highest).select(*_STREAM, (-sf.col("highest.col2")).alias("at_ms"))
    waits = (sf.col("time_ms") < sf.col("at_ms")) & (sf.col("at_ms") <= sf.col("time_ms") + sf.col("delay_ms"))
    return _join(arrivals, peaks).where(waits)


def _join(arrivals: DataFrame, streams: DataFrame) -> DataFrame:
    return arrivals.join(sf.broadcast(streams), list(_STREAM))


# -- on the workers ------------------------------------------------------------------------------------------------


def _measurer(kind: Kind) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that builds an index for each stream and number of bits, whose rows are consecutive."""
    names = _MEASURED.fieldNames()

    def measure(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for key, found in groupby(_runs(batches), itemgetter(0)):
            *stream, at_ms, bits = key
            builder = IndexBuilder(kind, bits, at_ms)
            for _, arrivals in found:
                builder.add(arrivals)
            row = (*stream, at_ms, *builder.finish())
            yield pa.RecordBatch.from_pylist([dict(zip(names, row, strict=True))], schema=_MEASURED_ARROW)

    return measure


def _runs(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[tuple[Any, ...], list[Arrival]]]:
    """Yield the consecutive rows of a batch that have the same stream and number of bits."""
    for batch in batches:
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        keys = zip(*(columns[name] for name in (*_STREAM, "at_ms", "bits")), strict=True)
        rows = zip(*(columns[name] for name in _ARRIVAL), strict=True)
        for key, pairs in groupby(zip(keys, rows, strict=True), itemgetter(0)):
            yield key, [arrival for _, arrival in pairs]


def _planner(kind: Kind) -> Callable[[pa.Table], pa.Table]:
    def make(table: pa.Table) -> pa.Table:
        found = sorted(table.to_pylist(), key=itemgetter("bits"))
        measured = [Measured(*(row[name] for name in Measured._fields)) for row in found]
        stream = {name: found[0][name] for name in (*_STREAM, "at_ms")}
        rows = [stream | _row(kind, each) for each in plan_rows(kind, measured)]
        return pa.Table.from_pylist(rows, schema=_PLAN_ARROW)

    return make


def _row(kind: Kind, planned: PlannedRow) -> dict[str, Any]:
    measured, row = planned.measured, planned.row
    return {
        "kind": str(kind),
        "pending": measured.pending,
        "delay_ms": measured.delay_ms,
        "bits": row.bits,
        "width_ms": row.width_ms,
        "buckets": measured.buckets,
        "wake_ups_per_second": row.wake_ups_per_second,
        "early_ms": measured.early_ms,
        "bytes": measured.bytes,
        "bytes_per_message": row.bytes_per_message,
        "predicted_bytes": planned.predicted_bytes,
        "proposal_bytes": row.proposal_bytes,
        "is_recommended": planned.is_recommended,
        "reason": planned.reason,
    }


_MEASURED_ARROW: Final = to_arrow_schema(_MEASURED)
_PLAN_ARROW: Final = to_arrow_schema(PLAN)
