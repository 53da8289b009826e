"""``pulsar-nack plan``: how much memory pending nacks or delayed messages take, and which buckets of time to choose."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from ..errors import InvalidArgumentError, MissingExtraError
from ..planning import Kind, Plan, PlanRow, Workload, format_size, make_plan

_DEFAULT_BITS: Final = {Kind.NACK: 8, Kind.DELAYED: 9}
_SUFFIXES: Final = (".png", ".svg", ".pdf")
_WIDTH: Final = 110


def plan(
    *,
    kind: Annotated[Kind, typer.Option(help="What the messages wait for.")] = Kind.NACK,
    rate: Annotated[float, typer.Option(help="Messages a second, of the whole stream.")] = 10_000,
    delay: Annotated[float, typer.Option(help="Seconds that a message waits.")] = 60,
    bits: Annotated[
        int | None, typer.Option(help="Buckets of 2**bits ms.", show_default="8 for nacks; 9, a tick of 1 s, else")
    ] = None,
    share: Annotated[float, typer.Option(help="Share of the messages that wait, up to 1.")] = 1,
    entries_per_ledger: Annotated[int, typer.Option(help="Entries that a ledger holds.")] = 50_000,
    batch_size: Annotated[int, typer.Option(help="Messages an entry.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw memory over bits into this .png, .svg or .pdf.")] = None,
) -> None:
    """Predict the memory for messages that wait, over all widths of time buckets, and recommend one.

    For a steady stream in order and one delay. Beside what pulsar-nack takes stand the formulas of Pulsar's
    proposals (PIP-393 and the time-bucket tracker) and what was there before them.
    """
    if plot is not None and plot.suffix.lower() not in _SUFFIXES:
        raise InvalidArgumentError("plot", str(plot), f"a file that ends in {', '.join(_SUFFIXES)}")
    workload = Workload(kind, rate, delay, share, entries_per_ledger, batch_size)
    made = make_plan(workload, _DEFAULT_BITS[kind] if bits is None else bits)
    if json:
        typer.echo(json_format.dumps(made.as_dict(), indent=2))
    else:
        _show(made)
    if plot is not None:
        _draw(made, plot)


def _show(made: Plan) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    old = " to ".join(dict.fromkeys(map(format_size, made.old_bytes)))
    asked = made.asked
    console.print(_headline(made))
    console.print(
        f"With {made.bits} bits, buckets of {asked.width_ms} ms: [bold]{format_size(asked.bytes)}[/], "
        f"{asked.bytes_per_message:.3g} bytes a message. Proposal: {format_size(asked.proposal_bytes)}. "
        f"{_OLD_NAMES[made.workload.kind]}: {old}.\n"
    )
    console.print(_table(made))
    best = made.recommendation
    console.print(f"\n[bold]Recommended: {best.bits} bits.[/] {best.reason}")
    console.print(
        "For messages in order with one delay each; out of order, or with scattered delays, expect up to some bytes "
        "a message more.",
        style="dim",
    )


_OLD_NAMES: Final = {Kind.NACK: "A map of ids", Kind.DELAYED: "A heap"}


def _headline(made: Plan) -> str:
    workload = made.workload
    waiting = "nacked" if workload.kind == Kind.NACK else "delayed"
    return (
        f"{made.pending:,.0f} messages wait at once: {workload.rate:,.10g} a second, {100 * workload.share:.4g} % of "
        f"them {waiting} by {workload.delay:,.10g} s."
    )


def _table(made: Plan) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    columns = (
        "bits",
        "bucket ms",
        "in a bucket",
        "wake-ups/s",
        "pulsar-nack",
        "B/message",
        "proposal",
        "its limit",
        "",
    )
    for column in columns:
        table.add_column(column, justify="left" if column == "" else "right", no_wrap=True)
    for row in made.rows:
        table.add_row(*_cells(row), _note(made, row), style=None if row.is_fine else "dim")
    return table


def _cells(row: PlanRow) -> tuple[str, ...]:
    return (
        str(row.bits),
        f"{row.width_ms:,}",
        f"{row.messages_per_bucket:,.{0 if row.messages_per_bucket >= 10 else 2}f}",
        f"{row.wake_ups_per_second:,.0f}" if row.wake_ups_per_second >= 100 else f"{row.wake_ups_per_second:.3g}",
        format_size(row.bytes),
        f"{row.bytes_per_message:.3g}",
        format_size(row.proposal_bytes),
        format_size(row.proposal_limit_bytes),
    )


def _note(made: Plan, row: PlanRow) -> str:
    notes = []
    if row.bits == made.recommendation.bits:
        notes.append("recommended")
    if row.bits == made.bits:
        notes.append("asked for")
    if not row.is_fine:
        notes.append("> delay / 8")
    return ", ".join(notes)


def _draw(made: Plan, path: Path) -> None:
    try:
        from ._plan_plot import save
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise MissingExtraError("plan --plot", "matplotlib", "demo") from error
    try:
        save(made, path)
    except OSError as error:
        raise InvalidArgumentError("plot", str(path), f"a file that can be written ({error.strerror})") from error
