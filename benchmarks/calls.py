"""How many calls inside pulsar_nack a message takes on the native client, for each operation.

Run ``python benchmarks/calls.py``; it uses an embedded broker. Counts do not depend on the speed of the machine.
Calls inside asyncio and libraries do not count. ``--quick`` takes few rounds, ``--save`` stores ``results/calls.md``.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from _report import Report

import pulsar_nack
from pulsar_nack.testing import EmbeddedBroker

ROOT = str(Path(pulsar_nack.__file__).parent)
OPERATIONS = ("receive", "acknowledge", "nack until it is back")
COLUMNS = ("calls", "functions", "files", "changes of file", "returns to a file")
WARM = 20


@contextmanager
def counted(found: list[list[int]]) -> Iterator[None]:
    """Append the figures of the calls inside pulsar_nack to ``found``, in the order of ``COLUMNS``."""
    calls: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT):
            calls.append((code.co_filename, code.co_qualname))

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
    way = [file for at, (file, _) in enumerate(calls) if not at or calls[at - 1][0] != file]
    files = {file for file, _ in calls}
    found.append([len(calls), len({*calls}), len(files), max(len(way) - 1, 0), len(way) - len(files)])


async def count(rounds: int) -> list[list[object]]:
    """Return a row for each operation: the means after a warm-up."""
    found: dict[str, list[list[int]]] = {name: [] for name in OPERATIONS}
    receive, acknowledge, back = found.values()
    async with (
        EmbeddedBroker() as broker,
        pulsar_nack.connect(broker.service_url) as client,
        client.producer("calls") as producer,
        client.subscribe("calls", "subscription") as consumer,
    ):
        for _ in range(WARM + rounds):
            await producer.send(b"x")
            await asyncio.sleep(0.003)
            with counted(receive):
                message = await consumer.receive(timeout=5)
            with counted(back):
                await message.nack(0.02)
                message = await consumer.receive(timeout=5)
            with counted(acknowledge):
                await message.ack()
    return [
        [name, *(sum(values) / rounds for values in zip(*figures[WARM:], strict=True))]
        for name, figures in found.items()
    ]


def main() -> None:
    """Count calls, and print a table."""
    parser = argparse.ArgumentParser(description="calls inside pulsar_nack for each operation")
    parser.add_argument("--quick", action="store_true", help="few rounds, to check that it runs")
    parser.add_argument("--save", action="store_true", help="store the table in benchmarks/results")
    options = parser.parse_args()
    report = Report("The calls of a message")
    report.table("Calls", ["operation", *COLUMNS], asyncio.run(count(5 if options.quick else 50)))
    if options.save:
        report.save("calls")


if __name__ == "__main__":
    main()
