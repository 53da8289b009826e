"""Python processes that tests start; their time limit grows with how busy the machine is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.patience import patience

LIMIT_S = 30
"""How long a process takes at most on a quiet machine."""


def run_python(*arguments: object, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python, with warnings as errors, to its end; any exit code is accepted."""
    return subprocess.run(
        _command(arguments), env=env, capture_output=True, text=True, timeout=patience(LIMIT_S), check=False
    )


@contextmanager
def started_python(*arguments: object, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """Start Python, with warnings as errors; it is killed at the end of the block if it still runs."""
    with subprocess.Popen(
        _command(arguments), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def without_broker(**others: str) -> dict[str, str]:
    """Return this environment without the address of a broker, and with other variables."""
    return {name: value for name, value in os.environ.items() if name != "PULSAR_SERVICE_URL"} | others


def _command(arguments: tuple[object, ...]) -> list[str]:
    return [sys.executable, "-W", "error", *map(str, arguments)]
