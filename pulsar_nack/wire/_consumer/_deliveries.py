"""Deliveries: cheap ones of plain messages, which have a payload but neither keys nor properties, and all others.

Until it is received a plain message is a tuple of plain values. The garbage collector does not track those, which
matters because there may be many. The delivery is made when the message is received.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from ...consumer import Delivery
from ...errors import UndecodableMessageError
from ...ids import MessageId, _delivered_id, _share_extras, _TopicId
from .._connection._options import ClientOptions
from .._protocol import _pulsar_pb2 as pb
from .._protocol._entries import is_batch, key_of, ordering_key_of, properties_of, text_of
from .._protocol._frames import MessageCommand, wrong_text
from ._acknowledger import AckSets

NO_METADATA: Final = pb.MessageMetadata()
PlainMessage = tuple[bytes, int, int, int, bytes]
"""A prefetched plain message: payload, ledger, entry, redelivery count, metadata."""
QueuedMessage = Delivery | PlainMessage
"""A prefetched message, before it is received."""


class PlainDelivery(Delivery):
    """A delivery with neither keys nor properties, of which five fields are set. Its copies are ordinary deliveries."""

    __slots__ = ("_metadata", "_own")
    _metadata: bytes | pb.MessageMetadata  # parsed at the first access to one of its fields
    _own: bytes  # the metadata of a member of a batch, beside that of the entry; not set for other messages

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
        sequence_id = property(lambda self: sequence_id_of(self._parsed_own(), self._parsed()))
        schema_version = property(lambda self: schema_version_of(self._parsed()))
        replicated_from = property(lambda self: replicated_from_of(self._parsed()))

        def _parsed(self) -> pb.MessageMetadata:
            if isinstance(self._metadata, bytes):
                self._metadata = pb.MessageMetadata.FromString(self._metadata)
            return self._metadata

        def _parsed_own(self) -> pb.MessageMetadata | pb.SingleMessageMetadata:
            own = getattr(self, "_own", None)
            return self._parsed() if own is None else pb.SingleMessageMetadata.FromString(own)

        def __new__(cls, *values: object, **named: object) -> Delivery:
            """Make an ordinary delivery, for ``dataclasses.replace``; the functions below make plain ones."""
            return Delivery(*values, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        return Delivery, tuple(getattr(self, field.name) for field in fields(self))


_make_id = tuple.__new__
_new: Callable[[type[PlainDelivery]], Any] = object.__new__


def plain_member(  # noqa: PLR0917 - the hot path of batches
    message_id: MessageId, data: bytes, redelivery_count: int, of_entry: pb.MessageMetadata, own: bytes, topic: str
) -> Delivery:
    """Return the delivery of a plain member of a batch."""
    made = _new(PlainDelivery)
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


class DeliveryFactory:
    """Makes deliveries, and knows the limits for reading messages.

    :param topic: its full name
    :param ack_sets: gets the members of batches that are acknowledged already, or were compacted out
    :param options: the client's, with the limits
    :param threads: decompress large payloads; None: the loop's threads
    """

    def __init__(
        self, topic: str, partition: int, ack_sets: AckSets, *, options: ClientOptions, threads: Executor | None
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.extras: dict[str, Any] = {"topic": topic}
        """The fields that all message ids of this topic or partition share."""
        self.ack_sets = ack_sets
        self.threads = threads
        self.max_bytes = options.max_frame_bytes
        self.max_metadata_bytes = options.max_metadata_bytes
        self.max_batch_messages = options.max_batch_messages

    def delivery_of(self, message: QueuedMessage) -> Delivery:
        """Return the delivery of a prefetched message."""
        if not isinstance(message, tuple):
            return message
        made = _new(PlainDelivery)
        made.data, ledger, entry, made.redelivery_count, made._metadata = message
        made.id = message_id = _make_id(_TopicId, (ledger, entry, self.partition, -1))  # checked when it came
        _share_extras(message_id, self.extras)
        made.topic = self.topic
        return made  # type: ignore[no-any-return]

    def delivery(
        self,
        message_id: MessageId,
        command: MessageCommand,
        own: Any,
        payload: bytes,
        of_entry: pb.MessageMetadata | None = None,
        *,
        errors: str = "strict",
    ) -> Delivery:
        """Return the delivery of a message.

        :param own: the metadata of the message
        :param of_entry: the metadata of its batch
        :param errors: ``"replace"`` what is not UTF-8 in its key and properties
        :raises UndecodableMessageError: its key or a property is not UTF-8, unless that is replaced
        """
        of_entry = of_entry or own
        try:
            properties = properties_of(own, errors) if own.properties else {}
            key = key_of(own, errors) if own.HasField("partition_key") else None
        except UnicodeDecodeError:
            raise UndecodableMessageError(f"metadata: {wrong_text(own)}") from None
        return Delivery(
            message_id,
            payload,
            properties=properties,
            key=key,
            ordering_key=ordering_key_of(own) if own.HasField("ordering_key") else None,
            redelivery_count=command.redelivery_count,
            publish_time_ms=of_entry.publish_time,
            event_time_ms=own.event_time,
            topic=self.topic,
            is_key_encoded=own.partition_key_b64_encoded,
            is_null=own.null_value,
            producer_name=producer_name_of(of_entry),
            sequence_id=sequence_id_of(own, of_entry),
            schema_version=schema_version_of(of_entry),
            replicated_from=replicated_from_of(of_entry),
        )

    def unreadable(
        self,
        command: MessageCommand,
        stored: bytes,
        error: Exception,
        message_id: MessageId | None = None,
        *,
        metadata: pb.MessageMetadata | None = None,
    ) -> Delivery:
        """Return the delivery of an unreadable message, with as much of its metadata as is known."""
        for raised in (error, error.__cause__, error.__context__):
            if raised is not None:
                raised.__traceback__ = None  # its frames would keep another copy of the entry
        message_id = message_id or _delivered_id((command.ledger, command.entry, self.partition, -1), self.extras)
        if metadata is None:
            count = command.redelivery_count
            return Delivery(message_id, stored, redelivery_count=count, topic=self.topic, error=error)
        of_batch = is_batch(metadata)
        own = NO_METADATA if of_batch else metadata
        made = self.delivery(message_id, command, own, stored, metadata, errors="replace")
        made.error = error
        made.is_null = False
        if of_batch:
            made.sequence_id = None
        return made
