"""A worker whose failed jobs come back after growing delays, and are given up after four attempts.

    pip install 'pulsar-nack[demo]'
    python examples/worker.py            # runs until Ctrl-C or SIGTERM, and lets running jobs finish
    python examples/worker.py --once     # ends when its sample jobs are done

It uses the broker at PULSAR_SERVICE_URL, or starts an embedded one. With a client of the official library, call
pulsar_nack.subscribe(client, TOPIC, ...) instead; the rest is the same.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pulsar_nack
from pulsar_nack import Message
from pulsar_nack.consumer import Ignore, Retry
from pulsar_nack.testing import EmbeddedBroker

TOPIC = "example-worker-jobs"
RETRY_DELAYS = [0.2, 0.5, 1.0]  # seconds after the first, second and third failure; minutes in real life
MAX_ATTEMPTS = 4
SAMPLE_JOBS = [
    {"job": "send the invoice", "fails": 0},
    {"job": "resize the picture", "fails": 1},
    {"job": "call the slow partner", "fails": 2},
    {"job": "parse the broken file", "fails": 99},
]


async def work(job: dict[str, Any], attempt: int) -> None:
    """Do one job; here it fails as often as the job says."""
    await asyncio.sleep(0.01)
    if attempt <= job["fails"]:
        raise RuntimeError("no luck")


async def handle(message: Message) -> None:
    """Try a job once; an exception brings it back after RETRY_DELAYS, unless it is a verb."""
    job = json.loads(message.data)
    try:
        await work(job, message.attempt)
    except RuntimeError as error:
        if message.attempt == MAX_ATTEMPTS:
            log(f"{job['job']}: given up after {message.attempt} attempts")
            raise Ignore(str(error)) from error  # or DeadLetter, on a consumer with a dead-letter topic
        log(f"{job['job']}: attempt {message.attempt} failed ({error})")
        raise Retry(reason=str(error)) from error
    log(f"{job['job']}: done at attempt {message.attempt}")


async def main(*, once: bool) -> None:
    """Send the sample jobs, then handle messages."""
    async with (
        broker() as url,
        pulsar_nack.connect(url) as client,
        client.subscribe(TOPIC, "workers", backoff=RETRY_DELAYS) as consumer,
        client.producer(TOPIC) as producer,
    ):
        for job in SAMPLE_JOBS:
            await producer.send(json.dumps(job).encode())
        running = asyncio.create_task(consumer.run(handle, concurrency=10, drain_timeout=20, stop_on_signals=True))
        while once and consumer.statistics().acked < len(SAMPLE_JOBS):  # noqa: ASYNC110 - only for the sample
            await asyncio.sleep(0.1)
        if once:
            await consumer.drain()
        report = await running
        log(f"{consumer.statistics().nacked} failures came back after their delays; {report}")


@asynccontextmanager
async def broker() -> AsyncIterator[str]:
    """Yield the address of the broker in the environment, or of an embedded one."""
    if url := os.environ.get("PULSAR_SERVICE_URL"):
        yield url
    else:
        async with EmbeddedBroker() as embedded:
            yield embedded.service_url


def log(text: str) -> None:
    """Print a line with the seconds since the start."""
    print(f"{time.monotonic() - STARTED_AT:6.2f} s  {text}", flush=True)


STARTED_AT = time.monotonic()

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--once", action="store_true", help="end when the sample jobs are done")
    asyncio.run(main(once=parser.parse_args().once))
