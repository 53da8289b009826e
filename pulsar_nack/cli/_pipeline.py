"""``pulsar-nack pipeline JOB``: the jobs of PySpark, on a local session or on any master."""

from __future__ import annotations

import importlib
from typing import Final

import typer

_JOBS: Final = ("accuracy", "retries", "plan", "build_index", "holes", "watch", "report")
"""Each has a module ``_pipeline_JOB`` here, with a function ``register`` that adds its command."""


def make() -> typer.Typer:
    """Make the group of commands."""
    jobs = typer.Typer(no_args_is_help=True, help="Jobs over traces, metadata and cursors, run with PySpark.")
    jobs.callback()(_group)
    for job in _JOBS:
        importlib.import_module(f"{__package__}._pipeline_{job}").register(jobs)
    return jobs


def _group() -> None:
    """Jobs over traces, metadata and cursors, run with PySpark: needs the extra spark, and Java 17 or later."""
