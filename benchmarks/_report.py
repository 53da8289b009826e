"""Tables of measured figures: printed, and stored in ``results`` with the machine and the date."""

from __future__ import annotations

import datetime as dt
import os
import platform
from collections.abc import Sequence
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


class Report:
    """Collects tables and notes, prints each at once, and stores them as Markdown when :meth:`save` is called."""

    def __init__(self, title: str) -> None:
        self._lines = [f"# {title}", "", machine(), ""]
        print("\n".join(self._lines[:3]), flush=True)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print and keep a table, with numbers rounded to about three digits."""
        cells = [[_cell(value) for value in row] for row in rows]
        widths = [max(len(row[at]) for row in [list(columns), *cells]) for at in range(len(columns))]
        lines = [f"## {title}", "", _line(columns, widths), "|" + "|".join("-" * (width + 2) for width in widths) + "|"]
        lines += [_line(row, widths) for row in cells]
        self._add(lines)

    def note(self, text: str) -> None:
        """Print and keep a sentence."""
        self._add([text])

    def _add(self, lines: list[str]) -> None:
        print("", *lines, sep="\n", flush=True)
        self._lines += [*lines, ""]

    def save(self, name: str) -> None:
        """Store the report as ``results/NAME.md``."""
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.md").write_text("\n".join(self._lines))


def machine() -> str:
    """Return the date, the machine and the Python version."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    today = dt.datetime.now(dt.UTC).date().isoformat()
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{today}, {model}, {os.cpu_count()} cores, {platform.system()}, {python}"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
        return f"{value:,.{digits}f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cell.ljust(width) if at == 0 else cell.rjust(width)
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "| " + " | ".join(padded) + " |"
