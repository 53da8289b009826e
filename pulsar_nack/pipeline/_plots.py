"""Plots as SVG text inside a page, without scripts, fonts or other files. Pure.

Colours and strokes are classes of the page's style sheet (``s0`` to ``s5`` for series), so plots have a dark mode too.
Each plot has a title for screen readers, and each mark a title that shows under the pointer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from itertools import count, takewhile
from typing import Final, NamedTuple

WIDTH: Final = 860
_HEIGHT: Final = 260
_LEFT: Final = 74
_RIGHT: Final = 16
_TOP: Final = 30
_BOTTOM: Final = 34
_SERIES: Final = 6
_BAR: Final = 24
_LABEL: Final = 300
_CHARACTERS: Final = 44
_TICKS: Final = 5
_MARKED: Final = 60

Points = Sequence[tuple[float, float]]
Format = Callable[[float], str]


class Scale(NamedTuple):
    """A range of numbers, and the range of pixels that it is drawn on."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the pixel of a number."""
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(self.start + share * (self.end - self.start), 1)


def number(value: float) -> str:
    """Return a number for people: three significant digits, thousands in groups."""
    if value == int(value) or abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def span(milliseconds: float) -> str:
    """Return a span of time in a fitting unit."""
    size = abs(milliseconds)
    for unit, least in (("d", 172_800_000), ("h", 7_200_000), ("min", 120_000), ("s", 1_000)):
        if size >= least:
            return f"{milliseconds / _UNITS[unit]:.3g} {unit}"
    return f"{number(milliseconds)} ms"


def size(octets: float) -> str:
    """Return a number of bytes in a fitting unit."""
    for power, unit in enumerate(("bytes", "KiB", "MiB", "GiB")):
        if abs(octets) < 1 << 10 * (power + 1):
            return f"{number(octets / (1 << 10 * power))} {unit}"
    return f"{number(octets / (1 << 40))} TiB"


def moment(milliseconds: float) -> str:
    """Return an epoch time in UTC, as date and time of day."""
    return datetime.fromtimestamp(milliseconds / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def ticks(low: float, high: float, max_count: int = _TICKS) -> list[float]:
    """Return round numbers from ``low`` to ``high``, at most ``max_count`` and one more."""
    if not high > low:
        return [low]
    raw = (high - low) / max_count
    power = 10 ** math.floor(math.log10(raw))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return list(takewhile(lambda each: each <= high + step * 1e-9, (round(n * step, 12) for n in count(first))))


def lines(title: str, series: Mapping[str, Points], *, y: Format = number, mark: float | None = None) -> str:
    """Draw a line for each series, with a legend.

    :param series: points in the order in which they are joined
    :param y: formats the numbers at the left
    :param mark: the height of a horizontal line, a limit, which the plot then includes
    """
    points = [point for each in series.values() for point in each]
    if not points:
        return _nothing(title)
    xs = [point[0] for point in points]
    top = max([0.0, *(point[1] for point in points), *([] if mark is None else [mark])])
    low = min(0.0, *(point[1] for point in points), 0.0)
    across = Scale(min(xs), max(xs), _LEFT, WIDTH - _RIGHT)
    up = Scale(low, top if top > low else low + 1, _HEIGHT - _BOTTOM, _TOP)
    parts = [*_grid(across, up, y)]
    if mark is not None:
        parts.append(_line("mark", across.start, up(mark), across.end, up(mark)))
    for index, each in enumerate(series.values()):
        drawn = [(across(px), up(py), f"{moment(px)}: {y(py)}") for px, py in each]
        parts += _series(f"s{index % _SERIES}", drawn)
    return _plot(title, _HEIGHT, [*parts, *_legend(series)])


def bars(title: str, rows: Iterable[tuple[str, float]], *, value: Format = number) -> str:
    """Draw a labelled horizontal bar for each row; the bar of a negative number has no length."""
    rows = list(rows)
    if not rows:
        return _nothing(title)
    across = Scale(0, max([0, *(each for _, each in rows)]) or 1, _LABEL, WIDTH - 110)
    parts = []
    for index, (label, each) in enumerate(rows):
        top = _TOP + index * _BAR
        end = across(max(each, 0))
        middle = top + _BAR / 2 + 4
        shown = f"<title>{escape(f'{label}: {value(each)}')}</title>"
        place = f'x="{_LABEL}" y="{top + 3}" width="{max(round(end - _LABEL, 1), 1)}" height="{_BAR - 6}"'
        parts.append(_text("label", _LABEL - 8, middle, _shortened(label), "end"))
        parts.append(f'<rect class="s0" {place}>{shown}</rect>')
        parts.append(_text("value", end + 6, middle, value(each), "start"))
    return _plot(title, _TOP + len(rows) * _BAR + 8, parts)


def _grid(across: Scale, up: Scale, y: Format) -> Iterable[str]:
    for each in ticks(up.low, up.high):
        yield _line("grid", across.start, up(each), across.end, up(each))
        yield _text("tick", _LEFT - 8, up(each) + 4, y(each), "end")
    for anchor, each in zip(
        ("start", "middle", "end"), (across.low, (across.low + across.high) / 2, across.high), strict=True
    ):
        if each != across.low or anchor == "start":
            yield _text(
                "tick", across(each) if across.high > across.low else across.start, up.start + 20, moment(each), anchor
            )


def _series(style: str, points: Sequence[tuple[float, float, str]]) -> Iterable[str]:
    path = " ".join(f"{x},{y}" for x, y, _ in points)
    yield f'<polyline class="line {style}" points="{path}"/>'
    if len(points) <= _MARKED:
        for x, y, shown in points:
            yield f'<circle class="{style}" cx="{x}" cy="{y}" r="3"><title>{escape(shown)}</title></circle>'


def _legend(names: Iterable[str]) -> Iterable[str]:
    at = float(_LEFT)
    for index, name in enumerate(names):
        shown = _shortened(name)
        yield f'<rect class="s{index % _SERIES}" x="{at}" y="8" width="12" height="12"/>'
        yield _text("label", at + 18, 18, shown, "start")
        at += 40 + 7.2 * len(shown)


def _plot(title: str, height: float, parts: Iterable[str]) -> str:
    named = escape(title)
    return (
        f'<figure><figcaption>{named}</figcaption><svg role="img" aria-label="{named}" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}">{"".join(parts)}</svg></figure>'
    )


def _nothing(title: str) -> str:
    return f'<figure><figcaption>{escape(title)}</figcaption><p class="none">nothing to show</p></figure>'


def _line(style: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{style}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'


def _text(style: str, x: float, y: float, text: str, anchor: str) -> str:
    return f'<text class="{style}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def _shortened(text: str) -> str:
    return text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS // 3]}…{text[-_CHARACTERS * 2 // 3 + 1 :]}"


_UNITS: Final = {"d": 86_400_000, "h": 3_600_000, "min": 60_000, "s": 1_000}
