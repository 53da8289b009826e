"""The benchmark of the native wire runs on a real broker; its figures are not looked at."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.broker.standalone import ADMIN_URL, SERVICE_URL

BENCHMARK = Path(__file__).parent.parent.parent / "benchmarks" / "wire.py"


@pytest.mark.timeout(400)
async def test_every_table_comes_out(broker_urls: tuple[str, str]) -> None:
    """With few messages each case of each side runs to its end."""
    environment = os.environ | dict(zip((SERVICE_URL, ADMIN_URL), broker_urls, strict=True))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(BENCHMARK), "--quick"), env=environment, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert process.returncode == 0
    assert said.count(b"\n## ") == 8
    assert said.count(b"pulsar-nack native") >= 8
