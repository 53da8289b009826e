"""taskiq on Pulsar: a delayed task, a flaky task that is retried, and a hopeless one that becomes a dead letter.

    pip install 'pulsar-nack[taskiq,demo]'
    python examples/taskiq_worker.py                  # sends sample tasks and works until they are done
    cd examples; taskiq worker taskiq_worker:broker   # as in production: worker processes, until Ctrl-C

It uses the broker at PULSAR_SERVICE_URL; the first command starts an embedded one without it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import time
from contextlib import suppress

from taskiq.api import run_receiver_task

from pulsar_nack import DeadLetterPolicy
from pulsar_nack.integrations.taskiq import NackRetryMiddleware, PulsarBroker
from pulsar_nack.testing import EmbeddedBroker

broker = PulsarBroker(
    os.environ.get("PULSAR_SERVICE_URL", "pulsar://localhost:6650"),
    topic="example-tasks",
    dead_letter=DeadLetterPolicy(max_redeliveries=10, initial_subscription="repair"),
).with_middlewares(NackRetryMiddleware(default_delay=1.0))

failures = 0


@broker.task
async def send_mail(to: str) -> None:
    """Succeed at once."""
    log(f"mail to {to}")


@broker.task(retry_on_error=True, max_retries=3)
async def call_partner(order: int) -> None:
    """Fail twice, then succeed."""
    global failures  # noqa: PLW0603 - stands for the partner's troubles
    failures += 1
    log(f"order {order}: {'no answer' if failures < 3 else 'done'}")
    if failures < 3:
        raise TimeoutError("the partner does not answer")


@broker.task
async def parse(text: str) -> int:
    """Fail for good."""
    return int(text)


async def main() -> None:
    """Work in this process, send the sample tasks, and end when they are done."""
    logging.getLogger("taskiq").setLevel(logging.CRITICAL)  # it logs each failure with its traceback
    await broker.startup()
    worker = asyncio.create_task(run_receiver_task(broker, max_async_tasks=10))
    await asyncio.sleep(0.5)  # the embedded broker keeps no task before the first worker has subscribed
    log("sent")
    await send_mail.kicker().with_labels(delay=1.5).kiq("ann@example.org")
    await call_partner.kiq(17)
    await parse.kiq("twelve")
    async with asyncio.timeout(30):
        while broker.consumer is None or broker.consumer.statistics().unacked or failures < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    log(f"{broker.consumer.statistics().dead_lettered} dead letter")
    worker.cancel()
    with suppress(asyncio.CancelledError):
        await worker
    await broker.shutdown()


def log(text: str) -> None:
    """Print a line with the seconds since the start."""
    print(f"{time.monotonic() - STARTED_AT:6.2f} s  {text}", flush=True)


STARTED_AT = time.monotonic()

if __name__ == "__main__":
    if "PULSAR_SERVICE_URL" in os.environ:
        asyncio.run(main())
    else:
        with EmbeddedBroker() as embedded:
            again = {**os.environ, "PULSAR_SERVICE_URL": embedded.service_url}
            subprocess.run([sys.executable, *sys.orig_argv[1:]], env=again, check=True)
