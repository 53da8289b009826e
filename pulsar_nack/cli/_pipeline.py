"""``pulsar-nack pipeline JOB``: the PySpark jobs, on a local session or on any master.

A command imports PySpark when it runs: names of :mod:`pulsar_nack.pipeline` are loaded when they are first used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from .. import pipeline
from .._check import model_of
from .._delays import delay_ms, positive_delay_ms
from ..config import BucketConfig, CursorConfig
from ..errors import InvalidArgumentError
from ._terminal import print_json, write_or_print

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_Paths = Annotated[
    list[str], typer.Argument(help="Files or folders, local or on any file system of Spark.", show_default=False)
]
_Master = Annotated[
    str | None, typer.Option(help="Where Spark runs: local[2], spark://..., yarn. [default: all cores here]")
]
_Out = Annotated[str | None, typer.Option(help="Write Parquet to this folder, with a subfolder for each table.")]
_Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace results that exist.")]
_IncludeOpen = Annotated[
    bool, typer.Option("--include-open", help="Also read files that are still being written, or were left by a kill.")
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_SINKS: Final = ("console", "parquet")
_LIMIT: Final = CursorConfig().max_per_cursor_metadata_size_in_bytes

_BUCKET_SETTINGS: Final = {
    "min_indexes": "delayed_delivery_min_index_count_per_bucket",
    "max_indexes": "max_indexes_per_bucket",
    "segment": "delayed_delivery_max_indexes_per_bucket_snapshot_segment",
    "segment_seconds": "delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds",
}
"""The settings of a bucket tracker by the options of ``build-index``."""

jobs: Final = typer.Typer(no_args_is_help=True, help="Jobs over traces, metadata and cursors, run with PySpark.")


@jobs.command()
def accuracy(
    paths: _Paths,
    *,
    early: Annotated[float, typer.Option(help="An arrival is early if it is this many seconds too early.")] = 1.0,
    late: Annotated[float, typer.Option(help="An arrival is late if it is this many seconds too late.")] = 1.0,
    starvation: Annotated[float, typer.Option(help="Seconds without a redelivery that are reported.")] = 1.0,
    event: Annotated[str, typer.Option(help="'arrive', or 'redeliver' for traces without arrivals.")] = "arrive",
    include_open: _IncludeOpen = False,
    master: _Master = None,
    out: _Out = None,
    overwrite: _Overwrite = False,
    json: _AsJson = False,
) -> None:
    """Show how early and late messages came back, and when messages were due but none came."""
    with _session(master) as spark:
        _refuse_existing(spark, out, overwrite=overwrite)
        read = pipeline.read_traces(spark, paths, include_open=include_open)
        found = pipeline.accuracy(read.traces, early=early, late=late, starvation=starvation, event=event)
        _report_refused(read, out)
        tables = {
            "lateness": found.lateness.orderBy("topic", "subscription", "delay_class", "attempt"),
            "starvation": found.starvation.orderBy("topic", "subscription", "from_ms"),
            "beyond": found.beyond,
        }
        write_or_print(tables, out=out, as_json=json)


@jobs.command()
def retries(
    paths: _Paths,
    *,
    poison_at: Annotated[int, typer.Option(help="Nacks after which an unacknowledged message is poison.")] = 5,
    window: Annotated[float, typer.Option(help="Seconds of a window in which nacks are counted.")] = 10.0,
    baseline: Annotated[int, typer.Option(help="Earlier windows that a window is compared with.")] = 30,
    factor: Annotated[float, typer.Option(help="A storm has this many times the nacks of the baseline.")] = 5.0,
    min_nacks: Annotated[int, typer.Option(help="A storm has at least this many nacks in a window.")] = 100,
    include_open: _IncludeOpen = False,
    master: _Master = None,
    out: _Out = None,
    overwrite: _Overwrite = False,
    json: _AsJson = False,
) -> None:
    """Show attempts until success, poison messages, storms of nacks, dead letters by reason and wasted deliveries.

    The chain of each message is written with --out, and not shown.
    """
    with _session(master) as spark:
        _refuse_existing(spark, out, overwrite=overwrite)
        read = pipeline.read_traces(spark, paths, include_open=include_open)
        found = pipeline.retries(
            read.traces, poison_at=poison_at, window=window, baseline=baseline, factor=factor, min_nacks=min_nacks
        )
        _report_refused(read, out)
        tables = {
            "attempts": found.attempts.orderBy("topic", "subscription", "outcome", "nacks"),
            "poison": found.poison.orderBy("nacks", ascending=False),
            "storms": found.storms.orderBy("topic", "subscription", "from_ms"),
            "dead_letters": found.dead_letters.orderBy("topic", "subscription", "reason"),
            "waste": found.waste.orderBy("topic", "subscription"),
        }
        write_or_print(tables if out is None else {"chains": found.chains, **tables}, out=out, as_json=json)


@jobs.command()
def plan(
    paths: _Paths,
    *,
    delayed: Annotated[
        bool, typer.Option("--delayed", help="The paths hold metadata of delayed messages, as Parquet, not traces.")
    ] = False,
    max_bits: Annotated[int, typer.Option(help="Try buckets of 1 to 2**n ms.")] = 16,
    include_open: _IncludeOpen = False,
    master: _Master = None,
    out: _Out = None,
    overwrite: _Overwrite = False,
    json: _AsJson = False,
) -> None:
    """Show the memory that buckets of each width take when most messages wait, and recommend a width for each topic.

    Nothing is estimated: the messages that waited are put into the library's own index. Formulas are shown beside it.
    """
    with _session(master) as spark:
        _refuse_existing(spark, out, overwrite=overwrite)
        read = None if delayed else pipeline.read_traces(spark, paths, include_open=include_open)
        df = _read_parquet(spark, paths) if read is None else read.traces
        planned = pipeline.plan(df, max_bits=max_bits).cache()
        if read is not None:
            _report_refused(read, out)
        tables = {
            "plan": planned.orderBy("topic", "partition", "subscription", "bits"),
            "best": planned.where("is_recommended").select("topic", "partition", "subscription", "bits", "reason"),
        }
        write_or_print(tables, out=out, as_json=json)


@jobs.command()
def build_index(
    paths: _Paths,
    *,
    out: Annotated[Path, typer.Option(help="The tracker's folder, which is created.", show_default=False)],
    min_indexes: Annotated[int, typer.Option(help="Indexes from which a bucket ends at the end of a ledger.")] = 50_000,
    max_indexes: Annotated[
        int | None, typer.Option(help="Indexes at which a bucket ends anywhere.", show_default="twice --min-indexes")
    ] = None,
    segment: Annotated[int, typer.Option(help="Indexes in a segment at most; -1: no limit.")] = 5_000,
    segment_seconds: Annotated[float, typer.Option(help="Seconds that the times of a segment span at most.")] = 300,
    delayed_only: Annotated[
        bool, typer.Option("--delayed-only", help="Leave out rows without a time, or with a negative one.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an index that exists.")] = False,
    master: _Master = None,
    json: _AsJson = False,
) -> None:
    """Build the index of a bucket tracker from metadata, for BucketDelayedDeliveryTracker.open_local.

    Reads Parquet with the columns ledger_id, entry_id and deliver_at (epoch ms). The folder appears at the end, whole.
    """
    config = _bucket_config(
        min_indexes=min_indexes, max_indexes=max_indexes, segment=segment, segment_seconds=segment_seconds
    )
    with _session(master) as spark:
        df = _read_parquet(spark, paths)
        if delayed_only and "deliver_at" in df.columns:
            df = df.where("deliver_at >= 0")
        built = pipeline.build_index(spark, df, out, config, overwrite=overwrite)
    if json:
        print_json(asdict(built))
    else:
        typer.echo(
            f"{built.rows:,} messages in {built.buckets:,} buckets and {built.segments:,} segments, "
            f"{built.bytes:,} bytes, in {built.path}"
        )


@jobs.command()
def holes(
    paths: Annotated[list[str], typer.Argument(help="Cursor folders or local topics on this machine.")],
    *,
    stats: Annotated[
        bool, typer.Option("--stats", help="The paths hold internal statistics of brokers, as JSON.")
    ] = False,
    limit: Annotated[int, typer.Option(help="maxPerCursorMetadataSizeInBytes; below 1: none.")] = _LIMIT,
    master: _Master = None,
    out: _Out = None,
    overwrite: _Overwrite = False,
    json: _AsJson = False,
) -> None:
    """Show the holes of each subscription: their size on storage, their growth, and the ledgers that they pin.

    The tables are 'subscriptions', the latest state of each, largest first; 'history', with --out and --json, all
    states; and 'quarantine', what could not be read. Exit code 1: a subscription is near the gate or beyond.
    """
    with _session(master) as spark:
        from ..pipeline.schemas import HOLES_SHOWN

        _refuse_existing(spark, out, overwrite=overwrite)
        read = (pipeline.read_internal_stats if stats else pipeline.read_cursors)(spark, paths)
        found = pipeline.holes(read.holes, limit=limit).cache()
        latest = found.where("is_latest").orderBy("bytes", ascending=False)
        tables = {"subscriptions": latest, "history": found, "quarantine": read.quarantine}
        if out is None and not json:
            tables = {"subscriptions": latest.select(*HOLES_SHOWN), "quarantine": read.quarantine}
        write_or_print(tables, out=out, as_json=json)
        is_risky = not latest.where("risk != 'none'").isEmpty()
    if is_risky:
        raise typer.Exit(1)


@jobs.command()
def watch(
    folder: Annotated[Path, typer.Argument(help="The folder of traces.")],
    *,
    checkpoint: Annotated[Path, typer.Option(help="Folder of the state to resume from; created if it is missing.")],
    bound: Annotated[float, typer.Option(help="Seconds after its deadline when a message counts as overdue.")] = 1.0,
    lateness: Annotated[float, typer.Option(help="Seconds to wait for events that come out of order.")] = 60.0,
    until: Annotated[str, typer.Option(help="What counts as back: 'redeliver' or 'arrive'.")] = "redeliver",
    clock: Annotated[str, typer.Option(help="Which time raises alerts: 'event' or 'wall'.")] = "event",
    rates: Annotated[bool, typer.Option("--rates", help="Report rates in windows of time, not alerts.")] = False,
    window: Annotated[float, typer.Option(help="With --rates: seconds of a window.")] = 60.0,
    sink: Annotated[str, typer.Option(help="'console' or 'parquet'.")] = "console",
    out: Annotated[Path | None, typer.Option(help="With --sink parquet: the folder.")] = None,
    every: Annotated[float, typer.Option(help="Seconds between two scans of the folder.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="End when all closed files were read.")] = False,
    master: _Master = None,
) -> None:
    """Raise an alert for each nacked message that is overdue: not back by its deadline and a bound.

    A restart with the same checkpoint resumes, and raises no alert twice. Invalid lines are reported with the reason:
    on the console, or in a folder beside that of --out, OUT-refused.
    """
    if sink not in _SINKS or (sink == "parquet") != (out is not None):
        raise InvalidArgumentError("sink", sink, "console, or parquet with --out")
    if not folder.is_dir():
        raise InvalidArgumentError("folder", str(folder), "a folder that exists")
    late_ms, every_ms = delay_ms(lateness, "lateness"), delay_ms(every, "every")
    bound_ms, window_ms = delay_ms(bound, "bound"), positive_delay_ms(window, "window")
    with _session(master) as spark:
        pipeline.register_source(spark)
        read = pipeline.split_source(spark.readStream.format("pulsar_nack_trace").load(str(folder)))
        if rates:
            found = pipeline.watch_rates(read.traces, window_ms=window_ms, lateness_ms=late_ms)
        else:
            found = pipeline.watch(read.traces, bound_ms=bound_ms, lateness_ms=late_ms, until=until, clock=clock)
        refused_to = "console" if out is None else out.with_name(f"{out.name}-refused")
        spark.streams.resetTerminated()  # so that an earlier query of the session that failed does not count
        queries = [
            pipeline.start_watch(found, out or "console", checkpoint / "found", once=once, every_ms=every_ms),
            pipeline.start_watch(read.quarantine, refused_to, checkpoint / "refused", once=once, every_ms=every_ms),
        ]
        try:
            while any(query.isActive for query in queries):
                spark.streams.awaitAnyTermination()
                spark.streams.resetTerminated()
                _raise_failures(queries)
            _raise_failures(queries)
        finally:
            for query in queries:
                query.stop()


def _raise_failures(queries: Sequence[StreamingQuery]) -> None:
    """Raise the error of a query that failed."""
    for query in queries:
        failure = query.exception()
        if failure is not None:
            raise failure


@jobs.command()
def report(
    paths: _Paths,
    *,
    out: Annotated[Path, typer.Option(help="The HTML file to write.", show_default=False)],
    cursors: Annotated[list[str] | None, typer.Option(help="Cursor folders, for holes. Repeatable.")] = None,
    stats: Annotated[list[str] | None, typer.Option(help="Internal statistics of brokers, for holes.")] = None,
    with_plan: Annotated[bool, typer.Option("--plan", help="Also plan the width of buckets.")] = False,
    title: Annotated[str, typer.Option(help="Title of the page.")] = "pulsar-nack report",
    include_open: _IncludeOpen = False,
    overwrite: _Overwrite = False,
    master: _Master = None,
) -> None:
    """Write a report on traces: events, accuracy of redelivery, retries, and if wanted holes and a plan.

    The page is one file: it needs no network, no script and no other file.
    """
    if out.exists() and not overwrite:
        raise InvalidArgumentError("out", str(out), "a file that does not exist yet (or --overwrite)")
    with _session(master) as spark:
        read = pipeline.read_traces(spark, paths, include_open=include_open)
        _report_refused(read)
        traces = read.traces.cache()
        states = [pipeline.read_cursors(spark, cursors).holes] if cursors else []
        states += [pipeline.read_internal_stats(spark, stats).holes] if stats else []
        state = states[0] if len(states) == 1 else states[0].unionByName(states[1]) if states else None
        found = None if state is None else pipeline.holes(state).cache()
        planned = pipeline.plan(traces).where("is_recommended") if with_plan else None
        html = pipeline.report(traces, holes=found, plan=planned, title=title)
        pipeline.write_report(html, out, overwrite=overwrite)
    typer.echo(f"written: {out}")


# --- the session, and arguments ---------------------------------------------------------------------------------------


@contextmanager
def _session(master: str | None) -> Iterator[SparkSession]:
    """Give the running Spark _session, or start one and stop it at the end."""
    start = pipeline.local_session  # raises MissingExtraError without PySpark
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    spark = running or start(master)
    try:
        yield spark
    finally:
        if running is None:
            spark.stop()


def _refuse_existing(spark: SparkSession, out: str | None, *, overwrite: bool) -> None:
    """Refuse an output folder that exists, without ``overwrite``; called before anything is read or written."""
    if out is None or overwrite:
        return
    jvm: Any = spark.sparkContext._jvm
    path = jvm.org.apache.hadoop.fs.Path(out)
    if path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()).exists(path):
        raise InvalidArgumentError("out", out, "a folder that does not exist yet (or --overwrite)")


def _read_parquet(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Return the rows of Parquet files, or of folders of them.

    :raises InvalidArgumentError: a path does not exist, or holds no Parquet
    """
    from pyspark.errors import AnalysisException

    try:
        return spark.read.parquet(*paths)
    except AnalysisException as error:
        raise InvalidArgumentError("paths", ", ".join(paths), "Parquet files that exist, or folders of them") from error


def _report_refused(read: pipeline.Read, out: str | None = None) -> None:
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


def _bucket_config(**options: float | None) -> BucketConfig:
    """Return the config of options.

    :raises InvalidArgumentError: names the option that is wrong
    """
    try:
        return model_of(BucketConfig, {_BUCKET_SETTINGS[name]: value for name, value in options.items()})
    except InvalidArgumentError as error:
        name = next(name for name, setting in _BUCKET_SETTINGS.items() if setting == error.field)
        raise InvalidArgumentError(name, error.value, error.expected) from None
