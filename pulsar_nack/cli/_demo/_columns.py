"""The table of the demo on a broker: a column for each consumer, so that they can be compared line by line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from rich import box
from rich.table import Table

from ._figures import CLASSES, MARGIN, Figures, Row

_FEW_MS: Final = 10


def columns(figures: Sequence[Figures]) -> Table:
    """Return the table of several consumers that got the same messages."""
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        caption="error: between asked and actual delay, either way, in ms\n"
        f"meantime: back while nacks came, of those due {MARGIN:g} s before the last one",
        caption_justify="left",
    )
    table.add_column("", no_wrap=True)
    for each in figures:
        table.add_column(each.name, justify="right", no_wrap=True)
    _add(table, "asked (s)", (span(each.total.asked_from_ms, each.total.asked_to_ms) for each in figures))
    _add(table, "messages", (str(each.total.messages) for each in figures))
    _add(table, "back after (s)", (_back(each.total) for each in figures))
    _add_errors(table, "error p50", figures, lambda row: row.error_p50_ms)
    _add_errors(table, "error p99", figures, lambda row: row.error_p99_ms)
    _add_errors(table, "error max", figures, lambda row: row.error_max_ms)
    table.add_section()
    _add(table, "meantime", (f"{each.total.back_meanwhile} of {each.total.due_meanwhile}" for each in figures))
    _add(table, "missing", (str(each.missing) for each in figures))
    _add(table, "shown twice", (str(each.shown_twice) for each in figures))
    return table


def _add_errors(table: Table, name: str, figures: Sequence[Figures], figure: Callable[[Row], float | None]) -> None:
    """Add a line for all messages, and one for each range of asked delays that some consumer had."""
    table.add_section()
    _add(table, name, (milliseconds(figure(each.total)) for each in figures), style="bold")
    for low, high in CLASSES:
        cells = [_of_class(each, low, figure) for each in figures]
        if any(cells):
            _add(table, f"  {low:g} to {high:g} s", (cell or "-" for cell in cells))


def _of_class(figures: Figures, low: float, figure: Callable[[Row], float | None]) -> str | None:
    rows = [row for row in figures.rows if class_of(row.asked_from_ms / 1000) == low]
    return milliseconds(figure(rows[0])) if rows else None


def class_of(asked: float) -> float:
    """Return the lower end of the range that a delay in seconds is in."""
    return max((low for low, _ in CLASSES if low <= asked), default=CLASSES[0][0])


def _add(table: Table, name: str, cells: Iterable[str], *, style: str | None = None) -> None:
    table.add_row(name, *cells, style=style)


def _back(row: Row) -> str:
    return "-" if row.actual_min_ms is None else span(row.actual_min_ms, row.actual_max_ms)


def span(low_ms: float, high_ms: float | None) -> str:
    """Return a range in seconds, or one value where both ends are the same."""
    low, high = f"{low_ms / 1000:.2f}", f"{(high_ms or low_ms) / 1000:.2f}"
    return low if low == high else f"{low} - {high}"


def milliseconds(ms: float | None) -> str:
    """Return a time for people: tenths where it is short."""
    if ms is None:
        return "-"
    return f"{ms:.1f}" if ms < _FEW_MS else f"{ms:,.0f}"
