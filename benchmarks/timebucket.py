"""Time buckets at scale: memory compared with the proposals, time with Java and heaps, and the longest single call.

Run ``python benchmarks/timebucket.py``; ``--quick`` takes few ids and stores nothing, ``--only`` prints chosen tables.
Results go to ``results/timebucket.md``. If java and mvn are found, the proposals' own structure (fastutil and
RoaringBitmap, see ``java/``) is measured with the same streams.
"""

from __future__ import annotations

import argparse

import _java
from _memory import be_quick
from _report import Report
from _targets import Targets
from _timebucket_memory import delayed_table, estimate_table, nacks_table
from _timebucket_slices import slices_table
from _timebucket_time import bulk_table, drain_table, proof_table, seal_table, single_table

PARTS = ("delayed", "nacks", "estimate", "single", "bulk", "drain", "proof", "seal", "slices")

NOTES = """\
MB are 2**20 bytes. *Resident* is the growth of the process's own pages, the largest of several fresh processes. A small
copy is built first, and free memory between used blocks is filled, yet the structure may still find room that the
interpreter has left: below half a MB the figure is uncertain by 0.1 to 0.3 MB, mostly too small. *Allocated* is the
growth of the bytes allocated by glibc's malloc (mallinfo2) in a process without Python's own allocator: exact, but
small objects take a few bytes more there. *Java* is used heap after collections, for ids alone: without a search it
can neither cancel an id nor know that it is pending. Free pages are returned to the system before both measurements.
Sealing is the encoding alone; folding is everything that happens to a full list: making a set, trying id ranges,
sealing, joining. An encoding that takes a byte per entry or more has stored each entry separately. Times are those of
the thread's own work, the best of several rounds (20 for bulk adds and in Java), without Java's collector and compiler
threads; Java drains numbers by `forEach`, objects by an iterator. *Limit* and *bound* are the entropy of the
stream."""


def main() -> None:
    """Measure everything and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few ids, nothing stored")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="only these tables, nothing stored")
    options = parser.parse_args()
    if options.quick:
        be_quick()
    million = 500 if options.quick else 1_000_000
    processes = 1 if options.quick else 3
    report, targets = Report("Time buckets: memory, time, and the longest call"), Targets()
    report.note(NOTES)
    if (reason := _java.why_not()) is not None:
        report.note(reason)
    tables = {
        "delayed": lambda: delayed_table(report, targets, 10 * million, min(processes, 2)),
        "nacks": lambda: nacks_table(report, targets, million, processes),
        "estimate": lambda: estimate_table(report, targets, 10 * million),
        "single": lambda: single_table(report, targets, million),
        "bulk": lambda: bulk_table(report, targets, million),
        "drain": lambda: drain_table(report, targets, million),
        "proof": lambda: proof_table(report, million),
        "seal": lambda: seal_table(report, targets, million),
        "slices": lambda: slices_table(report, targets, million),
    }
    for name in options.only:
        tables[name]()
    report.note("With so few ids this only proves that everything runs." if options.quick else targets.summary())
    if not options.quick and tuple(options.only) == PARTS:
        report.save("timebucket")


if __name__ == "__main__":
    main()
