"""A plan of buckets on storage as text for people."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.table import Table

from ..planning import BucketPlan, BucketSize, format_size

_WIDTH: Final = 110
_COLUMNS: Final = ("buckets", "in each", "segments", "adding", "delivering", "on storage", "written", "")


def show(made: BucketPlan) -> None:
    """Print to the terminal, or in a fixed width to where output is redirected."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(width=_WIDTH, highlight=False)
    load, workload = made.load, made.load.workload
    order = "in any order" if load.is_scattered else "in the order of positions"
    console.print(
        f"{load.messages:,.0f} delayed messages wait, with deadlines over {workload.delay:,.10g} s {order}, in "
        f"{load.ledgers:,} ledgers; a bucket is sealed with {load.sealed:,.0f}.\n"
    )
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column == "" else "right", no_wrap=True)
    for row in made.rows:
        table.add_row(*_cells(made, row), style=None if row.bytes <= made.memory_bytes else "dim")
    console.print(table)
    console.print(f"\n[bold]Recommended: at most {made.recommended.buckets:,}.[/] {made.reason}")
    console.print(
        "Adding: memory while messages are added and buckets merged. Delivering: at its largest while they come out. "
        "Written: how often merging writes each message.",
        style="dim",
    )


def _cells(made: BucketPlan, row: BucketSize) -> tuple[str, ...]:
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
