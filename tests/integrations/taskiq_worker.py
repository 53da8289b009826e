"""A taskiq worker process that the tests kill, or stop with SIGTERM.

``python -m tests.integrations.taskiq_worker SERVICE_URL TOPIC RETRIES [DURABLE]``; RETRIES is ``nack`` or ``taskiq``.
It prints ``listening`` first. Each run of a task is a line in the task's file: the time, epoch seconds.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from taskiq import SmartRetryMiddleware
from taskiq.receiver import Receiver

from pulsar_nack.integrations.taskiq import NackRetryMiddleware, PulsarBroker
from pulsar_nack.testing._embedded_broker import GuardedProcess

ROOT = Path(__file__).parents[2]
MIDDLEWARES = {"nack": NackRetryMiddleware, "taskiq": SmartRetryMiddleware}
SUBSCRIPTION = "sub"
DELAY = 2.0


def tasks(url: str, topic: str, retries: str, durable: str | None = None) -> PulsarBroker:
    """Return the broker, with the one task ``work``."""
    settings: dict[str, Any] = {} if durable is None else {"durable": durable}
    broker = PulsarBroker(url, topic=topic, subscription=SUBSCRIPTION, **settings)
    broker.add_middlewares(MIDDLEWARES[retries](default_delay=DELAY, default_retry_count=9))

    @broker.task(task_name="work", retry_on_error=True)
    async def work(path: str, fails: int, seconds: float) -> None:
        with Path(path).open("a") as file:
            file.write(f"{time.time():.3f}\n")
        runs = len(Path(path).read_text().splitlines())
        await asyncio.sleep(seconds)
        if runs <= fails:
            raise ValueError(f"run {runs} fails")
        Path(f"{path}.done").touch()

    return broker


async def work(*arguments: str) -> None:
    """Work until SIGTERM."""
    broker, stopping = tasks(*arguments), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    receiver = asyncio.create_task(Receiver(broker, max_async_tasks=5, run_startup=True).listen(stopping))
    while broker.consumer is None and not receiver.done():
        await asyncio.sleep(0.01)
    os.write(1, b"listening\n")
    await receiver
    await broker.shutdown()


@asynccontextmanager
async def working(log: Path, *arguments: str) -> AsyncIterator[GuardedProcess]:
    """Run a worker until it listens; kill it at the end."""
    log.unlink(missing_ok=True)
    process = GuardedProcess([sys.executable, "-m", __name__, *arguments], log=log, cwd=ROOT)
    try:
        await until(lambda: process.exit_code is not None or "listening" in log.read_text())
        assert process.exit_code is None, log.read_text()
        yield process
    finally:
        process.kill()


async def until(is_true: Any, seconds: float = 30.0) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(seconds):
        while not is_true():
            await asyncio.sleep(0.01)


async def stop(process: GuardedProcess) -> None:
    """End a worker with SIGTERM."""
    os.kill(process.pid, signal.SIGTERM)
    await until(lambda: process.exit_code is not None)
    assert process.exit_code == 0


class Task:
    """One task that was sent, observed in its file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.sent_at = time.time()
        path.touch()

    @property
    def runs(self) -> list[float]:
        """When it ran, epoch seconds."""
        return [float(line) for line in self._path.read_text().splitlines()]

    @property
    def is_done(self) -> bool:
        """Whether it succeeded."""
        return Path(f"{self._path}.done").exists()

    @property
    def gaps(self) -> list[float]:
        """The seconds between its runs."""
        return [later - earlier for earlier, later in zip(self.runs, self.runs[1:], strict=False)]


async def send(path: Path, *arguments: str, fails: int, seconds: float = 0.0, **labels: Any) -> Task:
    """Send the task ``work``."""
    broker = tasks(*arguments[:3])
    await broker.startup()
    try:
        task = Task(path)
        found = broker.find_task("work")
        assert found is not None
        await found.kicker().with_labels(**labels).kiq(str(path), fails, seconds)
    finally:
        await broker.shutdown()
    return task


async def left(url: str, topic: str, seconds: float = 1.0) -> int:
    """Return how many messages of the workers' subscription are unacknowledged."""
    broker = tasks(url, topic, "taskiq")
    await broker.startup()
    found = 0
    listening = broker.listen()
    try:
        while True:
            async with asyncio.timeout(seconds):
                await anext(listening)
            found += 1
    except TimeoutError:
        return found
    finally:
        await listening.aclose()
        await broker.shutdown()


# --- on any broker ---------------------------------------------------------------------------------------------------


async def fails_twice(url: str, topic: str, folder: Path, retries: str, slack: float) -> None:
    """A task that fails twice runs at 0, 2 and 4 s; then nothing is left."""
    about = (url, topic, retries)
    async with working(folder / "one", *about) as process:
        task = await send(folder / "task", *about, fails=2)
        await until(lambda: task.is_done)
        await asyncio.sleep(0.3)
        await stop(process)
    assert len(task.runs) == 3
    assert all(DELAY - 0.005 <= gap < DELAY + slack for gap in task.gaps), task.gaps
    assert await left(url, topic) == 0


async def is_killed(url: str, topic: str, folder: Path, retries: str, *, is_durable: bool = False) -> list[float]:
    """A worker is killed while its task waits for a retry, the next while the task runs; return the gaps."""
    about = (url, topic, retries, *([str(folder / "state")] if is_durable else []))
    async with working(folder / "one", *about) as process:
        task = await send(folder / "task", *about, fails=1, seconds=0.2)
        await until(lambda: len(task.runs) == 1)
        await asyncio.sleep(0.7)
        process.kill()
    async with working(folder / "two", *about) as process:
        await until(lambda: len(task.runs) == 2)
        process.kill()
    assert not task.is_done
    async with working(folder / "three", *about) as process:
        await until(lambda: task.is_done)
        await asyncio.sleep(0.5)
        await stop(process)
    assert len(task.runs) == 3
    assert await left(url, topic) == 0
    return task.gaps


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:]))
