"""What the demo shows in the terminal: progress on stderr, the table on stdout."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from ._columns import columns, milliseconds, span
from ._figures import MARGIN, Figures, Row
from ._journal import Journal
from ._play import OFFICIAL, Watch
from ._play_local import Restart

_WIDTH: Final = 100  # where stdout is not a terminal


@contextlib.contextmanager
def progress(messages: int) -> Iterator[Watch]:
    """Show bars for as long as the block runs; nothing where stderr is not a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description:<22}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        nacked = bars.add_task("nacked", total=messages)

        def watch(journals: Sequence[Journal]) -> None:
            of_all = (len(journal.failures) for journal in journals if journal.expected == messages)
            bars.update(nacked, completed=min(of_all))
            for journal in journals:
                if journal.name not in tasks:
                    tasks[journal.name] = bars.add_task(f"back: {journal.name}", total=journal.expected)
                bars.update(tasks[journal.name], completed=journal.back)

        yield watch


def show(figures: Sequence[Figures], restart: Restart | None) -> None:
    """Print the table and what it says."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH)
    if any(each.name == OFFICIAL for each in figures):
        console.print(columns(figures))
        console.print("The official client has one delay; each nack starts its only timer anew.")
        return
    console.print(_table(figures))
    for each in figures:
        total = each.total
        console.print(
            f"[bold]{each.name}[/bold]: {total.back_meanwhile} of {total.due_meanwhile} back in the meantime, "
            f"{each.missing} missing, {each.shown_twice} shown twice"
        )
    if restart is not None:
        console.print(
            f"Topic and consumer were closed and opened again after {restart.at_s:.1f} s, "
            f"in {restart.took_ms:,.0f} ms, while {restart.nacked} nacked and {restart.delayed} delayed messages "
            "were waiting; these kept their times, or came right after it."
        )


def _table(figures: Sequence[Figures]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        caption="error: between asked and actual delay, either way, in ms\n"
        f"meantime: back while nacks came, of those due {MARGIN:g} s before the last one",
        caption_justify="left",
    )
    table.add_column("asked (s)", no_wrap=True)
    for heading in ("count", "back after (s)", "error p50", "p99", "max", "meantime"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in figures:
        table.add_section()
        table.add_row(f"[bold]{each.name}[/bold]")
        for row in each.rows:
            table.add_row(*_cells(row, span(row.asked_from_ms, row.asked_to_ms)))
        if len(each.rows) > 1:
            table.add_row(*_cells(each.total, "all"), style="bold")
    return table


def _cells(row: Row, asked: str) -> tuple[str, ...]:
    return (
        f"  {asked}",
        str(row.messages),
        "-" if row.actual_min_ms is None else span(row.actual_min_ms, row.actual_max_ms),
        milliseconds(row.error_p50_ms),
        milliseconds(row.error_p99_ms),
        milliseconds(row.error_max_ms),
        f"{row.back_meanwhile} of {row.due_meanwhile}",
    )
