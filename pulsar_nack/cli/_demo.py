"""The command ``demo``: checks its options, runs, and prints figures; the exit code says whether messages came back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import signal
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from .. import NackConfig, __version__
from ..errors import MissingExtraError, PulsarNackError
from ..testing import EmbeddedBroker
from ._demo_figures import Figures, delays, figures_of
from ._demo_play import OFFICIAL, OFFICIAL_DELAY, OURS, Restart, Stage, Watch, open_local, open_stage, play
from ._terminal import print_json, require

_URL: Final = "PULSAR_SERVICE_URL"
_SUFFIXES: Final = (".png", ".svg")
_DEFAULT_PLOT: Final = Path("demo-plot.png")


def demo(
    *,
    messages: Annotated[int, typer.Option(min=1, max=20_000, help="How many messages; each fails once.")] = 300,
    seconds: Annotated[float, typer.Option(min=0.1, max=30.0, help="For how long they keep coming.")] = 6.0,
    seed: Annotated[int, typer.Option(help="Chooses the delays.")] = 1,
    url: Annotated[str | None, typer.Option(envvar=_URL, help="Your own broker instead of the embedded one.")] = None,
    local: Annotated[
        bool, typer.Option("--local", help="Use a local topic in a temporary folder: no broker, no official client.")
    ] = False,
    precision_bits: Annotated[
        int, typer.Option(min=0, max=62, help="Deadlines are rounded down to 2^bits ms (library default: 8).")
    ] = 0,
    plot: Annotated[
        Path | None, typer.Option(help=f"Where the picture goes: a .png or .svg file (default: {_DEFAULT_PLOT}).")
    ] = None,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Draw no picture.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
) -> None:
    """Watch failed messages come back on time while nacks keep coming.

    An embedded broker is started on a free local port and stopped at the end. Three subscriptions get the same messages
    and fail each once: the official client alone, with its single delay of 1 s, and pulsar-nack, with delays from
    100 ms to 3 s, over the official client and natively. Exits with 1 if pulsar-nack loses a message, or redelivers one
    twice for one nack.

    With --local, a local topic in a temporary folder takes the place of the broker, with a single subscription. It has
    batches and delayed messages too, and in the middle of the run everything is closed and opened again.
    """
    if local and url is not None and url != os.environ.get(_URL):
        raise typer.BadParameter("--local needs no broker: leave --url out", param_hint="--local")
    picture = None if no_plot else _picture(plot, may_be_missing=local)
    require("rich", "the demo", "cli")
    if local:
        _say("This runs on a local topic, durable in a temporary folder, without the official client.")
    elif url is None and (reason := EmbeddedBroker.unavailable_reason()) is not None:
        _say(f"No embedded broker: {reason}.")
        _say("This runs on the fake port, in memory, and without the official client, which needs a broker.")
    _say(f"{messages} messages in {seconds:g} s, each fails once; {seconds + (8 if local else 5):.0f} s in total.")
    config = NackConfig(negative_ack_precision_bit_cnt=precision_bits)
    stage, restart = _run(url or None, config, delays(messages, seed), seconds, is_local=local)
    figures = [figures_of(journal) for journal in stage.journals]
    if as_json:
        _print_json(figures, stage.broker, restart, picture, messages=messages, seconds=seconds, seed=seed)
    else:
        from ._demo_report import show

        client = None if local else _version("pulsar-client")
        typer.echo(
            f"{messages} messages in {seconds:g} s on {stage.broker}; Python {platform.python_version()}"
            + (f", pulsar-client {client}" if client is not None else "")
        )
        show(figures, restart)
    if picture is not None:
        _draw(stage, picture)
    bad = [each for each in figures if each.name != OFFICIAL and not each.is_good]
    for each in bad:
        whose = "" if each.name == OURS else f" with {each.name}"
        _say(f"FAILED: {each.missing} messages missing, {each.duplicates} duplicates{whose}.")
    if bad:
        raise typer.Exit(1)


def _run(
    url: str | None, config: NackConfig, asked: Sequence[float], seconds: float, *, is_local: bool
) -> tuple[Stage, Restart | None]:
    """Return where the demo ran, with the journals of its consumers, and the restart of a local topic."""
    from ._demo_report import progress

    async def run(watch: Watch) -> tuple[Stage, Restart | None]:
        _cancel_on_sigterm()
        if is_local:
            async with open_local(config, asked, seconds) as local:
                await play(local.stage, len(asked), seconds, watch)
                return local.stage, local.restart
        async with open_stage(url, config, asked) as stage:
            await play(stage, len(asked), seconds, watch)
            return stage, None

    with progress(len(asked)) as watch:
        try:
            return asyncio.run(run(watch))
        except BaseExceptionGroup as group:
            raise _cause(group) from group
        except asyncio.CancelledError:
            raise typer.Exit(128 + signal.SIGTERM) from None


def _cancel_on_sigterm() -> None:
    """Let SIGTERM end the demo as Ctrl-C does, with everything removed."""
    task = asyncio.current_task()
    if task is not None:
        with contextlib.suppress(NotImplementedError):  # on Windows
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


def _cause(group: BaseExceptionGroup[Any]) -> BaseException:
    """Return the error to show to the user: the first one of this library, else the first."""
    ours = group.subgroup(PulsarNackError)
    error: BaseException = group if ours is None else ours
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _print_json(
    figures: Sequence[Figures], broker: str, restart: Restart | None, picture: Path | None, **load: float
) -> None:
    document = {
        "pulsar_nack": __version__,
        "pulsar_client": _version("pulsar-client"),
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
        "broker": broker,
        **load,
        "official_delay_ms": round(OFFICIAL_DELAY * 1000),
        "plot": None if picture is None else str(picture),
        "ok": all(each.is_good for each in figures if each.name != OFFICIAL),
        "restart": None if restart is None else asdict(restart),
        "consumers": [each.as_json() for each in figures],
    }
    print_json(document)


def _draw(stage: Stage, picture: Path) -> None:
    from ._demo_report import save

    try:
        save(stage.journals, stage.broker, picture)
    except OSError as error:
        raise PulsarNackError(f"cannot write {picture}: {error}") from error
    _say(f"Picture: {picture}")


def _picture(plot: Path | None, *, may_be_missing: bool) -> Path | None:
    """Return where the picture goes; None if none was asked for and matplotlib is missing."""
    try:
        return _checked(plot or _DEFAULT_PLOT)
    except MissingExtraError as error:
        if plot is not None or not may_be_missing:
            raise
        _say(f"No picture: it needs {error.name}, of the extra {error.extra}.")
        return None


def _checked(plot: Path) -> Path:
    """Refuse a file that cannot be written, before the demo runs."""
    if plot.suffix.lower() not in _SUFFIXES:
        raise typer.BadParameter(f"{plot} should end in {' or '.join(_SUFFIXES)}", param_hint="--plot")
    if plot.is_dir() or not os.access(plot.parent, os.W_OK):
        raise typer.BadParameter(f"{plot} cannot be written", param_hint="--plot")
    require("matplotlib", "the picture (--no-plot leaves it out)", "demo")
    return plot


def _version(package: str) -> str | None:
    with contextlib.suppress(PackageNotFoundError):
        return version(package)
    return None


def _say(text: str) -> None:
    typer.echo(text, err=True)
