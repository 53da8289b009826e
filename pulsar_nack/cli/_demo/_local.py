"""Where ``demo --local`` plays: a local topic in a folder, with all it keeps, that can be closed and opened again."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

from ... import Consumer, DelayedDeliveryConfig, LocalTopic, LoopClock, NackConfig

BROKER: Final = "local topic, in a folder"
_SUBSCRIPTION: Final = "pulsar-nack"
_EXACT: Final = DelayedDeliveryConfig(delayed_delivery_tick_time_millis=1)


class LocalStage:
    """A topic and its only consumer, whose nacks are durable beside it. Times are those of the loop.

    :param folder: where both keep what they know
    """

    def __init__(self, folder: Path, config: NackConfig) -> None:
        self._folder = folder
        self._config = config
        self._changing = asyncio.Lock()
        self._topic: LocalTopic | None = None
        self._consumer: Consumer | None = None

    @property
    def consumer(self) -> Consumer:
        """Return the consumer, another one after a restart."""
        assert self._consumer is not None
        return self._consumer

    @contextlib.asynccontextmanager
    async def topic(self) -> AsyncIterator[LocalTopic]:
        """Have the topic, which is not closed for as long as the block runs."""
        async with self._changing:
            assert self._topic is not None
            yield self._topic

    async def publish(self, payloads: Sequence[bytes], *, batch: bool) -> None:
        """Send messages: one by one, or as one batch."""
        async with self.topic() as topic:
            await topic.publish(payloads, batch=batch)

    async def open(self) -> None:
        """Open the topic, and the consumer with what both kept."""
        clock = LoopClock()
        self._topic = await LocalTopic.open(self._folder / "topic", delayed=_EXACT, clock=clock)
        durable = self._folder / "nacks"
        self._consumer = await self._topic.consumer(
            _SUBSCRIPTION, config=self._config, durable=durable, wall_clock=clock
        )

    async def aclose(self) -> None:
        """Close both; what is kept stays in the folder."""
        consumer, self._consumer = self._consumer, None
        topic, self._topic = self._topic, None
        try:
            if consumer is not None:
                await consumer.aclose()
        finally:
            if topic is not None:
                await topic.aclose()

    async def restart(self) -> None:
        """Close both and open them again, while nothing is published."""
        async with self._changing:
            await self.aclose()
            await self.open()


@contextlib.asynccontextmanager
async def open_local_stage(config: NackConfig) -> AsyncIterator[LocalStage]:
    """Set the stage in a temporary folder, and clear it away whatever happens.

    :raises MissingExtraError: what a local topic needs is not installed
    """
    with tempfile.TemporaryDirectory(prefix="pulsar-nack-demo-", ignore_cleanup_errors=True) as folder:
        stage = LocalStage(Path(folder), config)
        try:
            await stage.open()
            yield stage
        finally:
            await stage.aclose()
