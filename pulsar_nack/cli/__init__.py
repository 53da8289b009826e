"""The command line, ``pulsar-nack``: commands are imported when it runs, and name the extra that they lack."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from .._version import __version__
from ..errors import MissingExtraError, PulsarNackError

if TYPE_CHECKING:
    import typer

__all__ = ["main"]

_CLI_PACKAGES: Final = {"typer", "rich", "click"}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command, by default that of ``sys.argv``, and exit.

    Exit codes: 0 done; 1 the command's own check failed; 2 it could not run (wrong usage, a missing extra, no broker),
    with one line on stderr; 130 interrupted.
    """
    try:
        _make_app()(args=list(sys.argv[1:] if arguments is None else arguments), prog_name="pulsar-nack")
    except PulsarNackError as error:
        sys.stderr.write(f"pulsar-nack: {error}\n")
        raise SystemExit(2) from None
    raise SystemExit(0)


def _make_app() -> typer.Typer:
    """Make the application; its commands import what they need beyond typer when they are called."""
    try:
        import typer

        from . import _demo, _inspect, _pipeline, _plan
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _CLI_PACKAGES:
            raise
        raise MissingExtraError("the command line", str(error.name), "cli") from error

    def show_version(wanted: bool) -> None:
        if wanted:
            typer.echo(f"pulsar-nack {__version__}")
            raise typer.Exit

    text = "Show the version and exit."
    option = typer.Option(False, "--version", help=text, callback=show_version, is_eager=True)  # noqa: FBT003 - typer's

    def root(*, version: bool = option) -> None:
        """Redeliver failed and delayed Apache Pulsar messages exactly when they are due."""

    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    app.callback()(root)
    for command in (_demo.demo, _inspect.inspect, _plan.plan):
        app.command(help=_unwrapped(command.__doc__ or ""))(command)
    app.add_typer(_pipeline.jobs, name="pipeline")
    return app


def _unwrapped(text: str) -> str:
    """Join the lines of each paragraph: typer would keep the source's line breaks in all but the first."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
