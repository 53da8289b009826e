"""A queue in a folder: failed jobs come back after their delays, even if the worker was killed with signal 9.

    pip install 'pulsar-nack[topic]'
    python examples/local_topic.py

It needs no broker. The worker is killed after its first job, and the next worker does the remaining jobs.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile

from pulsar_nack import LocalTopic

JOBS = ("resize the picture", "send the invoice", "call the slow partner", "write the report")
FAILURES = {"resize the picture": 1, "call the slow partner": 2}


async def publish(folder: str) -> None:
    """Put the jobs into the queue."""
    async with await LocalTopic.open(folder) as topic:
        await topic.create_subscription("workers")
        await topic.publish([job.encode() for job in JOBS])


async def work(folder: str, *, hangs: bool) -> None:
    """Do jobs until none is left; a failed job comes back half a second later.

    :param hangs: whether to hang after the first job, until the process is killed
    """
    async with await LocalTopic.open(folder) as topic, topic.consumer("workers", backoff=0.5) as consumer:
        while topic.backlog("workers"):
            message = await consumer.receive(timeout=10)
            job = message.data.decode()
            if message.redelivery_count < FAILURES.get(job, 0):
                await message.nack()
                continue
            await message.ack()
            await topic.flush()
            print(f"{job}: done at attempt {message.redelivery_count + 1}", flush=True)
            if hangs:
                await asyncio.Event().wait()


async def main() -> None:
    """Publish jobs, kill a worker after its first job, and let a second worker do the rest."""
    with tempfile.TemporaryDirectory() as folder:
        await publish(folder)
        done: list[str] = []
        for is_killed in (True, False):
            options = ["--work", folder, *(["--hang"] if is_killed else [])]
            process = await asyncio.create_subprocess_exec(
                sys.executable, __file__, *options, stdout=asyncio.subprocess.PIPE
            )
            assert process.stdout is not None
            while line := (await process.stdout.readline()).decode().strip():
                print(line)
                done.append(line.partition(":")[0])
                if is_killed:
                    process.kill()
            print("killed" if is_killed else "nothing is left")
            await process.wait()
        assert sorted(done) == sorted(JOBS), done


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", metavar="FOLDER", help="run as a worker")
    parser.add_argument("--hang", action="store_true", help="hang after the first job")
    given = parser.parse_args()
    asyncio.run(work(given.work, hangs=given.hang) if given.work else main())
