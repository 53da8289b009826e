"""An entry as the messages that a consumer gets."""

from __future__ import annotations

from collections.abc import Iterable

from ..consumer import Delivery
from ..ids import MessageId, Position
from ._entry import Entry


def deliveries_of(topic: str, position: Position, entry: Entry, indexes: Iterable[int], count: int) -> list[Delivery]:
    """Return the messages of an entry with these indexes; ``count`` is how often it was delivered before."""
    made = []
    for index in indexes:
        message = entry.messages[index]
        batch_index = index if entry.is_batch else -1
        made.append(
            Delivery(
                id=MessageId(*position, batch_index=batch_index, batch_size=entry.batch_size, topic=topic),
                data=message.payload or b"",
                properties=message.properties,
                key=message.key,
                redelivery_count=count,
                publish_time_ms=entry.publish_time_ms,
                event_time_ms=message.event_time_ms,
                topic=topic,
                is_null=message.payload is None,
            )
        )
    return made
