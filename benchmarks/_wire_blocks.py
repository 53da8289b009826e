"""How long the loop of one client is blocked: each row in a separate process.

``ROWS`` names the rows of the table and what each measures. As a program this runs one row and prints its figures
as JSON::

    python benchmarks/_wire_blocks.py '{"row": "batch", "is_quick": false}'

The broker runs in another process, so that only the client is measured.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import subprocess
import sys
from collections.abc import Callable, Coroutine
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _loop import Blocked

import pulsar_nack

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
TARGET_MS = 20.0
SECONDS = 3.0


@contextmanager
def hostile(name: str) -> Iterator[str]:
    """Serve a script of ``tests.wire.hostile`` in another process; yield the URL."""
    command = [sys.executable, "-m", "tests.wire.hostile", name]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        assert broker.stdin is not None
        try:
            yield f"pulsar://127.0.0.1:{broker.stdout.readline().strip()}"
        finally:
            broker.stdin.close()


async def attacked(name: str, take: int, *, is_quick: bool) -> dict[str, float]:
    """Receive what a hostile broker sends; measure the longest block and the largest growth of memory."""
    taken = 0
    with hostile(name) as url:
        async with pulsar_nack.connect(url) as client, client.subscribe("warm", "up"):
            await asyncio.sleep(0.2)  # loads what is imported late; the script does nothing on this topic
        gc.collect()
        before = peak_mb()
        async with pulsar_nack.connect(url) as client:
            with Blocked() as blocked:
                async with client.subscribe("orders", "billing") as consumer:
                    ends_at = asyncio.get_running_loop().time() + (SECONDS / 4 if is_quick else SECONDS)
                    while taken < take and asyncio.get_running_loop().time() < ends_at:
                        try:
                            await consumer.receive(timeout=0.2)
                        except TimeoutError:
                            continue
                        taken += 1
    return {"longest_ms": blocked.callback_ms, "memory_mb": peak_mb() - before, "shown": taken}


def peak_mb() -> float:
    """Return the peak memory of this process, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _attack(name: str, take: int) -> Callable[[bool], Coroutine[Any, Any, dict[str, float]]]:
    return lambda is_quick: attacked(name, take, is_quick=is_quick)


ROWS: dict[str, tuple[str, Callable[[bool], Coroutine[Any, Any, dict[str, float]]]]] = {
    "batch": ("a batch of 1 000 000 in 9 KB, of which 20 000 are received", _attack("batch", 20_000)),
    "many batches": ("500 batches of 1 000 in 60 KB, of which 20 000 are received", _attack("many batches", 20_000)),
    "swollen": ("a message of 128 MB in 130 KB", _attack("swollen", 1)),
    "properties": ("a message with 500 000 properties", _attack("properties", 1)),
    "batch of properties": ("a batch of 500 with 1 000 properties each", _attack("batch of properties", 500)),
    "ack set": ("an ack set of 400 000 words", _attack("ack set", 1)),
    "uuids": ("200 chunks with uuids of 1 MB", _attack("uuids", 1)),
}
"""Rows by name: the title, and the function that measures ``longest_ms``, ``memory_mb`` and ``shown``."""


def measured(row: str, *, is_quick: bool) -> dict[str, Any]:
    """Run a row in a separate process."""
    command = [sys.executable, __file__, json.dumps({"row": row, "is_quick": is_quick})]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise SystemExit(f"{row}: {done.stderr[-2_000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps(asyncio.run(ROWS[asked["row"]][1](asked["is_quick"]))))
