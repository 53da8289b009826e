"""``pulsar-nack pipeline report``: one HTML file on what traces tell."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import InvalidArgumentError
from ._pipeline_shared import IncludeOpen, Master, Overwrite, Paths, read, session


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report")(report)


def report(
    paths: Paths,
    *,
    out: Annotated[Path, typer.Option(help="The HTML file to write.", show_default=False)],
    cursors: Annotated[list[str] | None, typer.Option(help="Cursor folders, for holes. Repeatable.")] = None,
    stats: Annotated[list[str] | None, typer.Option(help="Internal stats of brokers, for holes.")] = None,
    with_plan: Annotated[bool, typer.Option("--plan", help="Plan the width of buckets too.")] = False,
    title: Annotated[str, typer.Option(help="Title of the page.")] = "pulsar-nack report",
    include_open: IncludeOpen = False,
    overwrite: Overwrite = False,
    master: Master = None,
) -> None:
    """Write a report on traces: what happened, how accurate redelivery was, retries, and holes and a plan if wanted.

    The page holds everything that it shows: it needs no network, no script and no other file.
    """
    if out.exists() and not overwrite:
        raise InvalidArgumentError("out", str(out), "a file that does not exist yet (or --overwrite)")
    with session(master) as spark:
        from ..pipeline import holes, plan, read_cursors, read_internal_stats, write_report
        from ..pipeline import report as make

        traces = read(spark, paths, include_open=include_open).cache()
        states = [read_cursors(spark, cursors).holes] if cursors else []
        states += [read_internal_stats(spark, stats).holes] if stats else []
        found = holes(states[0] if len(states) == 1 else states[0].unionByName(states[1])).cache() if states else None
        planned = plan(traces).where("is_recommended") if with_plan else None
        write_report(make(traces, holes=found, plan=planned, title=title), out, overwrite=overwrite)
    typer.echo(f"written: {out}")
