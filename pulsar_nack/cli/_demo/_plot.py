"""The demo's picture: actual over asked delay, and the lateness over the run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ._figures import LONGEST, SHORTEST, Journal
from ._play import OFFICIAL

SUFFIXES: Final = (".png", ".svg")
_OFFICIAL_STYLE: Final = {"color": "#d55e00", "marker": "x", "s": 22, "zorder": 2, "linewidths": 1.1}
_STYLES: Final = (
    {"color": "#0072b2", "marker": "o", "s": 16, "zorder": 4},
    {"color": "#e69f00", "marker": "^", "s": 16, "zorder": 3},
)
_TICKS: Final = (0.1, 0.2, 0.5, 1, 2, 3, 5, 10, 20, 50)


def save(journals: Sequence[Journal], broker: str, path: Path) -> None:
    """Write the picture in the format that the file's suffix names; needs no display.

    :raises OSError: the file cannot be written
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), dpi=130, layout="constrained")
    left, right = figure.subplots(1, 2)
    _asked_and_actual(left, journals)
    _lateness(right, journals)
    figure.suptitle(f"Every message fails once while nacks keep coming ({broker})", fontsize=11)
    figure.savefig(path)


def _asked_and_actual(axes: Any, journals: Sequence[Journal]) -> None:
    points = [_points(journal) for journal in journals]
    longest = max([LONGEST, *(actual for group in points for _, _, actual in group)]) * 1.15
    ends = (SHORTEST * 0.85, longest)
    axes.plot(ends, ends, color="0.6", linewidth=1, label="as asked", zorder=1)
    for journal, group, style in zip(journals, points, _styles(journals), strict=True):
        axes.scatter([each[1] for each in group], [each[2] for each in group], label=_label(journal, group), **style)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(ends[0], LONGEST * 1.15)
    axes.set_ylim(*ends)
    for axis, last in ((axes.xaxis, LONGEST), (axes.yaxis, longest)):
        ticks = [tick for tick in _TICKS if tick <= last]
        axis.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
        axis.set_ticks([], minor=True)
    axes.set_title("Delay: asked and actual", fontsize=10)
    axes.set_xlabel("asked delay (s)")
    axes.set_ylabel("came back after (s)")
    _finish(axes, "upper left")


def _lateness(axes: Any, journals: Sequence[Journal]) -> None:
    begin = min((each.nacked_at for journal in journals for each in journal.failures.values()), default=0.0)
    axes.axhline(0, color="0.6", linewidth=1, zorder=1)
    for journal, style in zip(journals, _styles(journals), strict=True):
        group = _points(journal)
        times = [nacked_at - begin for nacked_at, _, _ in group]
        axes.scatter(times, [actual - asked for _, asked, actual in group], label=journal.name, **style)
    axes.set_title("Lateness over the run", fontsize=10)
    axes.set_xlabel("time of the nack (s since the first)")
    axes.set_ylabel("lateness (s)")
    _finish(axes, "upper right")


def _styles(journals: Sequence[Journal]) -> list[dict[str, Any]]:
    """Return how each journal is drawn: the official client in one style, ours in others, the last one on top."""
    ours = [journal for journal in journals if journal.name != OFFICIAL]
    styles = {id(journal): style for journal, style in zip(reversed(ours), _STYLES, strict=False)}
    return [styles.get(id(journal), _OFFICIAL_STYLE) for journal in journals]


def _finish(axes: Any, where: str) -> None:
    axes.grid(visible=True, color="0.92")
    axes.set_axisbelow(True)
    axes.legend(loc=where, fontsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _points(journal: Journal) -> list[tuple[float, float, float]]:
    """Return the time of the nack, the asked and the actual delay of each message that came back."""
    every = journal.failures.values()
    return [(each.nacked_at, each.asked, each.actual) for each in every if each.actual is not None]


def _label(journal: Journal, group: Sequence[object]) -> str:
    missing = journal.expected - len(group)
    return f"{journal.name} ({missing} never came back)" if missing else journal.name
