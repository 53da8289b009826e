"""The output of the demo: progress on stderr, a table, with a column for each consumer on a broker, and a picture."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from ._demo_figures import CLASSES, LONGEST, MARGIN, SHORTEST, Figures, Journal, Row
from ._demo_play import OFFICIAL, Restart, Watch
from ._terminal import open_console

_WIDTH: Final = 100  # if stdout is not a terminal
_TENTHS_BELOW_MS: Final = 10
_OFFICIAL_STYLE: Final = {"color": "#d55e00", "marker": "x", "s": 22, "zorder": 2, "linewidths": 1.1}
_STYLES: Final = (
    {"color": "#0072b2", "marker": "o", "s": 16, "zorder": 4},
    {"color": "#e69f00", "marker": "^", "s": 16, "zorder": 3},
)
_TICKS: Final = (0.1, 0.2, 0.5, 1, 2, 3, 5, 10, 20, 50)


@contextlib.contextmanager
def progress(messages: int) -> Iterator[Watch]:
    """Show progress bars while the block runs; nothing if stderr is not a terminal."""
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
    """Print the table and its conclusion."""
    console = open_console(_WIDTH)
    if any(each.name == OFFICIAL for each in figures):
        console.print(comparison(figures))
        console.print("The official client has one delay, and each nack restarts its only timer.")
        return
    console.print(_rows_by_delay(figures))
    for each in figures:
        total = each.total
        console.print(
            f"[bold]{each.name}[/bold]: {total.back_meanwhile} of {total.due_meanwhile} back in the meantime, "
            f"{each.missing} missing, {each.duplicates} duplicates"
        )
    if restart is not None:
        console.print(
            f"Topic and consumer were closed and opened again after {restart.at_s:.1f} s, "
            f"in {restart.took_ms:,.0f} ms, while {restart.nacked} nacked and {restart.delayed} delayed messages "
            "were waiting; these kept their times, or came right after it."
        )


def _new_table() -> Table:
    return Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        caption="error: between asked and actual delay, early or late, in ms\n"
        f"meantime: back while nacks came, of those due {MARGIN:g} s before the last one",
        caption_justify="left",
    )


# --- a row for each range of delays -----------------------------------------------------------------------------------


def _rows_by_delay(figures: Sequence[Figures]) -> Table:
    table = _new_table()
    table.add_column("asked (s)", no_wrap=True)
    for heading in ("count", "back after (s)", "error p50", "p99", "max", "meantime"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in figures:
        table.add_section()
        table.add_row(f"[bold]{each.name}[/bold]")
        for row in each.rows.values():
            table.add_row(*_cells(row, span(row.asked_from_ms, row.asked_to_ms)))
        if len(each.rows) > 1:
            table.add_row(*_cells(each.total, "all"), style="bold")
    return table


def _cells(row: Row, asked: str) -> tuple[str, ...]:
    return (
        f"  {asked}",
        str(row.messages),
        _back_after(row),
        milliseconds(row.error_p50_ms),
        milliseconds(row.error_p99_ms),
        milliseconds(row.error_max_ms),
        f"{row.back_meanwhile} of {row.due_meanwhile}",
    )


# --- a column for each consumer ---------------------------------------------------------------------------------------


def comparison(figures: Sequence[Figures]) -> Table:
    """Return the table of consumers that got the same messages, a column for each."""
    table = _new_table()
    table.add_column("", no_wrap=True)
    for each in figures:
        table.add_column(each.name, justify="right", no_wrap=True)
    table.add_row("asked (s)", *(span(each.total.asked_from_ms, each.total.asked_to_ms) for each in figures))
    table.add_row("messages", *(str(each.total.messages) for each in figures))
    table.add_row("back after (s)", *(_back_after(each.total) for each in figures))
    _add_errors(table, "error p50", figures, lambda row: row.error_p50_ms)
    _add_errors(table, "error p99", figures, lambda row: row.error_p99_ms)
    _add_errors(table, "error max", figures, lambda row: row.error_max_ms)
    table.add_section()
    table.add_row("meantime", *(f"{each.total.back_meanwhile} of {each.total.due_meanwhile}" for each in figures))
    table.add_row("missing", *(str(each.missing) for each in figures))
    table.add_row("duplicates", *(str(each.duplicates) for each in figures))
    return table


def _add_errors(table: Table, name: str, figures: Sequence[Figures], figure: Callable[[Row], float | None]) -> None:
    """Add a line for all messages, and one for each range of delays that a consumer had."""
    table.add_section()
    table.add_row(name, *(milliseconds(figure(each.total)) for each in figures), style="bold")
    for low, high in CLASSES:
        if any(low in each.rows for each in figures):
            cells = (milliseconds(figure(each.rows[low])) if low in each.rows else "-" for each in figures)
            table.add_row(f"  {low:g} to {high:g} s", *cells)


# --- cells ------------------------------------------------------------------------------------------------------------


def _back_after(row: Row) -> str:
    return "-" if row.actual_min_ms is None else span(row.actual_min_ms, row.actual_max_ms)


def span(low_ms: float, high_ms: float | None) -> str:
    """Return a range in seconds, or one value if both ends are equal."""
    low, high = f"{low_ms / 1000:.2f}", f"{(high_ms or low_ms) / 1000:.2f}"
    return low if low == high else f"{low} - {high}"


def milliseconds(ms: float | None) -> str:
    """Return a time for people, with tenths if it is short."""
    if ms is None:
        return "-"
    return f"{ms:.1f}" if ms < _TENTHS_BELOW_MS else f"{ms:,.0f}"


# --- the picture: actual over asked delay, and the lateness over the run ----------------------------------------------


def save(journals: Sequence[Journal], broker: str, path: Path) -> None:
    """Write the picture in the format that the file's suffix names; needs no display.

    :raises OSError: the file cannot be written
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), dpi=130, layout="constrained")
    left, right = figure.subplots(1, 2)
    _asked_and_actual(left, journals)
    _lateness(right, journals)
    figure.suptitle(f"Every message fails once while nacks keep coming ({broker})", fontsize=11)
    figure.savefig(path)


def _asked_and_actual(axes: Any, journals: Sequence[Journal]) -> None:
    points = [_points(journal) for journal in journals]
    longest = max([LONGEST, *(actual for group in points for _, _, actual in group)]) * 1.15
    ends = (SHORTEST * 0.85, longest)
    axes.plot(ends, ends, color="0.6", linewidth=1, label="as asked", zorder=1)
    for journal, group, style in zip(journals, points, _styles(journals), strict=True):
        axes.scatter([each[1] for each in group], [each[2] for each in group], label=_label(journal, group), **style)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(ends[0], LONGEST * 1.15)
    axes.set_ylim(*ends)
    for axis, last in ((axes.xaxis, LONGEST), (axes.yaxis, longest)):
        ticks = [tick for tick in _TICKS if tick <= last]
        axis.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
        axis.set_ticks([], minor=True)
    axes.set_title("Delay: asked and actual", fontsize=10)
    axes.set_xlabel("asked delay (s)")
    axes.set_ylabel("came back after (s)")
    _finish(axes, "upper left")


def _lateness(axes: Any, journals: Sequence[Journal]) -> None:
    begin = min((each.nacked_at for journal in journals for each in journal.failures.values()), default=0.0)
    axes.axhline(0, color="0.6", linewidth=1, zorder=1)
    for journal, style in zip(journals, _styles(journals), strict=True):
        group = _points(journal)
        times = [nacked_at - begin for nacked_at, _, _ in group]
        axes.scatter(times, [actual - asked for _, asked, actual in group], label=journal.name, **style)
    axes.set_title("Lateness over the run", fontsize=10)
    axes.set_xlabel("time of the nack (s since the first)")
    axes.set_ylabel("lateness (s)")
    _finish(axes, "upper right")


def _styles(journals: Sequence[Journal]) -> list[dict[str, Any]]:
    """Return how each journal is drawn: the official client in one style, ours in others, the last one on top."""
    ours = [journal for journal in journals if journal.name != OFFICIAL]
    styles = {id(journal): style for journal, style in zip(reversed(ours), _STYLES, strict=False)}
    return [styles.get(id(journal), _OFFICIAL_STYLE) for journal in journals]


def _finish(axes: Any, where: str) -> None:
    axes.grid(visible=True, color="0.92")
    axes.set_axisbelow(True)
    axes.legend(loc=where, fontsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _points(journal: Journal) -> list[tuple[float, float, float]]:
    """Return the time of the nack, the asked and the actual delay of each message that came back."""
    every = journal.failures.values()
    return [(each.nacked_at, each.asked, each.actual) for each in every if each.actual is not None]


def _label(journal: Journal, group: Sequence[object]) -> str:
    missing = journal.expected - len(group)
    return f"{journal.name} ({missing} never came back)" if missing else journal.name
