"""A worker process that drains on SIGTERM, and the test's side of it.

``python -m tests.broker.draining_worker SERVICE_URL TOPIC`` runs five handlers at once, for about a second each. It
prints each payload when its handler begins and when it ends, then the report.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time

import pulsar_nack
from pulsar_nack import Message
from tests.broker._admin import Admin
from tests.consumer.official import nothing_comes, numbered, take
from tests.patience import patience
from tests.processes import started_python

SUBSCRIPTION = "sub"


async def work(url: str, topic: str) -> None:
    """Run until a signal comes."""

    async def handler(message: Message) -> None:
        print("began", message.data.decode(), flush=True)
        await asyncio.sleep(patience(0.25))  # a second, or more on a busy machine
        print("ended", message.data.decode(), flush=True)

    async with (
        pulsar_nack.connect(url) as client,
        client.subscribe(topic, SUBSCRIPTION, receiver_queue_size=200) as consumer,
    ):
        print("ready", flush=True)
        report = await consumer.run(handler, concurrency=5, stop_on_signals=True)
    print("report", report.settled, report.given_back, report.cancelled, report.left, flush=True)


async def stopped_by_a_signal(url: str, admin: Admin, topic: str) -> float:
    """Send 200 messages to a worker, and SIGTERM while five handlers run; return when a second consumer has the rest.

    Check that the five finish, that nothing is handled twice, and that the worker ends with code 0. The result is in
    seconds after the signal.
    """
    with started_python("-m", "tests.broker.draining_worker", url, topic) as worker:
        assert worker.stdout is not None
        lines = worker.stdout
        assert await asyncio.to_thread(lines.readline) == "ready\n"
        sent = numbered(200)
        async with pulsar_nack.connect(url) as client:
            async with client.producer(topic) as producer:
                await asyncio.gather(*(producer.send(payload) for payload in sent))
            began = [(await asyncio.to_thread(lines.readline)).split() for _ in range(5)]
            assert {word for word, _ in began} == {"began"}
            async with asyncio.timeout(patience(10)):  # until all are prefetched
                while (await asyncio.to_thread(admin.subscription, topic, SUBSCRIPTION))["unackedMessages"] < len(sent):
                    await asyncio.sleep(0.05)
            async with client.subscribe(topic, SUBSCRIPTION, receiver_queue_size=400) as second:
                await asyncio.sleep(0.2)
                signalled_at = time.monotonic()
                worker.send_signal(signal.SIGTERM)
                messages = await take(second, 195, timeout=patience(10))
                took = time.monotonic() - signalled_at
                for message in messages:
                    await message.ack()
                out, err = await asyncio.to_thread(worker.communicate, timeout=patience(20))
                assert (worker.returncode, err) == (0, "")
                *ended, report = [line.split() for line in out.splitlines()]
                assert sorted(payload for word, payload in ended if word == "ended") == sorted(
                    payload for _, payload in began
                )
                assert len(ended) == 5
                assert report == ["report", "5", "195", "0", "0"]
                worked = {payload.encode() for _, payload in began}
                assert {message.data for message in messages} == set(sent) - worked
                assert {message.attempt for message in messages} <= {1, 2}
        async with pulsar_nack.connect(url) as client, client.subscribe(topic, SUBSCRIPTION) as last:
            assert await nothing_comes(last)
    return took


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:]))
