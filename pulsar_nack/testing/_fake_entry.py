"""Entries of a fake topic, as a broker stores them: one message or a batch in each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..consumer import Delivery
from ..ids import MessageId, Position


@dataclass(frozen=True, slots=True)
class FakeMessage:
    """What a producer sends, None: no value; :meth:`FakeTopic.publish_batch` takes these beside plain bytes."""

    data: bytes | None
    key: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    ordering_key: str | None = None
    event_time_ms: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class FakeEntry:
    """One stored entry; compared by identity. ``number`` is its place in the order of publishing."""

    number: int
    position: Position
    partition: int
    topic: str
    messages: tuple[FakeMessage, ...]
    is_batch: bool
    published_ms: int
    chunks: tuple[Position, ...] = ()

    def message_id(self, index: int) -> MessageId:
        """Return the id of the message at ``index``."""
        ledger, entry = self.position
        if self.is_batch:
            return MessageId(ledger, entry, self.partition, index, batch_size=len(self.messages), topic=self.topic)
        first = MessageId(*self.chunks[0], self.partition, topic=self.topic) if self.chunks else None
        return MessageId(ledger, entry, self.partition, topic=self.topic, first_chunk=first, chunks=self.chunks)

    def delivery(self, index: int, redelivery_count: int) -> Delivery:
        """Return the message at ``index`` as a port hands it over."""
        message = self.messages[index]
        return Delivery(
            id=self.message_id(index),
            data=message.data or b"",
            properties=dict(message.properties),
            key=message.key,
            ordering_key=message.ordering_key,
            redelivery_count=redelivery_count,
            publish_time_ms=self.published_ms,
            event_time_ms=message.event_time_ms,
            topic=self.topic,
            is_null=message.data is None,
        )
