"""The page of a report: one HTML file that needs no other file, no script and no font. Pure: its content was collected.

Plots are SVG text inside the page. Colours and strokes are classes of the page's style sheet (``s0`` to ``s5`` for
series), so plots have a dark mode too. Each plot has a title for screen readers, and each mark a title that shows under
the pointer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from itertools import count, takewhile
from typing import Any, Final, NamedTuple

from .schemas import MAX_TIME_MS

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
_UNITS: Final = (("d", 86_400_000, 2), ("h", 3_600_000, 2), ("min", 60_000, 2), ("s", 1_000, 1))
"""The units of a span of time in ms, and the least number of each that is written."""
_EPOCH_FROM: Final = 315_532_800_000
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2430; --paper: #ffffff; --quiet: #667085; --rule: #d9dee6; --bad: #b42318;
  --c0: #2563ab; --c1: #c4501b; --c2: #2c8a5a; --c3: #8a4fa8; --c4: #a67c00; --c5: #5b6776; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --paper: #14181f; --quiet: #98a2b3; --rule: #333b47;
  --bad: #f97066; --c0: #6ea8e8; --c1: #f0905c; --c2: #62c08f; --c3: #c08fdd; --c4: #dcb648; --c5: #a3adba; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 940px; padding: 24px 20px 60px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 19px; margin: 40px 0 6px; border-top: 1px solid var(--rule);
  padding-top: 18px; } p { margin: 4px 0 12px; } .quiet, .none { color: var(--quiet); }
nav a { margin-right: 16px; color: var(--c0); }
.facts { display: flex; flex-wrap: wrap; gap: 12px; margin: 16px 0 0; padding: 0; list-style: none; }
.facts li { border: 1px solid var(--rule); border-radius: 8px; padding: 8px 14px; min-width: 128px; }
.facts b { display: block; font-size: 21px; } .facts .bad b { color: var(--bad); }
.facts span { color: var(--quiet); font-size: 13px; }
figure { margin: 18px 0 22px; } figcaption { font-weight: 600; margin-bottom: 4px; }
svg { max-width: 100%; height: auto; }
svg text { fill: var(--ink); font-size: 12px; } svg .tick { fill: var(--quiet); font-size: 11px; }
svg .grid { stroke: var(--rule); } svg .mark { stroke: var(--bad); stroke-dasharray: 6 4; }
svg .line { fill: none !important; stroke-width: 2; }
.s0 { fill: var(--c0); stroke: var(--c0); } .s1 { fill: var(--c1); stroke: var(--c1); }
.s2 { fill: var(--c2); stroke: var(--c2); } .s3 { fill: var(--c3); stroke: var(--c3); }
.s4 { fill: var(--c4); stroke: var(--c4); } .s5 { fill: var(--c5); stroke: var(--c5); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; margin: 6px 0 18px; }
caption { text-align: left; font-weight: 600; padding-bottom: 4px; }
th, td { padding: 4px 10px; border-bottom: 1px solid var(--rule); text-align: left; vertical-align: top; }
th { color: var(--quiet); font-weight: 600; white-space: nowrap; }
td { overflow-wrap: break-word; min-width: 56px; max-width: 320px; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
@media print { body { max-width: none; } h2 { break-after: avoid; } figure { break-inside: avoid; } }
"""

Points = Sequence[tuple[float, float]]
Format = Callable[[float], str]


class Section(NamedTuple):
    """A part of the report.

    :param figures: of :func:`figure`, at the head of the section
    :param parts: plots and tables, of :func:`lines`, :func:`bars` and :func:`table`
    """

    key: str
    title: str
    text: str
    figures: Sequence[str] = ()
    parts: Sequence[str] = ()


def render(title: str, text: str, sections: Sequence[Section]) -> str:
    """Return the page as HTML; topics, names and reasons are escaped."""
    links = " ".join(f'<a href="#{escape(each.key)}">{escape(each.title)}</a>' for each in sections)
    body = "\n".join(_section(each) for each in sections)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f'<h1>{escape(title)}</h1>\n<p class="quiet">{escape(text)}</p>\n<nav>{links}</nav>\n'
        f"{body}\n</body>\n</html>\n"
    )


def _section(section: Section) -> str:
    head = [f'<section id="{escape(section.key)}">', f"<h2>{escape(section.title)}</h2>"]
    head.append(f'<p class="quiet">{escape(section.text)}</p>')
    if section.figures:
        head.append(f'<ul class="facts">{"".join(section.figures)}</ul>')
    return "\n".join([*head, *section.parts, "</section>"])


def figure(name: str, value: str, *, is_bad: bool = False) -> str:
    """Return a figure for the head of a section; it stands out if it ``is_bad``."""
    style = ' class="bad"' if is_bad else ""
    return f"<li{style}><b>{escape(value)}</b><span>{escape(name)}</span></li>"


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], left_out: int = 0) -> str:
    """Return a table of rows, of which this many more were left out."""
    head = "".join(f"<th>{escape(each.replace('_', ' '))}</th>" for each in columns)
    body = "".join(f"<tr>{_cells(columns, row)}</tr>" for row in rows)
    if not rows:
        body = f'<tr><td class="none" colspan="{len(columns)}">none</td></tr>'
    more = f'<p class="quiet">and {left_out:,} more</p>' if left_out else ""
    caption = f"<caption>{escape(title)}</caption>"
    return f'<div class="wide"><table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}'


def _cells(columns: Sequence[str], row: Iterable[Any]) -> str:
    return "".join(_cell(_time(name, value)) for name, value in zip(columns, row, strict=True))


def _time(name: str, value: Any) -> Any:
    """Write epoch times, which are all after the seventies, as dates; spans stay numbers."""
    is_epoch = name.endswith("_ms") and isinstance(value, int) and _EPOCH_FROM <= value <= MAX_TIME_MS
    return moment(value) if is_epoch else value


def _cell(value: Any) -> str:
    if value is None:
        return "<td></td>"
    if isinstance(value, bool):
        return f"<td>{'yes' if value else 'no'}</td>"
    if isinstance(value, int | float):
        return f'<td class="number">{escape(number(value))}</td>'
    return f"<td>{escape(str(value))}</td>"


# --- numbers and plots ----------------------------------------------------------------------------------------------


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
    for unit, length, least in _UNITS:
        if abs(milliseconds) >= least * length:
            return f"{milliseconds / length:.3g} {unit}"
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
    yield _text("tick", across.start, up.start + 20, moment(across.low), "start")
    if across.high > across.low:
        middle = (across.low + across.high) / 2
        yield _text("tick", across(middle), up.start + 20, moment(middle), "middle")
        yield _text("tick", across.end, up.start + 20, moment(across.high), "end")


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
