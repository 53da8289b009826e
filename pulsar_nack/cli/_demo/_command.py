"""The command: checks its options first, plays, then tells. Its exit code says whether our messages came back."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import platform
import signal
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ... import NackConfig, __version__
from ...errors import MissingExtraError, PulsarNackError
from ...testing import EmbeddedBroker
from ._figures import Figures, figures_of
from ._journal import Journal
from ._play import Script, Watch, play
from ._plot import SUFFIXES, save
from ._stage import OFFICIAL_DELAY, open_stage

_URL: Final = "PULSAR_SERVICE_URL"
_DEFAULT_PLOT: Final = Path("demo-plot.png")


def demo(
    *,
    messages: Annotated[int, typer.Option(min=1, max=20_000, help="How many messages; each fails once.")] = 300,
    seconds: Annotated[float, typer.Option(min=0.1, max=30.0, help="For how long they, and nacks, keep coming.")] = 6.0,
    seed: Annotated[int, typer.Option(help="Chooses the delays.")] = 1,
    url: Annotated[str | None, typer.Option(envvar=_URL, help="A broker of yours instead of the embedded one.")] = None,
    local: Annotated[
        bool, typer.Option("--local", help="A local topic in a temporary folder; no broker, and no official client.")
    ] = False,
    precision_bits: Annotated[
        int, typer.Option(min=0, max=62, help="Deadlines are rounded down to 2^bits ms (library default: 8).")
    ] = 0,
    plot: Annotated[Path, typer.Option(help="Where the picture goes: a .png or .svg file.")] = _DEFAULT_PLOT,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Draw no picture.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
) -> None:
    """See failed messages come back at their own times while nacks keep coming.

    An embedded broker is started on a free local port and stopped at the end. Two subscriptions get the same messages
    and fail each of them once: one through pulsar-nack, with delays of its own from 100 ms to 3 s, and one through the
    official client alone, with its single delay of 1 s. Exits with 1 if a message of ours does not come back, or is
    shown twice for one nack.

    With --local there is no broker: a local topic, durable in a temporary folder, takes its place.
    """
    picture = None if no_plot else _checked(plot)
    _require("rich", "the demo", "cli")
    if local and url is not None and url != os.environ.get(_URL):
        raise typer.BadParameter("--local needs no broker: leave --url out", param_hint="--local")
    if local:
        _say("This runs on a local topic, durable in a temporary folder, without the official client.")
    elif url is None and (reason := EmbeddedBroker.unavailable_reason()) is not None:
        _say(f"No embedded broker: {reason}.")
        _say("This runs on the fake port, in memory, instead, and without the official client, which needs a broker.")
    _say(f"{messages} messages in {seconds:g} s, each fails once; about {seconds + 5:.0f} s in all.")
    script = Script(messages, seconds, seed)
    config = NackConfig(negative_ack_precision_bit_cnt=precision_bits)
    broker, journals = _run(script, url or None, config, is_local=local)
    figures = [figures_of(journal) for journal in journals]
    _tell(figures, broker, script, picture, as_json=as_json)
    if picture is not None:
        _draw(journals, broker, picture)
    if not figures[0].is_good:
        _say(f"FAILED: {figures[0].missing} messages missing, {figures[0].shown_twice} shown twice.")
        raise typer.Exit(1)


def _run(script: Script, url: str | None, config: NackConfig, *, is_local: bool) -> tuple[str, list[Journal]]:
    from ._report import progress

    async def run(watch: Watch) -> tuple[str, list[Journal]]:
        _cancel_on_sigterm()
        async with open_stage(url, config, is_local=is_local) as stage:
            return stage.broker, await play(stage, script, watch)

    with progress(script.messages) as watch:
        try:
            return asyncio.run(run(watch))
        except BaseExceptionGroup as group:
            raise _cause(group) from group
        except asyncio.CancelledError:
            raise typer.Exit(128 + signal.SIGTERM) from None


def _cancel_on_sigterm() -> None:
    """Have SIGTERM end the demo as Ctrl-C does, with everything cleared away."""
    task = asyncio.current_task()
    if task is not None:
        with contextlib.suppress(NotImplementedError):  # on Windows
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


def _cause(group: BaseExceptionGroup[Any]) -> BaseException:
    """Return what to tell the user: an error of ours if there is one, else the first."""
    ours = group.subgroup(PulsarNackError)
    error: BaseException = group if ours is None else ours
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _tell(figures: Sequence[Figures], broker: str, script: Script, picture: Path | None, *, as_json: bool) -> None:
    if not as_json:
        from ._report import show

        typer.echo(
            f"{script.messages} messages in {script.seconds:g} s on {broker}; "
            f"Python {platform.python_version()}, pulsar-client {_version('pulsar-client')}"
        )
        show(figures)
        return
    document = {
        "pulsar_nack": __version__,
        "pulsar_client": _version("pulsar-client"),
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
        "broker": broker,
        "messages": script.messages,
        "seconds": script.seconds,
        "seed": script.seed,
        "official_delay_ms": round(OFFICIAL_DELAY * 1000),
        "plot": None if picture is None else str(picture),
        "ok": figures[0].is_good,
        "consumers": [each.as_json() for each in figures],
    }
    typer.echo(json.dumps(document, indent=2))


def _draw(journals: Sequence[Journal], broker: str, picture: Path) -> None:
    try:
        save(journals, broker, picture)
    except OSError as error:
        raise PulsarNackError(f"cannot write {picture}: {error}") from error
    _say(f"Picture: {picture}")


def _checked(plot: Path) -> Path:
    """Refuse what could not be written, before the demo runs rather than after."""
    if plot.suffix.lower() not in SUFFIXES:
        raise typer.BadParameter(f"{plot} should end in {' or '.join(SUFFIXES)}", param_hint="--plot")
    if plot.is_dir() or not os.access(plot.parent, os.W_OK):
        raise typer.BadParameter(f"{plot} cannot be written", param_hint="--plot")
    _require("matplotlib", "the picture (--no-plot leaves it out)", "demo")
    return plot


def _require(package: str, feature: str, extra: str) -> None:
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise MissingExtraError(feature, package, extra) from error


def _version(package: str) -> str | None:
    with contextlib.suppress(PackageNotFoundError):
        return version(package)
    return None


def _say(text: str) -> None:
    typer.echo(text, err=True)
