"""``pulsar-nack pipeline watch``: alerts for messages that are not back in time, while traces grow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InvalidArgumentError
from ._pipeline_shared import Master, session

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_SINKS = ("console", "parquet")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("watch")(watch)


def watch(
    folder: Annotated[Path, typer.Argument(help="The folder of traces.")],
    *,
    checkpoint: Annotated[Path, typer.Option(help="Where to go on after a restart; made if it is not there.")],
    bound: Annotated[float, typer.Option(help="Seconds that a message may be back after its deadline.")] = 1.0,
    lateness: Annotated[float, typer.Option(help="Seconds that events may come after newer ones.")] = 60.0,
    until: Annotated[str, typer.Option(help="What ends waiting: 'redeliver' or 'arrive'.")] = "redeliver",
    clock: Annotated[str, typer.Option(help="Which time raises alerts: 'event' or 'wall'.")] = "event",
    rates: Annotated[bool, typer.Option("--rates", help="Tell rates in windows of time, not alerts.")] = False,
    window: Annotated[float, typer.Option(help="With --rates: seconds of a window.")] = 60.0,
    sink: Annotated[str, typer.Option(help="'console' or 'parquet'.")] = "console",
    out: Annotated[Path | None, typer.Option(help="With --sink parquet: the folder.")] = None,
    every: Annotated[float, typer.Option(help="Seconds between two looks at the folder.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="End when all that is there was read.")] = False,
    master: Master = None,
) -> None:
    """Raise an alert for each nacked message that is not back by its deadline and a bound more.

    Started again with the same checkpoint it goes on where it was, and raises no alert twice. Lines that are no events
    are told too, with the reason: on the console, or in a folder beside that of --out, OUT-refused.
    """
    if sink not in _SINKS or (sink == "parquet") != (out is not None):
        raise InvalidArgumentError("sink", sink, "console, or parquet with --out")
    if not folder.is_dir():
        raise InvalidArgumentError("folder", str(folder), "a folder that exists")
    with session(master) as spark:
        from ..pipeline import register_source, split_source, start_watch, watch_rates
        from ..pipeline import watch as find

        register_source(spark)
        read = split_source(spark.readStream.format("pulsar_nack_trace").load(str(folder)))
        traces, every_ms = read.traces, round(every * 1_000)
        late_ms = round(lateness * 1_000)
        if rates:
            found = watch_rates(traces, window_ms=round(window * 1_000), lateness_ms=late_ms)
        else:
            found = find(traces, bound_ms=round(bound * 1_000), lateness_ms=late_ms, until=until, clock=clock)
        refused_to = "console" if out is None else out.with_name(f"{out.name}-refused")
        spark.streams.resetTerminated()  # lest the failure of an earlier query of the session counts as one of these
        queries = [
            start_watch(found, out or "console", checkpoint / "found", once=once, every_ms=every_ms),
            start_watch(read.quarantine, refused_to, checkpoint / "refused", once=once, every_ms=every_ms),
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
    """Raise what ended one of them, if it did not end by itself."""
    for query in queries:
        failure = query.exception()
        if failure is not None:
            raise failure
