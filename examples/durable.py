"""A worker with durable nacks: killed in the middle of a job, it continues with the next attempt, at the right time.

    pip install 'pulsar-nack[demo]'
    python examples/durable.py

The program starts itself three times as a worker. It kills the first worker with signal 9 in the middle of a job, and
the second one while a nacked job waits. It uses the broker at PULSAR_SERVICE_URL, or starts an embedded one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pulsar_nack
from pulsar_nack.testing import EmbeddedBroker

TOPIC = "example-durable-jobs"
DELAY = 3.0  # seconds; an hour in real life


async def work(url: str, folder: str) -> None:
    """Work on the one job: hang at its first attempt, fail at its second, succeed at its third."""
    async with (
        pulsar_nack.connect(url) as client,
        client.subscribe(TOPIC, "workers", durable=folder) as consumer,
    ):
        print("ready", flush=True)
        async for message in consumer:
            print(f"attempt {message.attempt}", flush=True)
            if message.attempt == 1:
                await asyncio.sleep(3600)
            elif message.attempt == 2:
                await message.nack(DELAY)
                print("nacked", flush=True)
            else:
                await message.ack()
                print("done", flush=True)
                return


async def main() -> None:
    """Send a job, and watch three workers."""
    with tempfile.TemporaryDirectory() as folder:
        async with broker() as url:
            async with pulsar_nack.connect(url) as client, client.subscribe(TOPIC, "workers"):
                pass  # creates the subscription before the job is sent
            async with worker(url, folder) as process:
                async with pulsar_nack.connect(url) as client, client.producer(TOPIC) as producer:
                    await producer.send(b"job")
                await says(process, "attempt 1")
                print("killed in the middle of the job")

            async with worker(url, folder) as process:
                await says(process, "attempt 2")
                await says(process, "nacked")
                nacked_at = time.monotonic()
                print(f"killed while the job waits for {DELAY:.0f} s")

            async with worker(url, folder) as process:
                await says(process, "attempt 3")
                print(f"redelivered {time.monotonic() - nacked_at:.1f} s after the nack")
                await says(process, "done")
                await process.wait()


@asynccontextmanager
async def worker(url: str, folder: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Yield a worker that is subscribed; kill it with signal 9 at the end, unless it has ended."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--work", url, folder, stdout=asyncio.subprocess.PIPE
    )
    try:
        await says(process, "ready")
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def says(process: asyncio.subprocess.Process, text: str) -> None:
    """Wait for the worker's next line, and check it."""
    assert process.stdout is not None
    said = (await asyncio.wait_for(process.stdout.readline(), 20)).decode().strip()
    assert said == text, said
    print(f"worker {process.pid}: {said}")


@asynccontextmanager
async def broker() -> AsyncIterator[str]:
    """Yield the address of the broker in the environment, or of an embedded one."""
    if url := os.environ.get("PULSAR_SERVICE_URL"):
        yield url
    else:
        async with EmbeddedBroker() as embedded:
            yield embedded.service_url


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", nargs=2, metavar=("URL", "FOLDER"), help="run as a worker")
    options = parser.parse_args()
    asyncio.run(work(*options.work) if options.work else main())
