"""The commands, one module each: it holds a function of the command's name that typer reads."""

from __future__ import annotations

import importlib
from typing import Annotated, Final

import typer

from .._version import __version__
from . import _pipeline

_COMMANDS: Final = {"demo": "_demo", "inspect": "_inspect", "plan": "_plan"}
"""Name of a command, and its module here; what a command needs beyond typer it imports when it is called."""


def run(arguments: list[str]) -> None:
    """Parse arguments and run what they name; always ends in SystemExit, or in an error of the library."""
    make()(args=arguments, prog_name="pulsar-nack")


def make() -> typer.Typer:
    """Make the application."""
    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    app.callback()(_root)
    for name, module in _COMMANDS.items():
        command = getattr(importlib.import_module(f".{module}", __package__), name)
        app.command(name, help=_unwrapped(command.__doc__ or ""))(command)
    app.add_typer(_pipeline.make(), name="pipeline")
    return app


def _unwrapped(text: str) -> str:
    """Join the lines of each paragraph: typer would keep the source's line breaks in all but the first."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pulsar-nack {__version__}")
        raise typer.Exit


def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Failed and delayed Apache Pulsar messages come back exactly when they should."""
