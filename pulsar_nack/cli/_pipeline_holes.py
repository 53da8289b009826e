"""``pulsar-nack pipeline holes``: what acknowledgements out of order leave behind, and who comes near to the gate."""

from __future__ import annotations

from typing import Annotated

import typer

from ..cursor._gate import DEFAULT_LIMIT
from ._pipeline_shared import AsJson, Master, Out, Overwrite, deliver, refuse_existing, session

_SHOWN = (
    *("topic", "subscription", "risk", "limit_share", "bytes", "bytes_per_s", "ranges", "holes", "unacked_below"),
    *("backlog", "oldest_ledger", "oldest_entry", "pinned_ledgers", "pinned_bytes", "ranges_lost"),
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("holes")(holes)


def holes(
    paths: Annotated[list[str], typer.Argument(help="Cursor folders or local topics, here on disk.")],
    *,
    stats: Annotated[bool, typer.Option("--stats", help="The paths hold internal stats of brokers, as JSON.")] = False,
    limit: Annotated[int, typer.Option(help="maxPerCursorMetadataSizeInBytes; below 1: none.")] = DEFAULT_LIMIT,
    master: Master = None,
    out: Out = None,
    overwrite: Overwrite = False,
    json: AsJson = False,
) -> None:
    """Show the holes of each subscription: what they take on storage, how that grows, and what they keep.

    The tables are 'subscriptions', the latest of each, largest first; 'history', with --out and --json, all of them;
    and 'quarantine', what could not be read. Exit code 1: a subscription is at risk of the gate.
    """
    with session(master) as spark:
        from ..pipeline import holes as find
        from ..pipeline import read_cursors, read_internal_stats

        refuse_existing(spark, out, overwrite=overwrite)
        read = (read_internal_stats if stats else read_cursors)(spark, paths)
        found = find(read.holes, limit=limit).cache()
        latest = found.where("is_latest").orderBy("bytes", ascending=False)
        tables = {"subscriptions": latest, "history": found, "quarantine": read.quarantine}
        if out is None and not json:
            tables = {"subscriptions": latest.select(*_SHOWN), "quarantine": read.quarantine}
        deliver(tables, out=out, as_json=json)
        is_risky = not latest.where("risk != 'none'").isEmpty()
    if is_risky:
        raise typer.Exit(1)
