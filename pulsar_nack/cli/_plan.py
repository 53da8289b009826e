"""``pulsar-nack plan``: how much memory pending nacks or delayed messages take, and which buckets to choose."""

from __future__ import annotations

import importlib
import json as json_format
from pathlib import Path
from typing import Annotated, Final

import typer

from ..errors import InvalidArgumentError, MissingExtraError
from ..planning import BucketLoad, BucketPlan, Kind, Plan, Workload, make_bucket_plan, make_plan

_DEFAULT_BITS: Final = {Kind.NACK: 8, Kind.DELAYED: 9}
_MIB: Final = 1 << 20
_MEMORY: Final = 30
_SUFFIXES: Final = (".png", ".svg", ".pdf")


def plan(
    *,
    kind: Annotated[
        Kind | None, typer.Option(help="What the messages wait for.", show_default="nack; delayed with --bucket")
    ] = None,
    rate: Annotated[float, typer.Option(help="Messages a second, of the whole stream.")] = 10_000,
    delay: Annotated[float, typer.Option(help="Seconds that a message waits.")] = 60,
    bits: Annotated[
        int | None, typer.Option(help="Buckets of 2**bits ms.", show_default="8 for nacks; 9, a tick of 1 s, else")
    ] = None,
    share: Annotated[float, typer.Option(help="Share of the messages that wait, up to 1.")] = 1,
    entries_per_ledger: Annotated[int, typer.Option(help="Entries that a ledger holds.")] = 50_000,
    batch_size: Annotated[int, typer.Option(help="Messages an entry.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw memory over bits into this .png, .svg or .pdf.")] = None,
    bucket: Annotated[
        bool, typer.Option("--bucket", help="Plan the bucket tracker, whose index of delayed messages is on storage.")
    ] = False,
    memory: Annotated[
        float | None, typer.Option(help="With --bucket: MiB that it may take.", show_default="30")
    ] = None,
    scattered: Annotated[
        bool, typer.Option("--scattered", help="With --bucket: deadlines in any order, over the time of --delay.")
    ] = False,
) -> None:
    """Predict the memory for messages that wait, over all widths of time buckets, and recommend one.

    For a steady stream in order and one delay. Beside what pulsar-nack takes stand the formulas of Pulsar's
    proposals (PIP-393 and the time-bucket tracker) and what was there before them.

    With --bucket: how many sealed buckets to keep (PIP-195), how large their segments, and what that takes.
    """
    if bucket:
        _refuse("not to be given with --bucket", bits=bits, plot=plot, kind=None if kind is Kind.DELAYED else kind)
        workload = Workload(Kind.DELAYED, rate, delay, share, entries_per_ledger, batch_size)
        planned = make_bucket_plan(BucketLoad(workload, scattered), (_MEMORY if memory is None else memory) * _MIB)
        if json:
            typer.echo(json_format.dumps(planned.as_dict(), indent=2))
        else:
            _show_buckets(planned)
        return
    _refuse("to be given with --bucket only", memory=memory, scattered=scattered or None)
    kind = Kind.NACK if kind is None else kind
    if plot is not None and plot.suffix.lower() not in _SUFFIXES:
        raise InvalidArgumentError("plot", str(plot), f"a file that ends in {', '.join(_SUFFIXES)}")
    workload = Workload(kind, rate, delay, share, entries_per_ledger, batch_size)
    made = make_plan(workload, _DEFAULT_BITS[kind] if bits is None else bits)
    if json:
        typer.echo(json_format.dumps(made.as_dict(), indent=2))
    else:
        _show(made)
    if plot is not None:
        _draw(made, plot)


def _refuse(why: str, **options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise InvalidArgumentError(name, str(value), why)


def _show_buckets(made: BucketPlan) -> None:
    _require("rich", "plan (but for --json)", "cli")
    from ._plan_buckets import show

    show(made)


def _show(made: Plan) -> None:
    _require("rich", "plan (but for --json)", "cli")
    from ._plan_table import show

    show(made)


def _draw(made: Plan, path: Path) -> None:
    _require("matplotlib", "plan --plot", "demo")
    from ._plan_plot import save

    try:
        save(made, path)
    except OSError as error:
        raise InvalidArgumentError("plot", str(path), f"a file that can be written ({error.strerror})") from error


def _require(package: str, feature: str, extra: str) -> None:
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise MissingExtraError(feature, package, extra) from error
