"""A home for durable state that outlives its consumers, and consumers that are killed on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from pulsar_nack import Consumer, NackConfig
from pulsar_nack.clock import LoopClock
from pulsar_nack.ledger import LocalLogStore
from pulsar_nack.ledger.faults import FaultyFiles
from pulsar_nack.ledger.memory import MemoryFiles
from pulsar_nack.testing import FakePort, FakeTopic
from tests.consumer.ports import FAKE, Ports

EXACT = NackConfig(negative_ack_precision_bit_cnt=0)
FOLDER = Path("/state")


class Machine:
    """A disk, and a topic elsewhere; consumers of one subscription come and go."""

    def __init__(self, ports: Ports = FAKE, topic: FakeTopic | None = None, seed: int = 0, **port: Any) -> None:
        self.files = FaultyFiles(MemoryFiles(Random(seed)))
        self.topic = topic or ports.topic()
        self._ports = ports
        self._port = port

    def port(self, **options: Any) -> FakePort:
        """Return a port of the subscription."""
        return self._ports.port(self.topic, **{**self._port, **options})

    def publish(self, *payloads: bytes) -> Machine:
        """Publish messages, and return the machine."""
        for payload in payloads:
            self.topic.publish(payload)
        return self

    @asynccontextmanager
    async def consuming(self, *, killed: bool = False, **options: Any) -> AsyncIterator[Consumer]:
        """Open a consumer on the disk; if killed, the disk stays as it was then, and the broker takes messages back."""
        async with await LocalLogStore.open(FOLDER, threads=1, files=self.files) as store:
            settings = {"config": EXACT, "wall_clock": LoopClock(), "durable": store, **options}
            async with Consumer(settings.pop("port", None) or self.port(), **settings) as consumer:
                yield consumer
                left = self.files.inner.after_crash() if isinstance(self.files.inner, MemoryFiles) else None
        if killed and left is not None:
            self.files = FaultyFiles(left)
