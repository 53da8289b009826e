"""The command line, ``pulsar-nack``; its commands are imported when it runs, and say which extra they miss."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from ..errors import MissingExtraError, PulsarNackError

__all__ = ["main"]

_CLI_PACKAGES = {"typer", "rich", "click"}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command, by default the one that the process was called with, and exit.

    Exit codes: 0 done; 1 the command's own check failed; 2 it could not be carried out (wrong usage, a missing extra,
    no broker), with one line on stderr; 130 interrupted.
    """
    try:
        run = _load()
        run(list(sys.argv[1:] if arguments is None else arguments))
    except PulsarNackError as error:
        sys.stderr.write(f"pulsar-nack: {error}\n")
        raise SystemExit(2) from None
    raise SystemExit(0)


def _load() -> Callable[[list[str]], None]:
    try:
        from ._app import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _CLI_PACKAGES:
            raise
        raise MissingExtraError("the command line", str(error.name), "cli") from error
    return run
