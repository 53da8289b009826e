"""Deliveries of which few fields are set: those of most messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ..consumer import Delivery
from ..ids import MessageId
from . import _pulsar_pb2 as pb


class PlainDelivery(Delivery):
    """A delivery with neither keys nor properties, of which five fields are set. Copies of it are ordinary ones."""

    __slots__ = ("_published",)
    _published: bytes | int  # the metadata, or what it says

    if not TYPE_CHECKING:  # in place of the fields
        key = None
        ordering_key = None
        event_time_ms = 0
        native = None
        error = None
        is_key_encoded = False
        properties = property(lambda _: {})
        publish_time_ms = property(
            lambda self: (
                self._published
                if isinstance(self._published, int)
                else pb.MessageMetadata.FromString(self._published).publish_time
            )
        )

        def __new__(cls, *values: object, **named: object) -> Delivery:
            """Make an ordinary delivery, as ``dataclasses.replace`` wants it; :func:`plain_delivery` makes this one."""
            return Delivery(*values, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        return Delivery, tuple(getattr(self, field.name) for field in fields(self))


_new: Callable[[type[PlainDelivery]], Any] = object.__new__


def plain_delivery(
    message_id: MessageId, data: bytes, redelivery_count: int, published: bytes | int, topic: str
) -> Delivery:
    """Return the delivery of a message that has no more than this.

    :param published: its metadata, to be read when somebody asks for the publish time, or that time in ms
    """
    made = _new(PlainDelivery)
    made.id = message_id
    made.data = data
    made.redelivery_count = redelivery_count
    made._published = published
    made.topic = topic
    return made  # type: ignore[no-any-return]
