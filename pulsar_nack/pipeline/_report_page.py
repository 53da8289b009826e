"""The page of a report: one HTML file that needs no other file. Pure: its content has been collected before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from ._plots import moment, number
from .schemas import MAX_TIME_MS

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


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """A figure at the head of a section; it stands out if it ``is_bad``."""

    name: str
    value: str
    is_bad: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows with the names of their columns; ``more`` rows were left out."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    more: int = 0


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the report. ``plots`` are HTML of :mod:`._plots`; everything else is text."""

    key: str
    title: str
    text: str
    summary: Sequence[SummaryRow] = ()
    plots: Sequence[str] = ()
    tables: Sequence[Table] = ()


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
    parts = [f'<section id="{escape(section.key)}">', f"<h2>{escape(section.title)}</h2>"]
    parts.append(f'<p class="quiet">{escape(section.text)}</p>')
    if section.summary:
        parts.append(f'<ul class="facts">{"".join(map(_summary_row, section.summary))}</ul>')
    return "\n".join([*parts, *section.plots, *map(_table, section.tables), "</section>"])


def _summary_row(row: SummaryRow) -> str:
    style = ' class="bad"' if row.is_bad else ""
    return f"<li{style}><b>{escape(row.value)}</b><span>{escape(row.name)}</span></li>"


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(each.replace('_', ' '))}</th>" for each in table.columns)
    body = "".join(f"<tr>{_cells(table.columns, row)}</tr>" for row in table.rows)
    if not table.rows:
        body = f'<tr><td class="none" colspan="{len(table.columns)}">none</td></tr>'
    more = f'<p class="quiet">and {table.more:,} more</p>' if table.more else ""
    caption = f"<caption>{escape(table.title)}</caption>"
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
