"""Cheap deliveries of messages with few fields, which are made when the message is received.

Until then such a message is a tuple of plain values, which the garbage collector does not track: there may be many.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ...consumer import Delivery
from ...ids import MessageId
from .. import _pulsar_pb2 as pb
from .._protocol._entries import text_of

Fetched = tuple[bytes, int, int, int, bytes]
"""A prefetched message with few fields: payload, ledger, entry, redelivery count, metadata."""
Item = Delivery | Fetched
"""A message in a port, before it is received."""


class PlainDelivery(Delivery):
    """A delivery with neither keys nor properties, of which five fields are set. Copies of it are ordinary ones."""

    __slots__ = ("_metadata",)
    _metadata: bytes | pb.MessageMetadata  # parsed at the first access to one of its fields

    if not TYPE_CHECKING:  # in place of the fields
        key = None
        ordering_key = None
        event_time_ms = 0
        native = None
        error = None
        is_key_encoded = False
        is_null = False
        properties = property(lambda _: {})
        publish_time_ms = property(lambda self: self._about().publish_time)
        producer_name = property(lambda self: producer_name_of(self._about()))
        sequence_id = property(lambda self: self._about().sequence_id)
        schema_version = property(lambda self: schema_version_of(self._about()))
        replicated_from = property(lambda self: replicated_from_of(self._about()))

        def _about(self) -> pb.MessageMetadata:
            if isinstance(self._metadata, bytes):
                self._metadata = pb.MessageMetadata.FromString(self._metadata)
            return self._metadata

        def __new__(cls, *values: object, **named: object) -> Delivery:
            """Make an ordinary delivery, as ``dataclasses.replace`` wants it; :func:`plain_delivery` makes this one."""
            return Delivery(*values, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        return Delivery, tuple(getattr(self, field.name) for field in fields(self))


class PlainMember(PlainDelivery):
    """A :class:`PlainDelivery` of a message of a batch."""

    __slots__ = ("_own",)
    _own: bytes  # its own metadata, beside that of the entry

    if not TYPE_CHECKING:
        sequence_id = property(
            lambda self: sequence_id_of(pb.SingleMessageMetadata.FromString(self._own), self._about())
        )


_new: Callable[[type[PlainDelivery]], Any] = object.__new__


def plain_delivery(message_id: MessageId, data: bytes, redelivery_count: int, metadata: bytes, topic: str) -> Delivery:
    """Return the delivery of a message that has no more than this and its metadata."""
    made = _new(PlainDelivery)
    made.id = message_id
    made.data = data
    made.redelivery_count = redelivery_count
    made._metadata = metadata
    made.topic = topic
    return made  # type: ignore[no-any-return]


def plain_member(  # noqa: PLR0917 - the hot path of batches
    message_id: MessageId, data: bytes, redelivery_count: int, of_entry: pb.MessageMetadata, own: bytes, topic: str
) -> Delivery:
    """Return the delivery of a message of a batch that has no more than this."""
    made = _new(PlainMember)
    made.id = message_id
    made.data = data
    made.redelivery_count = redelivery_count
    made._metadata = of_entry
    made._own = own
    made.topic = topic
    return made  # type: ignore[no-any-return]


def producer_name_of(of_entry: pb.MessageMetadata) -> str | None:
    """Return the producer's name, None if the metadata of an entry that cannot be read has none."""
    return text_of(of_entry.producer_name) or None


def schema_version_of(of_entry: pb.MessageMetadata) -> bytes | None:
    """Return the version of the schema, None if there is none."""
    return of_entry.schema_version if of_entry.HasField("schema_version") else None


def replicated_from_of(of_entry: pb.MessageMetadata) -> str | None:
    """Return the cluster that a message was replicated from, None if it was not."""
    return text_of(of_entry.replicated_from) if of_entry.HasField("replicated_from") else None


def sequence_id_of(own: pb.MessageMetadata | pb.SingleMessageMetadata, of_entry: pb.MessageMetadata) -> int:
    """Return the sequence id of a message; the id of its batch if it has none itself."""
    return own.sequence_id if own.HasField("sequence_id") else of_entry.sequence_id
