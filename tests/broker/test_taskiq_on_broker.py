"""taskiq workers as processes on a real broker: killed with signal 9, and stopped with SIGTERM."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("taskiq")
pytest.importorskip("google_crc32c")

from tests.broker._admin import Admin
from tests.integrations.taskiq_worker import DELAY, SUBSCRIPTION, fails_twice, is_killed, send, stop, until, working
from tests.patience import patience

SLACK = patience(0.25)
TICK = 1.0
"""Seconds between the broker's looks for due delayed messages: taskiq's own retries wait there."""


@pytest.mark.parametrize("retries", ["nack", "taskiq"])
async def test_fails_twice(service_url: str, topic: str, tmp_path: Path, retries: str) -> None:
    """U51: a task that fails twice with a delay of 2 s runs at 0, 2 and 4 s, and is settled."""
    await fails_twice(service_url, topic, tmp_path, retries, SLACK + (TICK if retries == "taskiq" else 0))


async def test_kills_lose_nothing(service_url: str, topic: str, tmp_path: Path) -> None:
    """U51: killed between two runs, and during a run, with the nack: the next worker runs the task at once."""
    waited, _ = await is_killed(service_url, topic, tmp_path, "nack")
    assert waited < DELAY + patience(1)


async def test_taskiq_keeps_the_delay_at_the_broker(service_url: str, topic: str, tmp_path: Path) -> None:
    """U51: taskiq's own retries are messages with a delivery time, which any worker waits for, never early."""
    waited, _ = await is_killed(service_url, topic, tmp_path, "taskiq")
    assert DELAY - 0.005 <= waited < DELAY + patience(3)


async def test_tasks_before_the_first_worker_are_kept(
    service_url: str, topic: str, tmp_path: Path, admin: Admin
) -> None:
    """The first task creates the subscription; a delayed task is not early by the broker's tick."""
    about = (service_url, topic, "nack")
    early = await send(tmp_path / "early", *about, fails=0)
    delayed = await send(tmp_path / "delayed", *about, fails=0, delay=DELAY)
    sent_at = delayed.sent_at
    async with working(tmp_path / "log", *about) as process:
        await until(lambda: early.is_done and delayed.is_done)
        await stop(process)
    (ran_at,) = delayed.runs
    assert sent_at + DELAY - 0.005 <= ran_at
    assert len(early.runs) == 1
    assert SUBSCRIPTION in admin.stats(topic)["subscriptions"]
