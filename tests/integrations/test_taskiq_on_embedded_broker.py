"""taskiq workers as processes on the embedded broker: killed with signal 9, and stopped with SIGTERM."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("taskiq")
pytest.importorskip("google_crc32c")

from pulsar_nack.testing import EmbeddedBroker
from tests.integrations.taskiq_worker import DELAY, fails_twice, is_killed
from tests.patience import patience

pytestmark = [
    pytest.mark.skipif(not EmbeddedBroker.available(), reason="pulsar-lite does not run here"),
    pytest.mark.slow,
]
SLACK = patience(0.25)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The service URL of an embedded broker."""
    with EmbeddedBroker() as broker:
        yield broker.service_url


@pytest.fixture
def topic() -> str:
    """An unused topic."""
    return f"t-{uuid.uuid4().hex[:8]}"


@pytest.mark.parametrize("retries", ["nack", "taskiq"])
async def test_fails_twice(url: str, topic: str, tmp_path: Path, retries: str) -> None:
    """U51: a task that fails twice with a delay of 2 s runs at 0, 2 and 4 s, and is settled."""
    await fails_twice(url, topic, tmp_path, retries, SLACK)


async def test_kills_lose_nothing(url: str, topic: str, tmp_path: Path) -> None:
    """U51: killed between two runs, and during a run, with the nack: the next worker runs the task at once."""
    waited, _ = await is_killed(url, topic, tmp_path, "nack")
    assert waited < DELAY + SLACK


async def test_the_delay_outlives_a_kill(url: str, topic: str, tmp_path: Path) -> None:
    """U51: with a durable broker the delay of a nack outlives the worker too."""
    waited, _ = await is_killed(url, topic, tmp_path, "nack", is_durable=True)
    assert DELAY - 0.005 <= waited < DELAY + patience(3)


async def test_taskiq_keeps_the_delay_at_the_broker(url: str, topic: str, tmp_path: Path) -> None:
    """U51: taskiq's own retries are messages with a delivery time, which any worker waits for."""
    waited, _ = await is_killed(url, topic, tmp_path, "taskiq")
    assert DELAY - 0.005 <= waited < DELAY + patience(3)
