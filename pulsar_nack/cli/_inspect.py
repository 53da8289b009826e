"""``pulsar-nack inspect``: what a durable folder holds, and what is wrong with it."""

from __future__ import annotations

import importlib
import json as json_format
from pathlib import Path
from typing import Annotated

import typer

from ..errors import MissingExtraError
from ..inspection import FolderReport, inspect_folder


def inspect(
    path: Annotated[Path, typer.Argument(help="The folder, one that has such folders in it, or a NAME.log in it.")],
    *,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    files: Annotated[bool, typer.Option("--files", help="Show each log and each of its files too.")] = False,
) -> None:
    """Show what a durable folder holds: delayed messages, acknowledgement state, nacks, any log, and what is damaged.

    Nothing is changed, repaired or locked, so a process may be using the folder meanwhile. All checksums are checked.

    Exit codes: 0 all is well, 1 something is damaged or torn, 2 the folder does not exist or holds nothing of
    pulsar-nack, or a package is missing, so not everything was read.
    """
    report = inspect_folder(path)
    if json:
        typer.echo(json_format.dumps(report.as_dict(), indent=2))
    else:
        _show(report, with_files=files)
    if report.is_damaged:
        raise typer.Exit(1)
    if not report.is_complete:
        raise typer.Exit(2)


def _show(report: FolderReport, *, with_files: bool) -> None:
    try:
        importlib.import_module("rich")
    except ImportError as error:
        raise MissingExtraError("inspect (but for --json)", "rich", "cli") from error
    from ._inspect_tables import show

    show(report, with_files=with_files)
