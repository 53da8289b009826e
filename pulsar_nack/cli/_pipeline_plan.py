"""``pulsar-nack pipeline plan``: which width of buckets to take, from what really came."""

from __future__ import annotations

from typing import Annotated

import typer

from ._pipeline_shared import (
    AsJson,
    IncludeOpen,
    Master,
    Out,
    Overwrite,
    Paths,
    deliver,
    refuse_existing,
    session,
    tell_refused,
)


def register(jobs: typer.Typer) -> None:
    """Add the command."""
    jobs.command("plan")(_plan)


def _plan(
    paths: Paths,
    *,
    delayed: Annotated[
        bool, typer.Option("--delayed", help="The paths hold metadata of delayed messages, as Parquet, not traces.")
    ] = False,
    max_bits: Annotated[int, typer.Option(help="Try buckets of 1 to 2**n ms.")] = 16,
    include_open: IncludeOpen = False,
    master: Master = None,
    out: Out = None,
    overwrite: Overwrite = False,
    json: AsJson = False,
) -> None:
    """Tell what buckets of each width take for what waited when most did, and recommend one for each topic.

    Nothing is estimated: what waited is built into the library's own index. Formulas stand beside it.
    """
    with session(master) as spark:
        from ..pipeline import plan, read_traces

        refuse_existing(spark, out, overwrite=overwrite)
        read = None if delayed else read_traces(spark, paths, include_open=include_open)
        df = spark.read.parquet(*paths) if read is None else read.traces
        planned = plan(df, max_bits=max_bits).cache()
        if read is not None:
            tell_refused(read, out)
        best = planned.where("is_recommended").select("topic", "partition", "subscription", "bits", "reason")
        deliver(
            {"plan": planned.orderBy("topic", "partition", "subscription", "bits"), "best": best}, out=out, as_json=json
        )
