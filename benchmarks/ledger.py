"""Append-only logs: appends per second from few and many tasks, compared with the disk alone.

Run ``python benchmarks/ledger.py``. The raw columns write the same bytes with ``os.pwrite`` and ``os.fdatasync`` in a
plain loop, without checksums, threads or an event loop: with one record per sync, and with as many records per sync as
there are appenders, which is the best possible group commit. The file system is that of ``--folder`` (a temporary
folder by default; not a memory file system).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from _report import Report

from pulsar_nack.ledger import LocalLogStore

APPENDERS = (1, 16, 256)
SIZES = (100, 10_000)


def raw(path: Path, size: int, group: int, seconds: float) -> float:
    """Return records per second of a plain loop of writes and syncs, with ``group`` records per sync."""
    data, offset, syncs = os.urandom(size * group), 0, 0
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
    began = time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        offset += os.pwrite(descriptor, data, offset)
        os.fdatasync(descriptor)
        syncs += 1
    os.close(descriptor)
    path.unlink()
    return syncs * group / spent


async def ours(path: Path, size: int, appenders: int, seconds: float) -> tuple[float, float]:
    """Return appends per second, and the mean ms per append."""
    data = os.urandom(size)
    async with await LocalLogStore.open(path) as store:
        log = await store.create("log")
        end = time.perf_counter() + seconds

        async def work() -> None:
            while time.perf_counter() < end:
                await log.append(data)

        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(appenders)))
        spent = time.perf_counter() - began
        rate = log.length / spent
        await log.delete()
    return rate, 1000 * appenders / rate


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    """Return how many seconds the work takes."""
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def whole(path: Path, records: int, size: int) -> list[list[object]]:
    """Write, open and read a large log; return table rows."""
    data = [os.urandom(size)] * 1000
    async with await LocalLogStore.open(path) as store:
        log = await store.create("log")

        async def write() -> None:
            for _ in range(records // 1000):
                await log.append_many(data)

        async def read() -> None:
            async for _ in log.records():
                pass

        seconds = {"append_many of 1,000": await timed(write)}
        await log.aclose()
        began = time.perf_counter()
        log = await store.open_log("log")
        seconds["open (checks the last segment)"] = time.perf_counter() - began
        seconds["read all"] = await timed(read)
        total = log.size
        await log.delete()
    return [[name, records / spent, total / spent / 1e6, spent * 1000] for name, spent in seconds.items()]


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description="append-only logs, compared with the disk alone")
    parser.add_argument("--quick", action="store_true", help="few records, to check that it runs")
    parser.add_argument("--save", action="store_true", help="store the tables in benchmarks/results")
    parser.add_argument("--folder", type=Path, help="measure the file system of this folder")
    options = parser.parse_args()
    seconds, records = (0.1, 10_000) if options.quick else (2.0, 500_000)
    report = Report("Append-only logs")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for size in SIZES:
            rows: list[list[object]] = []
            for appenders in APPENDERS:
                alone = raw(Path(folder) / "raw", size, 1, seconds)
                grouped = raw(Path(folder) / "raw", size, appenders, seconds)
                rate, latency = asyncio.run(ours(Path(folder), size, appenders, seconds))
                rows.append([appenders, rate, latency, rate * size / 1e6, alone, grouped])
            columns = ["appenders", "appends/s", "ms an append", "MB/s", "raw, a sync each/s", "raw, a sync for all/s"]
            report.table(f"Durable appends of {size:,} bytes", columns, rows)
        rows = asyncio.run(whole(Path(folder), records, 100))
        report.table(f"{records:,} records of 100 bytes", ["what", "records/s", "MB/s", "ms"], rows)
    if options.save:
        report.save("ledger")


if __name__ == "__main__":
    main()
