"""Dead letters into a local topic."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..ids import MessageId

if TYPE_CHECKING:
    from ._topic import LocalTopic


class LocalPublisher:
    """A :class:`~pulsar_nack.Publisher` that puts everything into one topic; get it from ``topic.publisher()``.

    A local topic has no ordering keys, and no keys of bytes: those are there as base64.
    """

    def __init__(self, topic: LocalTopic) -> None:
        self._topic = topic

    async def publish(
        self,
        topic: str,
        data: bytes | None,
        *,
        properties: Mapping[str, str],
        key: str | bytes | None,
        ordering_key: str | None,
        event_time_ms: int,
    ) -> MessageId:
        """Publish a message, whatever topic it is for; durable when it returns."""
        del topic, ordering_key
        text = base64.b64encode(key).decode("ascii") if isinstance(key, bytes) else key
        return await self._topic.publish(data, key=text, properties=properties, event_time_ms=event_time_ms)
