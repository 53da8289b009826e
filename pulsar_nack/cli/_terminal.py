"""Shared parts of the commands: optional packages, JSON, and the terminal that tables are printed to."""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING

import typer

from ..errors import MissingExtraError

if TYPE_CHECKING:
    from rich.console import Console


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
