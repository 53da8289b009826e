"""Runs the soak: ``python -m tests.soak`` prints figures, and exits with 1 if something is wrong."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import pulsar_nack
from pulsar_nack.errors import BrokerError
from pulsar_nack.testing import EmbeddedBroker
from tests.broker._admin import Admin
from tests.broker._proxy import TcpProxy
from tests.patience import patience
from tests.soak._judge import Judge, name_of

ROOT: Final = Path(__file__).parents[2]
SLOTS: Final = 3
"""Workers at the same time: the first runs to the end, the second is durable."""
_MOST_UNSETTLED: Final = 2_000
_SETTLE_S: Final = 60.0


class Soak:
    """One run.

    :param rate: messages a second
    """

    def __init__(self, url: str, admin: Admin | None, seconds: float, seed: int, rate: int, folder: Path) -> None:
        self.judge = Judge()
        self.sent: set[int] = set()
        self._url, self._admin, self._seconds, self._seed, self._rate = url, admin, seconds, seed, rate
        self._folder = folder
        self._events = (folder / "events.log").open("w")
        self._random = random.Random(seed)
        self._topic = f"persistent://public/default/soak-{uuid.uuid4().hex[:8]}"
        self._workers: dict[int, Worker] = {}
        self._generation = 0
        self._proxy: TcpProxy

    async def run(self) -> None:
        """Send messages and disturb the workers for the time; then wait for the remaining messages, and judge."""
        async with AsyncExitStack() as stack:
            stack.enter_context(self._events)
            self._proxy = await stack.enter_async_context(TcpProxy(int(self._url.rpartition(":")[2])))
            client = await stack.enter_async_context(pulsar_nack.connect(self._url))
            async with client.subscribe(self._topic, "soak"):
                pass  # so that the first messages are kept
            producer = await stack.enter_async_context(client.producer(self._topic))
            for slot in range(SLOTS):
                await self._start(slot)
            sending = asyncio.create_task(self._send(producer))
            try:
                await self._disturb(time.monotonic() + self._seconds)
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
                await producer.flush()
                await self._until_settled()
                for worker in self._workers.values():
                    await self._stop(worker)
                async with client.subscribe(self._topic, "soak") as consumer:
                    left = [name_of(int(message.data), message.id) async for message in rest_of(consumer)]
                self.judge.end(self.sent, left)
            finally:
                sending.cancel()
                for worker in self._workers.values():
                    await worker.kill()

    # --- sending -----------------------------------------------------------------------------------------------------

    async def _send(self, producer: Any) -> None:
        number, period = 0, 0.05
        async with asyncio.TaskGroup() as tasks:
            while True:
                if len(self.sent) - len(self.judge.settled) < _MOST_UNSETTLED:
                    for _ in range(max(round(self._rate * period), 1)):
                        tasks.create_task(self._send_one(producer, number))
                        number += 1
                await asyncio.sleep(period)

    async def _send_one(self, producer: Any, number: int) -> None:
        self.sent.add(number)
        try:
            await producer.send(b"%d" % number)
        except BrokerError as error:  # it may be stored or not
            self.sent.discard(number)
            print(f"{number} was not confirmed: {error}")

    # --- disturbing --------------------------------------------------------------------------------------------------

    async def _disturb(self, ends_at: float) -> None:
        kinds = ["kill", "kill", "drain", "drain"]
        if self._admin is not None:  # the embedded broker loses what it is sending when a connection breaks
            kinds += ["cut", "cut within a frame", "unload"]
        deck: list[str] = []
        while (left_s := ends_at - time.monotonic()) > 0:
            await asyncio.sleep(min(self._random.uniform(0.5, 5.0), left_s))
            deck = deck or self._random.sample(kinds, len(kinds))
            kind, slot = deck.pop(), self._random.randrange(1, SLOTS)
            self._note(f"{kind} {slot}")
            for worker in self._workers.values():
                if worker.process.returncode is not None:
                    self.judge.wrong.append(f"worker {worker.slot} ended with {worker.process.returncode}")
                    return
            if kind == "kill":
                self.judge.counts["kills"] += 1
                await self._workers[slot].kill()
                await self._start(slot)
            elif kind == "drain":
                self.judge.counts["drains"] += 1
                await self._stop(self._workers[slot])
                await self._start(slot)
            elif kind == "unload":
                await self._unload()
            else:
                self.judge.disturb("cuts", time.monotonic())
                if kind == "cut":
                    self._proxy.cut()
                else:
                    self._proxy.cut_after(self._random.randrange(1, 2_000))
                    while self._proxy.is_to_cut and time.monotonic() < ends_at:
                        await asyncio.sleep(0.01)
                    self.judge.disturb("late cuts", time.monotonic())

    def _note(self, text: str) -> None:
        self._events.write(f"{time.monotonic():.3f} {text}\n")

    async def _unload(self) -> None:
        assert self._admin is not None
        self.judge.disturb("unloads", time.monotonic())
        await asyncio.to_thread(self._admin.request, "PUT", self._topic.replace("://", "/") + "/unload")
        self.judge.disturb("ends of unloads", time.monotonic())

    # --- the workers -------------------------------------------------------------------------------------------------

    async def _start(self, slot: int) -> None:
        self._generation += 1
        options: dict[str, Any] = {
            "url": self._url,
            "port": self._proxy.port,
            "topic": self._topic,
            "seed": f"{self._seed} {self._generation}",
            "first_id": 100_000 * self._generation,
            "durable": str(self._folder / "state") if slot == 1 else None,
            "log": str(self._folder / f"worker-{slot}.log"),
        }
        command = [sys.executable, "-W", "error", "-m", "tests.soak._worker", json.dumps(options)]
        errors = (self._folder / f"worker-{slot}.err").open("ab")
        with errors:
            process = await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.PIPE, stderr=errors, cwd=ROOT
            )
        self._workers[slot] = Worker(slot, process, partial(self._on_report, slot))

    def _on_report(self, slot: int, line: str) -> None:
        self._note(f"worker {slot}: {line.rstrip()}")
        self.judge.note(slot, line)

    async def _stop(self, worker: Worker) -> None:
        """Drain a worker; it has to exit, and with 0."""
        await worker.ready.wait()
        code = await worker.end()
        if code:
            self.judge.wrong.append(f"worker {worker.slot} was drained and ended with {code}")

    async def _until_settled(self) -> None:
        ends_at = time.monotonic() + patience(_SETTLE_S)
        changed_at, count_then = time.monotonic(), -1
        while not self.judge.is_settled(self.sent) and time.monotonic() < ends_at:
            if (count := self.judge.counts.total() - self.judge.counts["memory"]) != count_then:
                changed_at, count_then = time.monotonic(), count
            elif time.monotonic() - changed_at > 10:
                return  # a worker may have been killed between an acknowledgement and its report
            await asyncio.sleep(0.1)


class Worker:
    """A process that handles messages."""

    def __init__(self, slot: int, process: asyncio.subprocess.Process, hear: Callable[[str], None]) -> None:
        self.slot = slot
        self.process = process
        self.ready = asyncio.Event()
        """Set once the worker has begun: from then on a signal drains it."""
        self._on_report = hear
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            if line.endswith(b"\n"):
                self._on_report(line.decode())
            self.ready.set()
        self.ready.set()

    async def kill(self) -> None:
        """Kill it, unless it has ended."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.kill()
        await self._end()

    async def end(self) -> int:
        """Let it drain; return its exit code."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(patience(15)):
                return await self._end()
        except TimeoutError:
            await self.kill()
            return -1

    async def _end(self) -> int:
        await self._reading
        return await self.process.wait()


async def rest_of(consumer: Any) -> AsyncIterator[Any]:
    """Yield the remaining messages, until none comes for some seconds."""
    with suppress(TimeoutError):
        while True:
            yield await consumer.receive(timeout=5)


@asynccontextmanager
async def broker() -> AsyncIterator[tuple[str, Admin | None]]:
    """Yield the URLs of the broker in the environment and its admin API, or of an embedded broker, which has none."""
    if url := os.environ.get("PULSAR_SERVICE_URL"):
        admin_url = os.environ.get("PULSAR_ADMIN_URL")
        yield url, None if admin_url is None else Admin(admin_url)
    else:
        async with EmbeddedBroker() as embedded:
            yield embedded.service_url, None


async def main(seconds: float, seed: int, rate: int) -> int:
    """Run a soak, print its figures, and return the exit code."""
    if "PULSAR_SERVICE_URL" not in os.environ and (reason := EmbeddedBroker.unavailable_reason()) is not None:
        print(f"no soak without a broker: set PULSAR_SERVICE_URL, for {reason}")
        return 0
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    async with broker() as (url, admin):
        soak = Soak(url, admin, seconds, seed, rate, folder)
        what = "the embedded broker" if admin is None else url
        print(f"soak: {seconds:g} s on {what}, {rate} messages a second, SEED={seed}", flush=True)
        await soak.run()
    judge = soak.judge
    early, late = judge.judge_memory(0)
    for name, count in {
        "messages sent": len(soak.sent),
        "attempts": judge.counts["begin"],
        "acknowledged": len(judge.settled),
        "stored twice, as the producer sent them again": len(judge.acked) - len(judge.settled),
        "nacked": judge.counts["nacked"],
        "deferred": judge.counts["deferred"],
        "handlers that raised": judge.counts["raised"],
        "leases extended": judge.counts["extended"],
        "leases expired": judge.counts["leases"],
        "late calls refused": judge.counts["late"],
        "workers killed": judge.counts["kills"],
        "workers drained": judge.counts["drains"],
        "connections cut": judge.counts["cuts"],
        "unloads": judge.counts["unloads"],
        "begun again, as another worker had them already": len(judge.repeated),
    }.items():
        print(f"{count:12,}  {name}")
    print(f"memory of the first worker: {early / 1e6:.1f} MB early, {late / 1e6:.1f} MB late")
    for line in judge.wrong[:50]:
        print(f"WRONG: {line}")
    if not judge.counts["acked"]:
        judge.wrong.append("no message was acknowledged")
    if judge.wrong:
        print(f"{len(judge.wrong)} things are wrong; run again with SEED={seed}; events and logs are in {folder}")
        return 1
    shutil.rmtree(folder)
    print("nothing lost, nothing handled after a reported acknowledgement, no task left")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("SOAK_SECONDS", "1800")))
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SEED", random.randrange(1_000_000))))
    parser.add_argument("--rate", type=int, default=100)
    chosen = parser.parse_args()
    sys.exit(asyncio.run(main(chosen.seconds, chosen.seed, chosen.rate)))
