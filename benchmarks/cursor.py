"""The cursor: bytes written by a flush, bytes per hole, ns per ack, memory and recovery.

Run ``python benchmarks/cursor.py``. The baseline writes the whole state at each flush, with 32 bytes for each range of
acknowledged entries, like the broker's single entry. ``--quick`` takes few entries and stores nothing, ``--folder``
chooses the file system.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass

from _cursor_run import ACKS_A_LEDGER, CACHE_BYTES, PATTERNS, ROUNDS, Figures, fill_and_write, one_ack, orders, recover
from _memory import be_quick, in_fresh_process
from _report import Report
from _targets import Targets

RANGE_BYTES = 32
SIZES = ((10_000, 20), (10_000, 5_000), (1_000_000, 20), (1_000_000, 5_000), (100_000_000, 5_000))
QUICK_SIZES = ((10_000, 20), (100_000, 500))
LARGE = 1_000_000
MIN_RATIO = 20.0
SMALL_STATE = 1_024
"""The size of the whole state up to which nothing can be saved: a marker and an entry take about 100 bytes."""
_MB = 1 << 20


@dataclass(frozen=True)
class Case:
    """A number of acknowledged entries in a number of ledgers, in a pattern."""

    pattern: str
    count: int
    ledgers: int

    @property
    def name(self) -> str:
        """Return the name in the tables."""
        return f"{self.count:,} in {self.ledgers:,}, {self.pattern}"


def measure(case: Case, folder: str) -> tuple[Figures, Figures, Figures]:
    """Return the figures of filling and writing, and of recovery with and without the limit on memory."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        args = (place, case.pattern, case.count, case.ledgers)
        filled = in_fresh_process(fill_and_write, *args)
        return filled, in_fresh_process(recover, place, CACHE_BYTES), in_fresh_process(recover, place, None)


def amplification_table(report: Report, targets: Targets, measured: dict[Case, Figures]) -> None:
    """Print bytes written per ack, compared with writing the whole state each time."""
    rows = []
    for case, filled in measured.items():
        ours = filled["written"] / filled["acks"]
        # each ack adds a range; on average half of them exist when a flush writes everything
        whole = RANGE_BYTES * (filled["ranges"] + (1 + 1 / ROUNDS) * filled["acks"] / 2) * ROUNDS / filled["acks"]
        target = None
        if case.count >= LARGE and RANGE_BYTES * filled["ranges"] > SMALL_STATE:
            target = MIN_RATIO
            targets.check(f"write amplification, {case.name}, share of the whole state", ours / whole, 1 / target)
        rows.append([case.name, filled["ranges"], filled["dirty"], ours, whole, whole / ours, target])
    columns = ["acknowledged entries and ledgers", "ranges", "dirty ledgers", "ours, bytes an ack"]
    columns += ["whole state, bytes an ack", "times less", "target"]
    report.table(f"Write amplification: {ACKS_A_LEDGER} acks in 1 % of the ledgers, then a flush", columns, rows)


def hole_table(report: Report, measured: dict[Case, Figures]) -> None:
    """Print bytes per hole."""
    rows = []
    for case, filled in measured.items():
        holes = filled["holes"]
        whole, words = RANGE_BYTES * filled["ranges"] / holes, filled["span"] / 8 / holes
        rows.append([case.name, holes, filled["size"] / holes, whole, words, whole * holes / filled["size"]])
    columns = ["acknowledged entries and ledgers", "holes", "ours", "32 bytes a range", "dense words"]
    report.table("Bytes a hole, the whole state as written", [*columns, "times less than ranges"], rows)


def memory_table(report: Report, targets: Targets, measured: dict[Case, Figures]) -> None:
    """Print the memory taken with the limit."""
    rows = []
    for case, filled in measured.items():
        target = 8.0 if case.count >= 100 * LARGE else None
        held = filled["held"] / _MB
        targets.check(f"memory held, {case.name}, MB", held, target)
        rows.append([case.name, held, target, filled["peak"] / _MB, filled["size"] / _MB, filled["ledgers_in_memory"]])
    columns = ["acknowledged entries and ledgers", "resident, MB", "target", "peak, MB", "whole state, MB"]
    report.table("Memory with a cache of 3 MB", [*columns, "ledgers in memory"], rows)


def recovery_table(report: Report, measured: dict[Case, tuple[Figures, Figures]]) -> None:
    """Print how long opening takes."""
    rows = []
    for case, (limited, whole) in measured.items():
        row: list[object] = [case.name]
        for found in (limited, whole):
            row += [1_000 * found["seconds"], found["ledgers_in_memory"], found["held"] / _MB, found["blocked_ms"]]
        rows.append(row)
    one = ["ms", "ledgers loaded", "MB", "loop blocked, ms"]
    columns = [*(f"{name}, 3 MB" for name in one), *(f"{name}, no limit" for name in one)]
    report.table("Recovery", ["acknowledged entries and ledgers", *columns], rows)


def ack_table(report: Report, targets: Targets, folder: str) -> None:
    """Print ns of a single ack."""
    rows = []
    for order in orders():
        with tempfile.TemporaryDirectory(dir=folder) as place:
            found = in_fresh_process(one_ack, place, order)
        target = targets.check(f"an ack, {order}, ns", found["cursor"], 2_000)
        rows.append([order, found["cursor"], target, found["state"], found["set"]])
    columns = ["ns an ack", "await cursor.acknowledge", "target", "the state alone", "a set of tuples"]
    report.table("One acknowledgement a call", columns, rows)


def main() -> None:
    """Measure everything and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few entries, nothing stored")
    parser.add_argument("--folder", help="where to write (default: the folder for temporary files)")
    options = parser.parse_args()
    report, targets = Report("The cursor: what acknowledgements cost"), Targets()
    report.note(
        "MB are 2**20 bytes. Each row is measured in fresh processes. The first entry of each ledger stays"
        " unacknowledged, so that no ledger is complete."
    )
    if options.quick:
        be_quick()
    ack_table(report, targets, options.folder)
    cases = [Case(pattern, *size) for size in (QUICK_SIZES if options.quick else SIZES) for pattern in PATTERNS]
    measured = {case: measure(case, options.folder) for case in cases}
    filled = {case: found[0] for case, found in measured.items()}
    amplification_table(report, targets, filled)
    hole_table(report, {case: one for case, one in filled.items() if case.count == max(each.count for each in cases)})
    memory_table(report, targets, {case: one for case, one in filled.items() if case.count >= LARGE or options.quick})
    recovery_table(report, {case: found[1:] for case, found in measured.items()})
    report.note("With so few entries this only proves that everything runs." if options.quick else targets.summary())
    if not options.quick:
        report.save("cursor")


if __name__ == "__main__":
    main()
