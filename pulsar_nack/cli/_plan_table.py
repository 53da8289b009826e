"""A plan as text for people."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.table import Table

from ..planning import Kind, Plan, PlanRow, format_size

_WIDTH: Final = 110
_LEFT_OUT: Final = (2, 7)
"""Columns that a narrow terminal has no room for."""
_OLD_NAMES: Final = {Kind.NACK: "A map of ids", Kind.DELAYED: "A heap"}


def show(made: Plan) -> None:
    """Print to the terminal, or in a fixed width to where output is redirected."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(width=_WIDTH, highlight=False)
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
        "For messages in order with one delay each; out of order, or with scattered delays, expect up to some bytes "
        "a message more.",
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
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    left_out = _LEFT_OUT if is_narrow else ()
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
    for place, column in enumerate(columns):
        if place not in left_out:
            table.add_column(column, justify="left" if column == "" else "right", no_wrap=True)
    for row in made.rows:
        cells = [cell for place, cell in enumerate((*_cells(row), _note(made, row))) if place not in left_out]
        table.add_row(*cells, style=None if row.is_fine else "dim")
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
