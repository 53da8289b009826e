"""The job that plans the width of buckets from real input: the nacks of a trace, or delayed messages.

For each stream it finds the moment at which most messages wait, and puts the messages that wait then into the library's
own index, once for each number of bits, on the workers. Moments are an eighth of the mean delay apart, at most a
second. Running sums of arrivals and deadlines count the waiting messages, so no stream has to fit into memory: only the
messages that wait at its moment are collected, in order, and streamed through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import to_arrow_schema

from .._check import check_integer
from .._delays import MAX_DELAY_MS, MAX_NUMBER_S
from ..config import NackConfig
from ..delayed.ticks import TickRounding
from ..errors import InvalidArgumentError
from ..ids import MessageId
from ..index import TimeBuckets
from ..nack import NackSchedule
from ..planning import Kind, PlanRow, Workload, make_plan, recommend
from ._jobs import parsed_once, require_columns
from .schemas import MAX_TIME_MS, METADATA, TRACE, _schema_of

_MAX_BITS: Final = 30
_MAX_ENTRIES: Final = 2**40
_MAX_RATE: Final = 1e9
_STREAM: Final = ("topic", "partition", "subscription")
_ARRIVAL: Final = ("time_ms", "delay_ms", "ledger", "entry", "message_partition", "batch_index")
_ORDER: Final = ("time_ms", "ledger", "entry", "batch_index", "message_partition", "delay_ms")
"""The order in which messages are added to an index: its size may depend on it."""
_NACKS: Final = ("event", "topic", "subscription", "time_ms", "partition", "ledger", "entry", "batch_index", "delay_ms")
_DELAYED: Final = ("topic", "partition", "ledger_id", "entry_id", "publish_time", "deliver_at")
_MEASURED: Final = _schema_of(
    "topic string, partition int, subscription string, at_ms long, bits long, pending long, buckets long, bytes long, "
    "early_ms double, delay_ms double, last_ms long, entries long, ledgers long, members long"
)
PLAN: Final = _schema_of(
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
            arrivals = chain.from_iterable(run for _, run in found)
            row = (*stream, at_ms, *measure_index(kind, bits, at_ms, arrivals))
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
        rows = [stream | row for row in plan_rows(kind, measured)]
        return pa.Table.from_pylist(rows, schema=_PLAN_ARROW)

    return make


# -- the index of the messages that wait, and the best width of its buckets ----------------------------------------


Arrival = tuple[int, int, int, int, int, int]
"""Time (epoch ms), delay (ms), ledger, entry, partition, batch index; the last two may be -1."""


class Measured(NamedTuple):
    """An index with buckets of ``2**bits`` ms, and in the last four fields the messages in it."""

    bits: int
    pending: int
    buckets: int
    bytes: int
    early_ms: float
    delay_ms: float
    last_ms: int
    """How much longer the last message waits."""
    entries: int
    """The entries that the messages span, including entries that do not wait."""
    ledgers: int
    members: int
    """The messages of an entry."""


def measure_index(kind: Kind, bits: int, at_ms: int, arrivals: Iterable[Arrival]) -> Measured:
    """Build the index of the messages that wait at ``at_ms``, in buckets of ``2**bits`` ms, and measure it.

    :param arrivals: those messages in order of time, at least one; about 1 us each
    """
    schedule = NackSchedule(NackConfig(negative_ack_precision_bit_cnt=bits))
    ticks = TickRounding(1 << bits, is_strict=False)
    buckets = schedule.buckets if kind == Kind.NACK else TimeBuckets()
    waits = delays = early = last_at = 0
    members = 1
    spans: dict[tuple[int, int], tuple[int, int]] = {}
    for time, delay, ledger, entry, partition, batch_index in arrivals:
        message_id, due_at = MessageId(ledger, entry, partition, batch_index), time + delay
        if kind == Kind.NACK:
            schedule.add(message_id, time, delay)
            bucket_due_at = schedule.bucket_start(time, delay)
        else:
            bucket = ticks.bucket_of(due_at)
            buckets.put(message_id, bucket)
            bucket_due_at = ticks.wake_at(bucket)
        waits += 1
        delays += delay
        early += due_at - bucket_due_at
        last_at = max(last_at, due_at)
        members = max(members, batch_index + 1)
        first, last = spans.get((partition, ledger), (entry, entry))
        if not first < entry < last:
            spans[partition, ledger] = min(first, entry), max(last, entry)
    return Measured(
        bits=bits,
        pending=len(buckets),
        buckets=buckets.bucket_count,
        bytes=buckets.bytes,
        early_ms=early / waits,
        delay_ms=delays / waits,
        last_ms=last_at - at_ms,
        entries=sum(last - first + 1 for first, last in spans.values()),
        ledgers=len(spans),
        members=members,
    )


def plan_rows(kind: Kind, measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """Compare the measured indexes of a stream with the formulas, and recommend a width.

    :param measured: indexes with 0, 1, 2 and so on bits
    :returns: columns of :data:`PLAN` without those of the stream
    """
    workload = workload_of(kind, measured[0])
    predicted = make_plan(workload, len(measured) - 1).rows
    rows = tuple(_measured_row(row, each) for row, each in zip(predicted, measured, strict=False))
    best = recommend(workload, rows)
    return [
        {
            "kind": str(kind),
            "pending": each.pending,
            "delay_ms": each.delay_ms,
            "bits": row.bits,
            "width_ms": row.width_ms,
            "buckets": each.buckets,
            "wake_ups_per_second": row.wake_ups_per_second,
            "early_ms": each.early_ms,
            "bytes": each.bytes,
            "bytes_per_message": row.bytes_per_message,
            "predicted_bytes": formula.bytes,
            "proposal_bytes": row.proposal_bytes,
            "is_recommended": row.bits == best.bits,
            "reason": best.reason if row.bits == best.bits else None,
        }
        for each, row, formula in zip(measured, rows, predicted, strict=False)
    ]


def workload_of(kind: Kind, measured: Measured) -> Workload:
    """Return the steady stream in order that is most like the measured one."""
    delay = min(max(measured.delay_ms, 1) / 1000, MAX_NUMBER_S)  # the longest delay of a workload
    members = 1 if kind == Kind.DELAYED else min(measured.members, 65_536)
    share = min(measured.pending / (measured.entries * members), 1)
    return Workload(
        kind=kind,
        rate=min(measured.pending / share / delay, _MAX_RATE),
        delay=delay,
        share=share,
        entries_per_ledger=min(-(-measured.entries // measured.ledgers), _MAX_ENTRIES),
        batch_size=members,
    )


def _measured_row(row: PlanRow, measured: Measured) -> PlanRow:
    seconds = max(measured.last_ms, row.width_ms) / 1000
    return replace(
        row,
        buckets=measured.buckets,
        messages_per_bucket=measured.pending / max(measured.buckets, 1),
        wake_ups_per_second=measured.buckets / seconds,
        bytes=measured.bytes,
        bytes_per_message=measured.bytes / measured.pending,
    )


_MEASURED_ARROW: Final = to_arrow_schema(_MEASURED)
_PLAN_ARROW: Final = to_arrow_schema(PLAN)
