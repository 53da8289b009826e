"""``pulsar-nack plan``: how much memory pending nacks or delayed messages take, and which buckets to choose."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ..errors import InvalidArgumentError
from ..planning import (
    BucketLoad,
    BucketPlan,
    BucketSize,
    Kind,
    Plan,
    PlanRow,
    Workload,
    format_size,
    make_bucket_plan,
    make_plan,
)
from ._terminal import open_console, print_json, require

if TYPE_CHECKING:
    from rich.table import Table

_DEFAULT_BITS: Final = {Kind.NACK: 8, Kind.DELAYED: 9}
_MIB: Final = 1 << 20
_MEMORY_MIB: Final = 30
_SUFFIXES: Final = (".png", ".svg", ".pdf")
_WIDTH: Final = 110
_COLUMNS: Final = (
    *("bits", "bucket ms", "in a bucket", "wake-ups/s", "pulsar-nack", "B/message", "proposal", "its limit", ""),
)
_WIDE_ONLY: Final = (2, 7)
"""The columns that a narrow terminal has no room for."""
_BUCKET_COLUMNS: Final = ("buckets", "in each", "segments", "adding", "delivering", "on storage", "written", "")
_OLD_NAMES: Final = {Kind.NACK: "A map of ids", Kind.DELAYED: "A heap"}


def plan(
    *,
    kind: Annotated[
        Kind | None, typer.Option(help="What the messages wait for.", show_default="nack; delayed with --bucket")
    ] = None,
    rate: Annotated[float, typer.Option(help="Messages per second of the whole stream.")] = 10_000,
    delay: Annotated[float, typer.Option(help="Seconds that a message waits.")] = 60,
    bits: Annotated[
        int | None, typer.Option(help="Buckets of 2**bits ms.", show_default="8 for nacks; 9, a tick of 1 s, else")
    ] = None,
    share: Annotated[float, typer.Option(help="Share of the messages that are nacked or delayed, up to 1.")] = 1,
    entries_per_ledger: Annotated[int, typer.Option(help="Entries per ledger.")] = 50_000,
    batch_size: Annotated[int, typer.Option(help="Messages per entry.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw memory over bits to this .png, .svg or .pdf file.")] = None,
    bucket: Annotated[
        bool, typer.Option("--bucket", help="Plan the bucket tracker, which keeps delayed messages on storage.")
    ] = False,
    memory: Annotated[
        float | None, typer.Option(help="With --bucket: MiB that the tracker may take.", show_default="30")
    ] = None,
    scattered: Annotated[
        bool, typer.Option("--scattered", help="With --bucket: deadlines in any order, spread over --delay.")
    ] = False,
) -> None:
    """Predict the memory that waiting messages take, for each width of time buckets, and recommend a width.

    For a steady stream in order and one delay. The formulas of Pulsar's proposals (PIP-393 and the time-bucket
    tracker) and the structures before them are shown for comparison.

    With --bucket: how many sealed buckets to keep (PIP-195), how large their segments should be, and what they take.
    """
    if bucket:
        _refuse("not to be given with --bucket", bits=bits, plot=plot, kind=None if kind is Kind.DELAYED else kind)
        workload = Workload(Kind.DELAYED, rate, delay, share, entries_per_ledger, batch_size)
        planned = make_bucket_plan(BucketLoad(workload, scattered), (_MEMORY_MIB if memory is None else memory) * _MIB)
        if json:
            print_json(planned.as_dict())
        else:
            _show_buckets(planned)
        return
    _refuse("to be given with --bucket only", memory=memory, scattered=scattered or None)
    kind = Kind.NACK if kind is None else kind
    if plot is not None and plot.suffix.lower() not in _SUFFIXES:
        raise InvalidArgumentError("plot", str(plot), f"a file that ends in {', '.join(_SUFFIXES)}")
    workload = Workload(kind, rate, delay, share, entries_per_ledger, batch_size)
    made = make_plan(workload, _DEFAULT_BITS[kind] if bits is None else bits)
    if json:
        print_json(made.as_dict())
    else:
        _show(made)
    if plot is not None:
        _draw(made, plot)


def _refuse(why: str, **options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise InvalidArgumentError(name, str(value), why)


# --- as text ----------------------------------------------------------------------------------------------------------


def _show(made: Plan) -> None:
    require("rich", "plan (but for --json)", "cli")
    console = open_console(_WIDTH)
    old = " to ".join(dict.fromkeys(map(format_size, made.old_bytes)))
    asked = made.asked
    console.print(_headline(made))
    console.print(
        f"With {made.bits} bits, buckets of {asked.width_ms} ms: [bold]{format_size(asked.bytes)}[/], "
        f"{asked.bytes_per_message:.3g} bytes a message. Proposal: {format_size(asked.proposal_bytes)}. "
        f"{_OLD_NAMES[made.workload.kind]}: {old}.\n"
    )
    console.print(_table(made, is_narrow=console.width < _WIDTH))
    best = made.recommendation
    console.print(f"\n[bold]Recommended: {best.bits} bits.[/] {best.reason}")
    console.print(
        "For messages in order with one delay; out of order, or with scattered delays, expect a few bytes more per "
        "message.",
        style="dim",
    )


def _headline(made: Plan) -> str:
    workload = made.workload
    waiting = "nacked" if workload.kind == Kind.NACK else "delayed"
    return (
        f"{made.pending:,.0f} messages wait at once: {workload.rate:,.10g} a second, {100 * workload.share:.4g} % of "
        f"them {waiting}, for {workload.delay:,.10g} s each."
    )


def _table(made: Plan, *, is_narrow: bool) -> Table:
    left_out = _WIDE_ONLY if is_narrow else ()
    table = _new_table(column for place, column in enumerate(_COLUMNS) if place not in left_out)
    for row in made.rows:
        cells = [cell for place, cell in enumerate((*_cells(row), _note(made, row))) if place not in left_out]
        table.add_row(*cells, style=None if row.is_fine else "dim")
    return table


def _new_table(columns: Iterable[str]) -> Table:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, justify="left" if column == "" else "right", no_wrap=True)
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


def _show_buckets(made: BucketPlan) -> None:
    require("rich", "plan (but for --json)", "cli")
    console = open_console(_WIDTH)
    load, workload = made.load, made.load.workload
    order = "in any order" if load.is_scattered else "in the order of positions"
    console.print(
        f"{load.messages:,.0f} delayed messages wait, with deadlines over {workload.delay:,.10g} s {order}, in "
        f"{load.ledgers:,} ledgers; a bucket is sealed with {load.sealed:,.0f}.\n"
    )
    table = _new_table(_BUCKET_COLUMNS)
    for row in made.rows:
        table.add_row(*_bucket_cells(made, row), style=None if row.bytes <= made.memory_bytes else "dim")
    console.print(table)
    console.print(f"\n[bold]Recommended: at most {made.recommended.buckets:,}.[/] {made.reason}")
    console.print(
        "Adding: memory while messages are added and buckets merged. Delivering: the peak while they are delivered. "
        "Written: how often each message is written, merging included.",
        style="dim",
    )


def _bucket_cells(made: BucketPlan, row: BucketSize) -> tuple[str, ...]:
    return (
        f"{row.buckets:,}",
        f"{made.load.messages / row.buckets:,.0f}",
        f"{row.segments:,}",
        format_size(row.filling_bytes),
        format_size(row.draining_bytes),
        format_size(row.disk_bytes),
        f"{1 + row.rewrites:.1f} x",
        "recommended" if row.buckets == made.recommended.buckets else "",
    )


# --- as a picture -----------------------------------------------------------------------------------------------------


def _draw(plan: Plan, path: Path) -> None:
    """Draw memory over the width of buckets into a file of the kind that its name says; needs no display."""
    require("matplotlib", "plan --plot", "demo")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), dpi=130, layout="constrained")
    axes = figure.subplots()
    bits = [row.bits for row in plan.rows]
    low, high = (size / _MIB for size in plan.old_bytes)
    axes.fill_between(bits, low, high, color="0.8", linewidth=2, edgecolor="0.8", label="before the proposals")
    proposal = [row.proposal_bytes / _MIB for row in plan.rows]
    axes.plot(bits, proposal, color="#d55e00", marker="x", label="proposal's formula")
    axes.plot(bits, [row.bytes / _MIB for row in plan.rows], color="#0072b2", marker="o", label="pulsar-nack")
    best = plan.recommended
    axes.plot(
        [best.bits], [best.bytes / _MIB], "o", markersize=13, fillstyle="none", color="#009e73", label="recommended"
    )
    axes.set_yscale("log")
    axes.set_xlabel("bits (buckets of 2**bits ms)")
    axes.set_ylabel("memory (MiB)")
    workload = plan.workload
    axes.set_title(
        f"{plan.pending:,.0f} messages wait: {workload.rate:g} a second, share {workload.share:.3g}, "
        f"{workload.delay:g} s ({workload.kind})",
        fontsize=10,
    )
    axes.set_xticks(bits)
    axes.grid(visible=True, color="0.92")
    axes.set_axisbelow(True)
    axes.legend(fontsize=9)
    try:
        figure.savefig(path)
    except OSError as error:
        raise InvalidArgumentError("plot", str(path), f"a file that can be written ({error.strerror})") from error
