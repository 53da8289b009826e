"""A durable consumer in a separate process, to be killed.

``python -m tests.consumer.durable_worker SERVICE_URL TOPIC FOLDER TYPE ACTION``; it prints ``subscribed``, then for
each message its payload and attempt. TYPE is the consumer type; the actions:

- ``nack:SECONDS``  nacks, and prints it when the nack has returned
- ``stay``          prints it, and stays in its handler
- ``die``           kills itself with signal 9 inside the handler
- ``ack:COUNT``     acknowledges, all at the same time, and is killed as soon as that many have returned
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from pulsar_nack import Consumer
from pulsar_nack.testing._embedded_broker import GuardedProcess
from tests.consumer.official import subscribed, take
from tests.patience import patience

ROOT = Path(__file__).parent.parent.parent


async def work(url: str, topic: str, folder: str, consumer_type: str, action: str) -> None:
    """Work until killed."""
    name, _, number = action.partition(":")
    async with subscribed(url, topic, durable=folder, consumer_type=consumer_type) as (_, consumer):
        say("subscribed")
        if name == "ack":
            await acknowledge(consumer, int(number))
        async for message in consumer:
            if name == "die":
                say(f"{message.data.decode()} {message.attempt}")
                die()
            if name == "nack":
                await message.nack(float(number))
            say(f"{message.data.decode()} {message.attempt}")


async def acknowledge(consumer: Consumer, count: int) -> None:
    """Acknowledge ``count`` messages, and die before the client sends them."""
    messages = await take(consumer, count, timeout=30)
    await asyncio.gather(*(message.ack() for message in messages))
    die()


def say(line: str) -> None:
    """Print at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def die() -> None:
    """Be killed, as with ``kill -9``."""
    os.kill(os.getpid(), signal.SIGKILL)


class Worker:
    """The process, as its parent sees it."""

    def __init__(self, process: GuardedProcess, output: Path) -> None:
        self.process = process
        self._output = output

    def lines(self) -> list[str]:
        """Return the printed lines."""
        return self._output.read_text().splitlines()

    async def said(self, count: int, seconds: float = 30.0) -> list[str]:
        """Wait until it has printed ``count`` lines after the first, and return them."""
        async with asyncio.timeout(seconds):
            while len(self.lines()) <= count:
                assert self.process.exit_code is None, self.lines()
                await asyncio.sleep(0.01)
        return self.lines()[1:]

    async def died(self, seconds: float = 30.0) -> None:
        """Wait until it was killed."""
        async with asyncio.timeout(seconds):
            while self.process.exit_code is None:
                await asyncio.sleep(0.01)
        assert self.process.exit_code == -signal.SIGKILL, self.lines()


@contextlib.asynccontextmanager
async def working(
    url: str, topic: str, folder: Path, action: str, consumer_type: str = "shared"
) -> AsyncIterator[Worker]:
    """Run a worker that is subscribed; kill it at the end."""
    output = folder.with_name(f"{folder.name}.{len(list(folder.parent.iterdir()))}.out")
    command = [sys.executable, "-m", __name__, url, topic, str(folder), consumer_type, action]
    process = GuardedProcess(command, log=output, cwd=ROOT)
    try:
        worker = Worker(process, output)
        async with asyncio.timeout(patience(10)):
            while not worker.lines():
                assert process.exit_code is None
                await asyncio.sleep(0.01)
        assert worker.lines()[0] == "subscribed", worker.lines()
        yield worker
    finally:
        process.kill()


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:]))
