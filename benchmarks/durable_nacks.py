"""Durable nacks: the cost of a call, alone and among 500, and the size of a million nacks.

Run ``python benchmarks/durable_nacks.py``. Each figure is compared with the same calls of a consumer without
``durable``, and with the disk alone: a write and a sync in a plain loop. The port is in memory, so no broker is
measured; *work* is the processor time of the loop's thread, *time* the time that passed. The file system is that of
``--folder`` (a temporary folder by default; not a memory file system).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from _report import Report

from pulsar_nack import Consumer, Message, MessageId
from pulsar_nack.clock import WallClock
from pulsar_nack.consumer.durable import DurableNacks
from pulsar_nack.testing import FakePort

TASKS = (1, 20, 500)
RECORD = 90


def raw_sync(folder: Path, seconds: float) -> float:
    """Return us per write and sync of one record, in a plain loop."""
    path, data, offset, syncs = folder / "raw", os.urandom(RECORD), 0, 0
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
    began = time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        offset += os.pwrite(descriptor, data, offset)
        os.fdatasync(descriptor)
        syncs += 1
    os.close(descriptor)
    path.unlink()
    return spent / syncs * 1e6


async def timed(calls: list[Callable[[], Awaitable[object]]], tasks: int) -> tuple[float, float]:
    """Make the calls from a number of tasks; return us of work and of time per call."""
    rest = iter(calls)

    async def some() -> None:
        for call in rest:
            await call()

    work, began = time.thread_time(), time.perf_counter()
    await asyncio.gather(*(some() for _ in range(tasks)))
    spent = time.perf_counter() - began
    return (time.thread_time() - work) / len(calls) * 1e6, spent / len(calls) * 1e6


async def messages_of(consumer: Consumer, port: FakePort, count: int) -> list[Message]:
    """Publish and receive messages outside of the measured time; many at once, because that is quicker."""
    for _ in range(count):
        port.topic.publish(b"x")
    return list(await asyncio.gather(*(consumer.receive() for _ in range(count))))


async def calls(folder: Path | None, tasks: int, count: int) -> list[list[object]]:
    """Return a row for each kind of call."""
    port = FakePort(receiver_queue_size=2 * count)
    rows: list[list[object]] = []
    async with Consumer(port, durable=folder, unacked_limit=None) as consumer:
        messages = await messages_of(consumer, port, count)
        rows.append(["nack", *await timed([partial(message.nack, 3600) for message in messages], tasks)])
        messages = await messages_of(consumer, port, count)
        rows.append(["ack", *await timed([message.ack for message in messages], tasks)])
        for _ in range(count):
            port.topic.publish(b"x")
        rows.append(["receive", *await timed([consumer.receive] * count, tasks)])
    return rows


async def recovery(folder: Path, count: int, every: int) -> list[object]:
    """Hold ``count`` nacks, of one in ``every`` messages; return their size, and how long opening takes."""
    options = {"memory_ms": 60_000, "ttl_ms": 7 * 86_400_000, "clock": WallClock()}
    durable = await DurableNacks(**options).open(folder)  # type: ignore[arg-type]
    running = asyncio.create_task(durable.run())
    topic = "persistent://public/default/orders"
    for first in range(0, count, 2_000):
        ids = [MessageId(7, every * number, topic=topic) for number in range(first, min(first + 2_000, count))]
        await asyncio.gather(*(durable.nacked(message_id, 3_600_000, 1) for message_id in ids))
    for _ in range(3):
        await durable.delivered(MessageId(8, 0, topic=topic), 1)
        await asyncio.sleep(0.2)
    await durable.finish()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    size = durable.journal.bytes
    await durable.aclose()
    began = time.perf_counter()
    durable = await DurableNacks(**options).open(folder)  # type: ignore[arg-type]
    seconds = time.perf_counter() - began
    held = len(durable.state.pending)
    await durable.aclose()
    tracemalloc.start()
    durable = await DurableNacks(**options).open(folder)  # type: ignore[arg-type]
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    await durable.aclose()
    return [f"{count:,}, one in {every}", held, taken / count, size / count, seconds]


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description="durable nacks")
    parser.add_argument("--quick", action="store_true", help="few messages, to check that it runs")
    parser.add_argument("--save", action="store_true", help="store the tables in benchmarks/results")
    parser.add_argument("--folder", type=Path, help="measure the file system of this folder")
    options = parser.parse_args()
    count, many, seconds = (200, 5_000, 0.1) if options.quick else (20_000, 1_000_000, 2.0)
    report = Report("Durable nacks")
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        for tasks in TASKS:
            number = max(count // 20, tasks) if tasks == 1 else count
            plain = asyncio.run(calls(None, tasks, number))
            durable = asyncio.run(calls(folder / f"calls-{tasks}", tasks, number))
            rows = [[*mine, *theirs[1:]] for mine, theirs in zip(durable, plain, strict=True)]
            columns = ["call", "us of work", "us of time", "not durable: work", "time"]
            report.table(f"{tasks} task{'s' * (tasks > 1)}", columns, rows)
        report.note(f"A write and its sync alone take {raw_sync(folder, seconds):.0f} us on this disk.")
        rows = [asyncio.run(recovery(folder / f"many-{every}", many, every)) for every in (1, 10)]
        columns = ["unsettled", "held again", "bytes of memory each", "bytes on disk each", "s to open"]
        report.table("Many durable nacks", columns, rows)
    if options.save:
        report.save("durable_nacks")


if __name__ == "__main__":
    main()
