"""``pulsar-nack pipeline retries``: how often messages were tried, and what came of it."""

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
    app.command("retries")(retries)


def retries(
    paths: Paths,
    *,
    poison_at: Annotated[int, typer.Option(help="Nacks from which a message that was not acked is poison.")] = 5,
    window: Annotated[float, typer.Option(help="Seconds over which nacks are counted.")] = 10.0,
    baseline: Annotated[int, typer.Option(help="Windows before it that one is compared with.")] = 30,
    factor: Annotated[float, typer.Option(help="How many times the baseline make a storm.")] = 5.0,
    least: Annotated[int, typer.Option(help="Nacks in a window below which there is no storm.")] = 100,
    include_open: IncludeOpen = False,
    master: Master = None,
    out: Out = None,
    overwrite: Overwrite = False,
    json: AsJson = False,
) -> None:
    """Show attempts until success, poison messages, storms of nacks, dead letters by reason and wasted deliveries.

    The chain of each message is written with --out, and not shown.
    """
    with session(master) as spark:
        from ..pipeline import read_traces
        from ..pipeline import retries as find

        refuse_existing(spark, out, overwrite=overwrite)
        read = read_traces(spark, paths, include_open=include_open)
        found = find(read.traces, poison_at=poison_at, window=window, baseline=baseline, factor=factor, least=least)
        tell_refused(read, out)
        tables = {
            "attempts": found.attempts.orderBy("topic", "subscription", "outcome", "nacks"),
            "poison": found.poison.orderBy("nacks", ascending=False),
            "storms": found.storms.orderBy("topic", "subscription", "from_ms"),
            "dead_letters": found.dead_letters.orderBy("topic", "subscription", "reason"),
            "waste": found.waste.orderBy("topic", "subscription"),
        }
        deliver(tables if out is None else {"chains": found.chains, **tables}, out=out, as_json=json)
