"""``pulsar-nack pipeline build-index``: the index of delayed messages, from their metadata."""

from __future__ import annotations

import json as json_format
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ..config import BucketConfig
from ._pipeline_shared import AsJson, Master, Paths, session


def register(jobs: typer.Typer) -> None:
    """Add the command."""
    jobs.command("build-index")(_build_index)


def _build_index(
    paths: Paths,
    *,
    out: Annotated[Path, typer.Option(help="The folder to make: that of the tracker.", show_default=False)],
    least: Annotated[int, typer.Option(help="A bucket ends with its ledger when it has so many indexes.")] = 50_000,
    most: Annotated[
        int | None, typer.Option(help="A bucket ends when it has so many.", show_default="twice the least")
    ] = None,
    segment: Annotated[int, typer.Option(help="Most indexes in a segment; -1: no bound.")] = 5_000,
    segment_seconds: Annotated[float, typer.Option(help="The times of a segment are less than this apart.")] = 300,
    delayed_only: Annotated[
        bool, typer.Option("--delayed-only", help="Leave out rows without a time, or with a negative one.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an index that is there.")] = False,
    master: Master = None,
    json: AsJson = False,
) -> None:
    """Build the index of a bucket tracker from metadata, for BucketDelayedDeliveryTracker.open_local.

    Reads Parquet with the columns ledger_id, entry_id and deliver_at (epoch ms). The folder appears at the end, whole.
    """
    config = BucketConfig(
        delayed_delivery_min_index_count_per_bucket=least,
        max_indexes_per_bucket=most,
        delayed_delivery_max_indexes_per_bucket_snapshot_segment=segment,
        delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds=segment_seconds,
    )
    with session(master) as spark:
        from ..pipeline import build_index

        df = spark.read.parquet(*paths)
        if delayed_only and "deliver_at" in df.columns:
            df = df.where("deliver_at >= 0")
        built = build_index(spark, df, out, config, overwrite=overwrite)
    if json:
        typer.echo(json_format.dumps(asdict(built) | {"path": str(built.path)}, indent=2))
    else:
        typer.echo(
            f"{built.rows:,} messages in {built.buckets:,} buckets and {built.segments:,} segments, "
            f"{built.bytes:,} bytes, in {built.path}"
        )
