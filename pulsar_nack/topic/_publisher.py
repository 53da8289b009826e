"""Publishing into a local topic: its own messages, dead letters, and messages for a retry topic."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ..clock import Clock
from ..config import BucketConfig
from ..errors import InvalidArgumentError
from ..ids import MessageId
from ._arguments import deliver_at_ms, message_of, payloads_of
from ._entry import Entry
from ._ledgers import TopicLedgers


class EntryPublisher:
    """Adds messages to a topic as entries.

    :param delayed: bounds the longest delay
    """

    def __init__(self, topic: str, ledgers: TopicLedgers, delayed: BucketConfig, clock: Clock) -> None:
        self.published_at = 0
        """When the last message was published (epoch ms): publish times do not go back."""
        self._topic = topic
        self._ledgers = ledgers
        self._delayed = delayed
        self._clock = clock

    async def publish(
        self,
        payload: object,
        *,
        key: object,
        properties: object,
        deliver_at: object,
        deliver_after: object,
        event_time_ms: object,
        batch: bool,
    ) -> MessageId | list[MessageId]:
        """Add a message, or several; see :meth:`LocalTopic.publish`."""
        is_one = payload is None or isinstance(payload, bytes | bytearray | memoryview)
        if batch and is_one:
            raise InvalidArgumentError("batch", batch, "False for a single payload")
        now = max(self._clock.now_ms(), self.published_at)
        at = self._deliver_at(deliver_at, deliver_after, now)
        made = [message_of(each, key, properties, event_time_ms) for each in payloads_of(payload)]
        entries = [Entry(now, tuple(made), at, is_batch=True)] if batch else [Entry(now, (one,), at) for one in made]
        encoded = [self._ledgers.encoded(entry) for entry in entries]
        self.published_at = now
        positions = await asyncio.gather(*map(self._ledgers.append, entries, encoded))
        if batch:
            size = len(made)
            return [MessageId(*positions[0], batch_index=at, batch_size=size, topic=self._topic) for at in range(size)]
        ids = [MessageId(*position, topic=self._topic) for position in positions]
        return ids[0] if is_one else ids

    def _deliver_at(self, at: object, after: object, now: int) -> int | None:
        deliver_at = deliver_at_ms(at, after, now)
        if deliver_at is not None and self._delayed.exceeds_max_delay(deliver_at, now):
            longest = self._delayed.delayed_delivery_max_delay_in_millis
            given = ("deliver_at", at) if after is None else ("deliver_after", after)
            raise InvalidArgumentError(
                *given, f"at most {longest:,} ms from now (delayed_delivery_max_delay_in_millis)"
            )
        return deliver_at


class LocalPublisher:
    """A :class:`~pulsar_nack.consumer.Publisher` into one topic, whatever the name; from ``topic.publisher()``.

    A local topic has no ordering keys, and no keys of bytes: those become base64.

    :param publish: publishes a message into the topic
    """

    def __init__(self, publish: Callable[..., Awaitable[Any]]) -> None:
        self._publish = publish

    async def publish(
        self,
        topic: str,
        data: bytes | None,
        *,
        properties: Mapping[str, str],
        key: str | bytes | None,
        ordering_key: str | None,
        event_time_ms: int,
        deliver_at_ms: int | None = None,
    ) -> MessageId:
        """Publish a message into the one topic, for any ``topic``; durable when it returns."""
        del topic, ordering_key
        text = base64.b64encode(key).decode("ascii") if isinstance(key, bytes) else key
        published: MessageId = await self._publish(
            data, key=text, properties=properties, event_time_ms=event_time_ms, deliver_at=deliver_at_ms
        )
        return published
