"""A worker whose handlers may hang: a job that is not done when its lease ends is given to another handler.

    pip install 'pulsar-nack[demo]'
    python examples/lease.py            # runs until Ctrl-C
    python examples/lease.py --once     # ends when its sample jobs are done

It uses the broker at PULSAR_SERVICE_URL, or starts an embedded one. A long job says every now and then that it is in
progress, so it keeps its message. A job that waits for an answer which never comes does not, and is tried again.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pulsar_nack
from pulsar_nack.errors import LeaseExpiredError
from pulsar_nack.testing import EmbeddedBroker

TOPIC = "example-lease-jobs"
LEASE = 0.6  # seconds; longer than anything between two signs of life, so minutes in real life
SAMPLE_JOBS = ["render a page", "render a film", "ask a partner that does not answer"]


async def work(message: pulsar_nack.Message) -> None:
    """Do one job; the film takes four leases, and the partner answers no sooner than at the second attempt."""
    job = message.data.decode()
    if "film" in job:
        for scene in range(8):
            await asyncio.sleep(LEASE / 2)
            await message.in_progress()  # the lease ends LEASE seconds from now
            log(f"{job}: scene {scene + 1}")
    elif "partner" in job and message.attempt == 1:
        await asyncio.sleep(3 * LEASE)


async def main(*, once: bool) -> None:
    """Send the sample jobs, then run a handler of them; with ``once``, until all have ended."""
    ended = 0

    async def handle(message: pulsar_nack.Message) -> None:
        nonlocal ended
        job = message.data.decode()
        await work(message)
        try:
            await message.ack()
            log(f"{job}: done at attempt {message.attempt}")
        except LeaseExpiredError:
            log(f"{job}: attempt {message.attempt} is too late, another one has the job")
        ended += 1
        if once and ended > len(SAMPLE_JOBS):
            draining.append(asyncio.create_task(consumer.drain()))

    draining: list[asyncio.Task[object]] = []
    async with (
        broker() as url,
        pulsar_nack.connect(url) as client,
        client.subscribe(TOPIC, "workers", lease=LEASE, backoff=0.1) as consumer,
        client.producer(TOPIC) as producer,
    ):
        for job in SAMPLE_JOBS:
            await producer.send(job.encode())
        await consumer.run(handle, stop_on_signals=True)
        log(f"{consumer.statistics().leases_expired} lease ended")


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
    logging.basicConfig(stream=sys.stdout, format="          %(message)s")
    asyncio.run(main(once=parser.parse_args().once))
