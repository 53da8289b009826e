"""The cost of a trace: ns per event on the loop, and events per second that the thread writes.

Run ``python benchmarks/trace.py``; ``--quick`` takes a twentieth of the events. Results go to ``results/trace.md``.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import tempfile
import time

from _report import Report

from pulsar_nack import MessageId
from pulsar_nack.config import TraceConfig
from pulsar_nack.observe import TraceWriter

ROUNDS = 7


async def on_the_loop(count: int) -> tuple[float, float]:
    """Return ns per event while the writing thread is idle: of this thread's CPU, and by the clock."""
    ids = [MessageId(1, entry) for entry in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        config = TraceConfig(folder=folder, max_buffered_events=4 * count, flush_seconds=3_600)
        async with TraceWriter(config) as writer:
            note = writer.source("persistent://public/default/orders", "billing", "one")
            gc.collect()
            cpu, began = time.thread_time_ns(), time.perf_counter_ns()
            for each in ids:
                note("nack", each, 0, delay_ms=1_000, due_in_ms=1_000)
            return (time.thread_time_ns() - cpu) / count, (time.perf_counter_ns() - began) / count


async def beside_the_thread(count: int) -> tuple[float, float, int]:
    """Return ns of the loop's CPU per event while the thread writes, events per second in all, and dropped events."""
    ids = [MessageId(1, entry) for entry in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        config = TraceConfig(folder=folder, max_buffered_events=4 * count, flush_seconds=0.001)
        writer = TraceWriter(config)
        began = time.perf_counter()
        async with writer:
            note = writer.source("persistent://public/default/orders", "billing", "one")
            cpu = time.thread_time_ns()
            for each in ids:
                note("nack", each, 0, delay_ms=1_000, due_in_ms=1_000)
            used = time.thread_time_ns() - cpu
        return used / count, count / (time.perf_counter() - began), writer.statistics().dropped


async def main() -> None:
    """Print the table and store it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    is_quick = parser.parse_args().quick
    count = 10_000 if is_quick else 200_000
    report = Report("The trace writer")
    alone = [await on_the_loop(count) for _ in range(ROUNDS)]
    beside = [await beside_the_thread(count) for _ in range(ROUNDS)]
    columns = ("case", "events", "best ns CPU", "median ns CPU", "median ns by the clock")
    cpu, clock = [one for one, _ in alone], [other for _, other in alone]
    written = [one[0] for one in beside]
    report.table(
        "An event on the loop (target: below 2,000 ns)",
        columns,
        [
            ["buffered, thread idle", count, min(cpu), statistics.median(cpu), statistics.median(clock)],
            ["while the thread writes", count, min(written), statistics.median(written), None],
        ],
    )
    report.table(
        "Written to the disk, closed and synced",
        ("events", "median events a second", "dropped"),
        [[count, statistics.median(one[1] for one in beside), sum(one[2] for one in beside)]],
    )
    if not is_quick:
        report.save("trace")


if __name__ == "__main__":
    asyncio.run(main())
