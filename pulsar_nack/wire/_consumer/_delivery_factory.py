"""Makes the deliveries of one topic or partition from the metadata and payloads of its messages."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any, Final

from ...consumer import Delivery
from ...ids import MessageId, _delivered_id
from .._connection._options import ClientOptions
from .._protocol import _pulsar_pb2 as pb
from .._protocol._entries import is_batch, key_of, ordering_key_of, properties_of
from .._protocol._message_commands import MessageCommand
from ._ack_sets import AckSets
from ._plain_delivery import (
    QueuedMessage,
    plain_delivery,
    producer_name_of,
    replicated_from_of,
    schema_version_of,
    sequence_id_of,
)

NO_METADATA: Final = pb.MessageMetadata()


class DeliveryFactory:
    """Makes deliveries, and knows the limits for reading messages.

    :param topic: its full name
    :param ack_sets: gets the members of batches that were compacted out
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

    def delivery_of(self, item: QueuedMessage) -> Delivery:
        """Return the delivery of a prefetched message."""
        if not isinstance(item, tuple):
            return item
        data, ledger, entry, count, metadata = item
        message_id = _delivered_id((ledger, entry, self.partition, -1), self.extras)
        return plain_delivery(message_id, data, count, metadata, self.topic)

    def delivery(
        self,
        message_id: MessageId,
        command: MessageCommand,
        own: Any,
        payload: bytes,
        of_entry: pb.MessageMetadata | None = None,
    ) -> Delivery:
        """Return the delivery of a message.

        :param own: the metadata of the message
        :param of_entry: the metadata of its batch
        """
        of_entry = of_entry or own
        return Delivery(
            message_id,
            payload,
            properties=properties_of(own) if own.properties else {},
            key=key_of(own) if own.HasField("partition_key") else None,
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
        own = NO_METADATA if metadata is None or is_batch(metadata) else metadata
        for raised in (error, error.__cause__, error.__context__):
            if raised is not None:
                raised.__traceback__ = None  # its frames would keep another copy of the entry
        return Delivery(
            id=message_id or _delivered_id((command.ledger, command.entry, self.partition, -1), self.extras),
            data=stored,
            properties=properties_of(own),
            key=key_of(own) if own.HasField("partition_key") else None,
            ordering_key=ordering_key_of(own) if own.HasField("ordering_key") else None,
            redelivery_count=command.redelivery_count,
            publish_time_ms=0 if metadata is None else metadata.publish_time,
            event_time_ms=own.event_time,
            topic=self.topic,
            error=error,
            is_key_encoded=own.partition_key_b64_encoded,
            producer_name=None if metadata is None else producer_name_of(metadata),
            sequence_id=None if metadata is None or is_batch(metadata) else metadata.sequence_id,
            schema_version=None if metadata is None else schema_version_of(metadata),
            replicated_from=None if metadata is None else replicated_from_of(metadata),
        )
