"""Publishing into a local topic: its own messages, dead letters, and messages for a retry topic."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, cast

from .._check import INT64_MAX, check_text
from .._delays import delay_ms
from ..clock import Clock
from ..config import BucketConfig
from ..errors import InvalidArgumentError
from ..ids import MessageId
from ._entry import Entry, EntryMessage
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
        made = [_message_of(each, key, properties, event_time_ms) for each in _payloads_of(payload)]
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
        deliver_at = _deliver_at_ms(at, after, now)
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


def _deliver_at_ms(at: object, after: Any, now_ms: int) -> int | None:
    """Return when to deliver a message (epoch ms), None: at once.

    :param at: epoch ms, a datetime with a time zone, or a timedelta from now
    :param after: seconds or a timedelta from now
    """
    if after is not None:
        if at is not None:
            raise InvalidArgumentError("deliver_after", after, "nothing beside deliver_at")
        return now_ms + delay_ms(after, "deliver_after")
    if at is None:
        return None
    if isinstance(at, timedelta):
        return now_ms + delay_ms(at, "deliver_at")
    if isinstance(at, datetime) and at.tzinfo is not None:
        return max(round(at.timestamp() * 1000), 0)
    if type(at) is not int or not 0 <= at <= INT64_MAX:
        raise InvalidArgumentError("deliver_at", at, "epoch ms, a datetime with a time zone, or a timedelta")
    return at


def _payloads_of(payload: object) -> Sequence[object]:
    """Return the payloads to publish, one or several."""
    if payload is None or isinstance(payload, bytes | bytearray | memoryview):
        return [payload]
    if isinstance(payload, str) or not isinstance(payload, Sequence) or not payload:
        raise InvalidArgumentError("payload", payload, "bytes or None, or a sequence of them with at least one")
    return payload


def _message_of(payload: object, key: object, properties: object, event_ms: object) -> EntryMessage:
    """Return a message with this payload, key, properties and event time."""
    if payload is not None and not isinstance(payload, bytes | bytearray | memoryview):
        raise InvalidArgumentError("payload", payload, "bytes, or None for a message without a value")
    if key is not None:
        check_text("key", key)
    if type(event_ms) is not int or not 0 <= event_ms <= INT64_MAX:
        raise InvalidArgumentError("event_time_ms", event_ms, "epoch ms")
    given = {} if properties is None else properties
    if not isinstance(given, Mapping):
        raise InvalidArgumentError("properties", properties, "a mapping of strings to strings")
    for name, value in given.items():
        check_text("properties", name)
        check_text("properties", value)
    value = None if payload is None else bytes(payload)
    return EntryMessage(value, cast("str | None", key), dict(given), event_ms)
