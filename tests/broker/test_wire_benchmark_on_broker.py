"""The benchmarks of the native client and of consumers run on a real broker; their figures are not checked."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.broker.standalone import ADMIN_URL, SERVICE_URL

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


async def run(name: str, broker_urls: tuple[str, str]) -> bytes:
    """Run a benchmark with few messages; return what it printed."""
    environment = os.environ | dict(zip((SERVICE_URL, ADMIN_URL), broker_urls, strict=True))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(BENCHMARKS / name), "--quick"), env=environment, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert process.returncode == 0
    return said


@pytest.mark.timeout(400)
async def test_every_table_comes_out(broker_urls: tuple[str, str]) -> None:
    """With few messages each case of each side runs to its end."""
    said = await run("wire.py", broker_urls)
    assert said.count(b"\n## ") == 8
    assert said.count(b"pulsar-nack native") >= 8


@pytest.mark.timeout(400)
async def test_every_table_of_consumers_comes_out(broker_urls: tuple[str, str]) -> None:
    """It runs beside loops, the official client and, if there is Java, its listener."""
    said = await run("consumer.py", broker_urls)
    assert said.count(b"\n## ") == 3
    assert said.count(b"native, run ") == 4
