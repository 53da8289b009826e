"""A worker that is killed with signal 9, and never repeats a job that it has reported as done.

    pip install 'pulsar-nack[cursor]'
    python examples/acknowledgements.py

It needs no broker: the jobs are two ledgers of twelve entries. Four tasks work on them and take different times, so
jobs end in any order and the cursor has holes. The worker is killed twice, each time after nine more jobs. The next
worker continues with the remaining jobs.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterator

from pulsar_nack import Cursor, Position

LEDGERS = {1: 12, 2: 12}  # ledger id: number of entries; each entry is a job
SLOW = {Position(1, 2), Position(1, 7), Position(2, 1)}
KILL_AFTER = 9  # jobs


async def work(folder: str) -> None:
    """Do all jobs that are not acknowledged."""
    async with await Cursor.open_local(folder, LEDGERS) as cursor:
        done = [f"({text(after)}, {text(last)}]" for after, last in await cursor.individually_deleted()]
        beyond = f", and beyond it {' '.join(done)}" if done else ""
        print(f"done up to {text(cursor.mark_delete_position)}{beyond}; {cursor.backlog} jobs are left", flush=True)
        left = unfinished(cursor)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(4):
                tasks.create_task(worker(cursor, left))
        print(f"all done: {cursor.backlog} jobs are left, {cursor.metadata_size_bytes} bytes of state", flush=True)


def unfinished(cursor: Cursor) -> Iterator[Position]:
    """Return the jobs beyond the mark-delete position, in order; some of them may be done."""
    return (
        Position(ledger, entry)
        for ledger, entries in LEDGERS.items()
        for entry in range(entries)
        if (ledger, entry) > cursor.mark_delete_position
    )


async def worker(cursor: Cursor, left: Iterator[Position]) -> None:
    """Do one job after the other, without those that are done."""
    for job in left:
        if await cursor.is_acked(job):
            continue
        await asyncio.sleep(1.5 if job in SLOW else 0.02)
        await cursor.acknowledge([job])
        await cursor.flush()  # concurrent flushes share a write
        print(f"job {text(job)}", flush=True)


def text(position: Position) -> str:
    """Return a position as Pulsar writes it."""
    return f"{position.ledger}:{position.entry}"


async def main() -> None:
    """Kill two workers, let a third one finish, and check that no job was reported twice."""
    reported: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for kill_after in (KILL_AFTER, KILL_AFTER, None):
            process = await asyncio.create_subprocess_exec(
                sys.executable, __file__, "--work", folder, stdout=asyncio.subprocess.PIPE
            )
            assert process.stdout is not None
            jobs: list[str] = []
            while line := (await process.stdout.readline()).decode().strip():
                if line.startswith("job "):
                    jobs.append(line)
                else:
                    print(line)
                if len(jobs) == kill_after:
                    process.kill()  # the loop reads what it still prints
            print(f"{len(jobs)} jobs reported{', killed' if kill_after else ''}")
            await process.wait()
            reported += jobs
    assert len(reported) == len(set(reported)), "a job was reported twice"
    print(f"{len(reported)} jobs, none of them twice")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", metavar="FOLDER", help="run as a worker")
    options = parser.parse_args()
    asyncio.run(work(options.work) if options.work else main())
