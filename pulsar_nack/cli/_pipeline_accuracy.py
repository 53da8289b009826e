"""``pulsar-nack pipeline accuracy``: how early and how late messages came back."""

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


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("accuracy")(accuracy)


def accuracy(
    paths: Paths,
    *,
    early: Annotated[float, typer.Option(help="Seconds before the deadline beyond which an arrival is early.")] = 1.0,
    late: Annotated[float, typer.Option(help="Seconds after it beyond which one is late.")] = 1.0,
    starvation: Annotated[float, typer.Option(help="Seconds without a redelivery that are reported.")] = 1.0,
    event: Annotated[str, typer.Option(help="'arrive', or 'redeliver' in traces that know no arrivals.")] = "arrive",
    include_open: IncludeOpen = False,
    master: Master = None,
    out: Out = None,
    overwrite: Overwrite = False,
    json: AsJson = False,
) -> None:
    """Show how early and late messages came back, and when nothing came although something was due."""
    with session(master) as spark:
        from ..pipeline import accuracy as find
        from ..pipeline import read_traces

        refuse_existing(spark, out, overwrite=overwrite)
        read = read_traces(spark, paths, include_open=include_open)
        found = find(read.traces, early=early, late=late, starvation=starvation, event=event)
        tell_refused(read, out)
        tables = {
            "lateness": found.lateness.orderBy("topic", "subscription", "delay_class", "attempt"),
            "starvation": found.starvation.orderBy("topic", "subscription", "from_ms"),
            "beyond": found.beyond,
        }
        deliver(tables, out=out, as_json=json)
