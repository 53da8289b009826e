"""Deliveries that are made faster than their kind: those set each field by a call, as they are frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, cast

from ..consumer import Delivery
from ..ids import MessageId
from . import _pulsar_pb2 as pb


class WireDelivery(Delivery):
    """A delivery that is made in half the time."""

    __slots__ = ()
    __setattr__ = object.__setattr__

    def __init__(
        self: Any,
        id: MessageId,
        data: bytes,
        *,
        properties: Mapping[str, str],
        key: str | None,
        ordering_key: str | None,
        redelivery_count: int,
        publish_time_ms: int,
        event_time_ms: int,
        topic: str,
        native: Any = None,
        error: Exception | None = None,
        is_key_encoded: bool = False,
    ) -> None:
        self.id = id
        self.data = data
        self.properties = properties
        self.key = key
        self.ordering_key = ordering_key
        self.redelivery_count = redelivery_count
        self.publish_time_ms = publish_time_ms
        self.event_time_ms = event_time_ms
        self.topic = topic
        self.native = native
        self.error = error
        self.is_key_encoded = is_key_encoded


class PlainDelivery(Delivery):
    """A delivery with neither keys nor properties, of which five fields are set. Copies of it are ordinary ones."""

    __slots__ = ("_published",)
    __setattr__ = object.__setattr__
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


_new = object.__new__


def plain_delivery(
    message_id: MessageId, data: bytes, redelivery_count: int, published: bytes | int, topic: str
) -> Delivery:
    """Return the delivery of a message that has no more than this.

    :param published: its metadata, to be read when somebody asks for the publish time, or that time in ms
    """
    made = cast("Any", _new(PlainDelivery))
    made.id = message_id
    made.data = data
    made.redelivery_count = redelivery_count
    made._published = published
    made.topic = topic
    return cast("Delivery", made)
