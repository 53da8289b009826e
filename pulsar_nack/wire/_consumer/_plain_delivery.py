"""Cheap deliveries of plain messages: those with a payload, but neither keys nor properties.

Until it is received such a message is a tuple of plain values. The garbage collector does not track those, which
matters because there may be many. The delivery is made when the message is received.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ...consumer import Delivery
from ...ids import MessageId
from .._protocol import _pulsar_pb2 as pb
from .._protocol._entries import text_of

PlainMessage = tuple[bytes, int, int, int, bytes]
"""A prefetched plain message: payload, ledger, entry, redelivery count, metadata."""
QueuedMessage = Delivery | PlainMessage
"""A prefetched message, before it is received."""


class PlainDelivery(Delivery):
    """A delivery with neither keys nor properties, of which five fields are set. Its copies are ordinary deliveries."""

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
        publish_time_ms = property(lambda self: self._parsed().publish_time)
        producer_name = property(lambda self: producer_name_of(self._parsed()))
        sequence_id = property(lambda self: self._parsed().sequence_id)
        schema_version = property(lambda self: schema_version_of(self._parsed()))
        replicated_from = property(lambda self: replicated_from_of(self._parsed()))

        def _parsed(self) -> pb.MessageMetadata:
            if isinstance(self._metadata, bytes):
                self._metadata = pb.MessageMetadata.FromString(self._metadata)
            return self._metadata

        def __new__(cls, *values: object, **named: object) -> Delivery:
            """Make an ordinary delivery, for ``dataclasses.replace``; :func:`plain_delivery` makes a plain one."""
            return Delivery(*values, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        return Delivery, tuple(getattr(self, field.name) for field in fields(self))


class PlainBatchMember(PlainDelivery):
    """The delivery of a plain member of a batch."""

    __slots__ = ("_own",)
    _own: bytes  # the metadata of the member, beside that of the entry

    if not TYPE_CHECKING:
        sequence_id = property(
            lambda self: sequence_id_of(pb.SingleMessageMetadata.FromString(self._own), self._parsed())
        )


_new: Callable[[type[PlainDelivery]], Any] = object.__new__


def plain_delivery(message_id: MessageId, data: bytes, redelivery_count: int, metadata: bytes, topic: str) -> Delivery:
    """Return the delivery of a plain message."""
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
    """Return the delivery of a plain member of a batch."""
    made = _new(PlainBatchMember)
    made.id = message_id
    made.data = data
    made.redelivery_count = redelivery_count
    made._metadata = of_entry
    made._own = own
    made.topic = topic
    return made  # type: ignore[no-any-return]


def producer_name_of(of_entry: pb.MessageMetadata) -> str | None:
    """Return the producer's name, None if damaged metadata has none."""
    return text_of(of_entry.producer_name) or None


def schema_version_of(of_entry: pb.MessageMetadata) -> bytes | None:
    """Return the schema version of an entry, None if it has none."""
    return of_entry.schema_version if of_entry.HasField("schema_version") else None


def replicated_from_of(of_entry: pb.MessageMetadata) -> str | None:
    """Return the cluster that an entry was replicated from, None if it was published here."""
    return text_of(of_entry.replicated_from) if of_entry.HasField("replicated_from") else None


def sequence_id_of(own: pb.MessageMetadata | pb.SingleMessageMetadata, of_entry: pb.MessageMetadata) -> int:
    """Return the sequence id of a message, or of its batch if the message has none."""
    return own.sequence_id if own.HasField("sequence_id") else of_entry.sequence_id
