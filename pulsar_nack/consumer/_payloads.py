"""Payloads of messages that may be redelivered from memory, within a budget of bytes.

They are kept as tuples of plain values, because the garbage collector would visit each Delivery at every full run.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final

from ..ids import MessageId
from ._port import Delivery, bytes_of

_OVERHEAD: Final = 1_024
"""Bytes of the Python objects around one payload."""
_Values = tuple[Any, ...]
_values: Final = attrgetter(*(field.name for field in fields(Delivery) if field.name not in {"id", "properties"}))


def kept_bytes(delivery: Delivery) -> int:
    """Return the memory that keeping a delivery costs, with the whole batch that the transport holds for it."""
    size = bytes_of(delivery)
    held_by_transport = size * max(delivery.id.batch_size, 1) if delivery.native is not None else 0
    return size + held_by_transport + _OVERHEAD


def _packed(delivery: Delivery, size: int) -> Delivery | _Values:
    """Return a delivery as a tuple of plain values, its size first; the delivery itself if it cannot be packed."""
    if delivery.native is not None or delivery.error is not None or delivery.id.is_chunked:
        return delivery
    of_id = delivery.id.topic, delivery.id.batch_size
    return size, *of_id, tuple(delivery.properties.items()), *_values(delivery)


def _unpacked(message_id: MessageId, values: _Values) -> Delivery:
    _, topic, batch_size, properties, data, *rest = values
    if message_id.topic != topic or message_id.batch_size != batch_size:  # the id may lack these
        message_id = MessageId(*message_id, topic=topic, batch_size=batch_size)
    return Delivery(message_id, data, dict(properties), *rest)


class PayloadCache:
    """Messages that will be redelivered from memory; each is found by its id, O(1).

    :param max_bytes: the budget; one message always finds room, however large, when nothing else is kept
    """

    def __init__(self, max_bytes: int) -> None:
        self.bytes = 0
        self._max_bytes = max_bytes
        self.kept: dict[MessageId, Delivery | _Values] = {}

    def has_room(self, message_id: MessageId, size: int) -> bool:
        """Return whether a message of this size may be kept too."""
        return not self.kept or message_id in self.kept or self.bytes + size <= self._max_bytes

    def keep(self, delivery: Delivery, size: int) -> None:
        """Keep a message; the caller looked for room first."""
        if delivery.id not in self.kept:
            self.kept[delivery.id] = _packed(delivery, size)
            self.bytes += size

    def pop(self, message_id: MessageId) -> Delivery | None:
        """Take a message out, None if it is not kept."""
        kept = self.kept.pop(message_id, None)
        if kept is None:
            return None
        if not isinstance(kept, tuple):
            self.bytes -= kept_bytes(kept)
            return kept
        self.bytes -= kept[0]
        return _unpacked(message_id, kept)

    def clear(self) -> None:
        """Forget all messages."""
        self.kept.clear()
        self.bytes = 0


class LruPayloads:
    """Delivered messages, so that a nack by id finds the payload; over the budget the oldest are forgotten."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self.delivered: OrderedDict[MessageId, Delivery] = OrderedDict()
        self.get = self.delivered.get
        """Returns a delivered message, None if it is not known any more."""

    def add(self, delivery: Delivery) -> None:
        """Note a message that is delivered."""
        self.pop(delivery.id)
        self.delivered[delivery.id] = delivery
        self._bytes += kept_bytes(delivery)
        while self._bytes > self._max_bytes:
            self.pop(next(iter(self.delivered)))

    def pop(self, message_id: MessageId) -> Delivery | None:
        """Take a message out, None if it is not known any more."""
        delivery = self.delivered.pop(message_id, None)
        if delivery is not None:
            self._bytes -= kept_bytes(delivery)
        return delivery

    def clear(self) -> None:
        """Forget all messages."""
        self.delivered.clear()
        self._bytes = 0
