"""The bucket tracker at scale: memory, storage, recovery, delivery, and how long the loop is blocked.

Run ``python benchmarks/buckets.py``; ``--quick`` takes few messages, ``--scattered`` adds 100 million with deadlines in
any order (half an hour), ``--save`` stores the tables in ``results/buckets.md``. Snapshots and cursor are logs in a
temporary folder, or in the folder of ``--folder``; 100 million messages temporarily take 4 GB there.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _buckets_run as run
from _memory import be_quick, in_fresh_process
from _report import Report
from _targets import Targets, ratio

from pulsar_nack.planning import BucketLoad, BucketPlan, Kind, Workload, make_bucket_plan

MB = 1e6
BATCH = 200
DRAINED = 10_000_000

NOTES = """\
Deadlines are spread over an hour, ledgers have 50,000 entries, buckets are sealed with 50,000 indexes. The maximum
number of buckets and the segment size are what `pulsar-nack plan --bucket` recommends for 30 MB. *In order*: deadlines
are in the order of positions, as with one delay for all; *scattered*: they are in any order. MB are 10**6 bytes.
*Resident* is the growth of the process's own pages when everything is stored, including threads and the allocator;
*peak* is the largest growth of the run. Each row is a separate process, which first does the same with 120,000
messages and then calls `gc.freeze()`, as a service should that cannot afford pauses of Python's collector. *Blocked* is
the longest callback of the event loop by the thread's own work; *timer late* is the largest delay of a timer that is
due every 5 ms, which includes the work of other programs. Adding is `add_entries`, 2,000 at a time; re-adding is
`add_message`. Messages are taken out {batch} at a time while all are due: a backlog of the whole hour."""


@dataclass(frozen=True)
class Case:
    """A number of messages and the order of their deadlines, in a separate folder."""

    count: int
    shape: str
    folder: Path

    @property
    def name(self) -> str:
        """Return the name of the row."""
        return f"{self.count:,} {self.shape}"

    @property
    def plan(self) -> BucketPlan:
        """Return the planner's recommendation."""
        seconds = run.SPREAD_MS / 1000
        workload = Workload(Kind.DELAYED, self.count / seconds, seconds, 1, run.LEDGER)
        return make_bucket_plan(BucketLoad(workload, self.shape == "scattered"), 30 * MB)

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings."""
        return {
            "delayed_delivery_max_num_buckets": self.plan.recommended.buckets,
            "delayed_delivery_max_indexes_per_bucket_snapshot_segment": self.plan.recommended.segment,
        }

    def ask(self, work: Any, *more: object) -> dict[str, Any]:
        """Run a function of ``_buckets_run`` in a fresh process; return its figures."""
        found: dict[str, Any] = in_fresh_process(work, self.count, self.shape, str(self.folder), self.settings, *more)
        return found


@dataclass(frozen=True)
class Measured:
    """The figures of a case."""

    case: Case
    filled: dict[str, Any]
    recovered: dict[str, Any]
    drained: dict[str, Any]


def measure(case: Case) -> Measured:
    """Fill, recover and drain a case, and remove its files."""
    filled = case.ask(run.fill)
    recovered = case.ask(run.recover)
    drained = case.ask(run.drain, DRAINED, BATCH)
    shutil.rmtree(case.folder)
    print(f"  measured: {case.name}", flush=True)
    return Measured(case, filled, recovered, drained)


def memory_table(report: Report, targets: Targets, measured: list[Measured]) -> None:
    """Print the size in memory and on storage."""
    rows: list[list[object]] = []
    for each in measured:
        filled, best = each.filled, each.case.plan.recommended
        resident, estimate = filled["resident"] / MB, filled["estimate"] / MB
        target = targets.check(f"resident, {each.case.name}, MB", resident, 30)
        off = abs(resident - estimate)
        targets.check(f"estimate of {each.case.name} off by MB", off, max(2, resident / 10))
        rows.append(
            [
                *(each.case.name, best.buckets, best.segment, resident, target, estimate),
                *(estimate - resident, filled["peak"] / MB, best.bytes / MB, 24 * each.case.count / MB),
                *(filled["in_files"] / filled["stored"], best.disk_bytes / each.case.count),
            ]
        )
    columns = ["MB", "most buckets", "indexes a segment", "resident", "target", "own estimate", "its error"]
    columns += ["peak", "plan: at most", "triple heap", "bytes a message on disk", "plan"]
    report.table("Held in memory, and on storage", columns, rows)


def time_table(report: Report, measured: list[Measured]) -> None:
    """Print how long operations take."""
    rows: list[list[object]] = []
    for each in measured:
        filled, drained = each.filled, each.drained
        row: list[object] = [each.case.name, 1e9 * filled["adding_s"] / filled["count"]]
        row.append(filled["count"] / filled["wall_s"])
        for kind, source in (("create", filled), ("merge", filled), ("load", drained)):
            count, total_ms = source[kind]
            row += [count, total_ms / count if count else None]
        rows.append(row)
    columns = ["", "ns an add", "added and sealed/s", "seals", "ms each", "merges", "ms each", "loads", "ms each"]
    report.table("Adding, sealing, merging, loading (real time)", columns, rows)


def out_table(report: Report, targets: Targets, measured: list[Measured]) -> None:
    """Print how fast messages are taken out."""
    rows: list[list[object]] = []
    for each in measured:
        drained = each.drained
        largest = drained["largest"] / MB
        target = targets.check(f"resident while {each.case.name} come out, MB", largest, 30)
        rows.append(
            [
                *(each.case.name, drained["taken"], drained["taken"] / drained["wall_s"]),
                *(1e9 * drained["taking_s"] / drained["taken"], largest, target, drained["estimate"] / MB),
            ]
        )
    columns = ["", "taken out", "messages/s", "ns in calls", "largest resident MB", "target", "estimate then"]
    report.table("Taking out, loading included", columns, rows)


def recovery_table(report: Report, targets: Targets, measured: list[Measured], readded: dict[str, Any]) -> None:
    """Print how long it takes to open a stored tracker, compared with adding everything again."""
    rows: list[list[object]] = []
    for each in measured:
        recovered, is_peer = each.recovered, each.case.count == readded["held"]
        times = ratio(readded["wall_s"], recovered["wall_s"]) if is_peer else None
        if each is measured[0]:
            targets.check("recovery, share of re-adding", ratio(recovered["wall_s"], readded["wall_s"]), 1 / 50)
        rows.append(
            [
                *(each.case.name, recovered["held"], 1000 * recovered["wall_s"], 1000 * recovered["work_s"]),
                *(1000 * readded["wall_s"] if is_peer else None, times, 50 if is_peer else None),
                recovered["resident"] / MB,
            ]
        )
    columns = ["ms", "held then", "real time", "work", "re-adding all", "times faster", "target", "resident MB"]
    report.table("Recovery", columns, rows)


def blocked_table(report: Report, targets: Targets, measured: list[Measured]) -> None:
    """Print how long the loop was blocked."""
    rows: list[list[object]] = []
    for each in measured:
        row: list[object] = [each.case.name]
        for name in ("filled", "recovered", "drained"):
            figures = getattr(each, name)
            targets.check(f"loop blocked, {each.case.name}, {name}, ms", figures["callback_ms"], 20)
            row += [figures["callback_ms"], figures["late_ms"]]
        rows.append([*row, 20])
    columns = ["ms", "filling: work", "timer late", "recovery: work", "timer late", "out: work", "timer late", "target"]
    report.table("The longest time that the loop was blocked", columns, rows)


def main() -> None:
    """Measure everything and print the tables."""
    parser = argparse.ArgumentParser(description="the bucket tracker at scale")
    parser.add_argument("--quick", action="store_true", help="few messages, to check that it runs")
    parser.add_argument("--scattered", action="store_true", help="also 100 million with deadlines in any order")
    parser.add_argument("--save", action="store_true", help="store the tables in benchmarks/results")
    parser.add_argument("--folder", type=Path, help="where to store snapshots meanwhile")
    options = parser.parse_args()
    if options.quick:
        be_quick()
    million = 6_000 if options.quick else 1_000_000
    report, targets = Report("The bucket tracker: memory, storage, recovery, and the loop"), Targets()
    report.note(NOTES.format(batch=BATCH))
    sizes = [(10, "in order"), (100, "in order"), (10, "scattered")] + [(100, "scattered")] * options.scattered
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        cases = [Case(size * million, shape, Path(folder) / f"{size}{shape}") for size, shape in sizes]
        measured = [measure(case) for case in cases]
        readded = cases[0].ask(run.readd)
    memory_table(report, targets, measured)
    time_table(report, measured)
    out_table(report, targets, measured)
    recovery_table(report, targets, measured, readded)
    blocked_table(report, targets, measured)
    report.note("With so few messages this only proves that everything runs." if options.quick else targets.summary())
    if options.save:
        report.save("buckets")


if __name__ == "__main__":
    main()
