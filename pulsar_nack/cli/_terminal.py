"""Shared parts of the commands: optional packages, JSON, and the terminal that tables are printed to."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import typer

from .._foreign import shown
from ..errors import MissingExtraError

if TYPE_CHECKING:
    from rich.console import Console

_MAX_ROWS: Final = 50
"""Rows of a table that are printed for people; JSON and files have all rows."""


def require(package: str, feature: str, extra: str) -> None:
    """Raise MissingExtraError unless the package that a feature needs is installed."""
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise MissingExtraError(feature, package, extra) from error


def print_json(value: object) -> None:
    """Print a value as indented JSON; what JSON does not know is printed as text."""
    typer.echo(json.dumps(value, indent=2, default=str))


def open_console(width: int) -> Console:
    """Return the terminal; a console of this width if stdout is redirected."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(width=width, highlight=False)


# --- tables of Spark -------------------------------------------------------------------------------------------------


def write_or_print(tables: Mapping[str, Any], *, out: str | None, as_json: bool) -> None:
    """Write Spark's tables as Parquet, or print them for people or as JSON (``{table: [rows]}``)."""
    if out is not None:
        for name, table in tables.items():
            table.write.mode("overwrite").parquet(f"{out}/{name}")
        if as_json:
            print_json({name: f"{out}/{name}" for name in tables})
    elif as_json:
        print_json({name: [row.asDict(recursive=True) for row in table.collect()] for name, table in tables.items()})
    else:
        for name, table in tables.items():
            typer.echo(f"\n{name}\n")
            _print(table)


def _print(table: Any) -> None:
    rows = table.limit(_MAX_ROWS + 1).collect()
    cells = [list(table.columns), *([_cell(value) for value in row] for row in rows[:_MAX_ROWS])]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    if len(rows) > _MAX_ROWS:
        typer.echo(f"... and more: --json prints and --out writes all rows (here the first {_MAX_ROWS})")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,.1f}" if isinstance(value, float) else shown(str(value))
