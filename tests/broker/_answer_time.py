"""How far from their deadlines messages are redelivered, next to how long a bare socket waits for the same broker."""

from __future__ import annotations

import asyncio
import importlib.util
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Final

import pulsar

import pulsar_nack
from pulsar_nack.wire._consumer._consumer_session import redeliver_command
from tests.patience import load

BOUND_MS: Final = 15.0
"""Half of all nacks are redelivered within this time of their deadlines, after subtracting the bare socket's wait."""
_BUSY: Final = 10
_WARM_UP: Final = 600
"""A broker that has just started answers at a fifth of its later speed until it has given this many answers."""
_BARE_SOCKET: Final = Path(__file__).parents[2] / "benchmarks" / "_bare_socket.py"


class Errors:
    """How far from their deadlines messages were redelivered, in ms; see :func:`measuring`."""

    def __init__(self) -> None:
        self.ms: list[float] = []
        self.bare_ms: list[float] = []
        self._due_at: dict[bytes, float] = {}

    def due(self, data: bytes, delay: float) -> None:
        """Record that a message is nacked now."""
        self._due_at[data] = time.monotonic() + delay

    def came(self, data: bytes) -> None:
        """Record that the message was redelivered now."""
        self.ms.append(1e3 * (time.monotonic() - self._due_at.pop(data)))

    def check(self, count: int, redelivery: str = "auto") -> None:
        """Print the figures, and assert that ``count`` messages came, none early and half of them in time.

        :param redelivery: with ``"local"`` the broker is not asked, so nothing is subtracted
        """
        ordered, median = sorted(self.ms), statistics.median(self.ms)
        waits_ms = 0.0 if redelivery == "local" else statistics.median(self.bare_ms)
        print(f"\n{count} came back {ordered[0]:.1f} to {ordered[-1]:.1f} ms late, median {median:.1f} ms")
        print(f"{waits_ms:.1f} ms of each are what a bare socket waits")
        assert len(ordered) == count
        assert ordered[0] > -2.0
        assert median - waits_ms < BOUND_MS * leniency()


def leniency() -> int:
    """Return the factor by which bounds on latencies are widened, because on a busy machine everything is late."""
    return _BUSY if load() > 1 else 1


@asynccontextmanager
async def measuring(url: str, topic: str, delays: Sequence[float]) -> AsyncIterator[Errors]:
    """Yield a record of errors; meanwhile a bare socket requests redelivery of other messages at the same delays.

    So it meets the same cold topic and the same busy machine.
    """
    errors, bare_topic = Errors(), f"{topic}-bare"
    async with pulsar_nack.connect(url) as client, client.producer(bare_topic, batching=False) as producer:
        for number in range(len(delays)):
            await producer.send(b"%d" % number)
    asking = asyncio.create_task(asyncio.to_thread(_answers_ms, url, bare_topic, delays))
    try:
        yield errors
    finally:
        errors.bare_ms = await asking


def warm_up(url: str, topic: str) -> None:
    """Warm up a broker that has just started; the topic cannot be used afterwards."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        client.create_producer(topic).send(b"x")
    finally:
        client.close()
    _module().arrival(url, topic, "warm", _WARM_UP, 0.002)


def _answers_ms(url: str, topic: str, delays: Sequence[float]) -> list[float]:
    """Request one message after each delay; return how long each took to arrive."""
    took: list[float] = []
    with closing(_module().BareSocket(url, topic, "bare")) as bare:
        places = [bare.message() for _ in delays]
        began = time.perf_counter()
        for delay, pairs in groupby(sorted(zip(delays, places, strict=True)), key=lambda pair: pair[0]):
            asked_for = [place for _, place in pairs]
            time.sleep(max(began + delay - time.perf_counter(), 0.0))
            asked_at = time.perf_counter()
            bare.send(redeliver_command(1, asked_for))
            for _ in asked_for:
                bare.message()
                took.append(1e3 * (time.perf_counter() - asked_at))
    return took


def _module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("_bare_socket", _BARE_SOCKET)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
