"""Translates message ids between the official client and pulsar-nack.

The client's own id objects know more than their numbers: the topic that finds the partition's consumer, and the shared
record of which members of a batch are acknowledged. So those that were delivered are kept until they are acknowledged.
A later delivery of the same message replaces the handle: an entry is acknowledged once all its members were
acknowledged through one delivery of it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

from ..errors import BrokerError, UndecodableMessageError
from ..ids import MessageId, _is_message_id
from ._id_relations import is_same_topic
from ._port import Delivery

VERSION_BYTES: Final = 8
"""The size of a schema version, a number."""
_MAX_HANDLES: Final = 100_000
_FIRST_CHUNK_TAG: Final = b"\x3a"
_PARTITION: Final = "-partition-"


class OfficialMessageIds:
    """The client's id objects of unacknowledged messages, at most 100 000, the newest.

    :param topic: the consumer's topic, for ids that carry none; None: it has several
    """

    def __init__(self, topic: str | None) -> None:
        self._topic = topic
        self._handles: OrderedDict[MessageId, Any] = OrderedDict()
        self._batch: tuple[int | str, ...] = ()
        self._batch_size = 0

    def __len__(self) -> int:
        return len(self._handles)

    def id_of(self, native: Any) -> MessageId:
        """Return the id of a message that the client delivered, and keep its handle."""
        handle, topic = native.message_id(), native.topic_name()
        position = (handle.ledger_id(), handle.entry_id(), handle.partition())
        index = handle.batch_index()
        if index >= 0 and (*position, topic) == self._batch:
            message_id = MessageId(*position, index, batch_size=self._batch_size, topic=topic)
        elif index < 0 and _FIRST_CHUNK_TAG not in handle.serialize():
            message_id = MessageId(*position, topic=topic)
        else:
            message_id = MessageId.from_bytes(handle.serialize(), topic)
            self._batch, self._batch_size = (*position, topic), message_id.batch_size
        self.remember(message_id, handle)
        return message_id

    def remember(self, message_id: MessageId, handle: Any) -> None:
        """Keep the handle of the newest delivery."""
        self._handles.pop(message_id, None)
        self._handles[message_id] = handle
        if len(self._handles) > _MAX_HANDLES:
            self._handles.popitem(last=False)

    def forget(self, message_id: MessageId) -> None:
        """Drop the handle of an acknowledged message."""
        self._handles.pop(message_id, None)

    def forget_through(self, message_id: MessageId) -> None:
        """Drop the handles up to and including ``message_id``, of its partition; O(handles)."""
        for known in [k for k in self._handles if k <= message_id and is_same_topic(k, message_id)]:
            del self._handles[known]

    def clear(self) -> None:
        """Drop all handles."""
        self._handles.clear()

    def get(self, message_id: MessageId) -> Any:
        """Return the handle, or build one from the numbers: enough for a redelivery; raises as :meth:`build`."""
        handle = self._handles.get(message_id)
        return self.build(message_id) if handle is None else handle

    def for_ack(self, message_id: MessageId) -> Any:
        """Return a handle that can be acknowledged.

        :raises BrokerError: a batch member that was not delivered here: the client would acknowledge the whole batch
        """
        handle = self._handles.get(message_id)
        if handle is not None:
            return handle
        if message_id.batch_index >= 0 and message_id.batch_size != 1:
            raise BrokerError(
                f"{message_id!r} was not delivered to this consumer: the official client cannot acknowledge one message"
                " of a batch by its number alone, it would acknowledge the whole batch"
            )
        return self.build(message_id)

    def build(self, message_id: MessageId) -> Any:
        """Return a new id object of the client, with its topic: without one the client would ignore it silently.

        The ids of the earliest and the latest message need none.

        :raises BrokerError: the consumer has several topics and the id does not name its own
        """
        import _pulsar

        topic = message_id.topic or (self._partition_topic(message_id) if _is_message_id(message_id) else "")
        handle = _pulsar.MessageId.deserialize(message_id.to_bytes())
        if topic:
            handle.topic_name(topic)
        return handle

    def _partition_topic(self, message_id: MessageId) -> str:
        if self._topic is None:
            raise BrokerError(f"{message_id!r} was not delivered to this consumer of several topics, and names none")
        if message_id.partition < 0 or _PARTITION in self._topic:
            return self._topic
        return f"{self._topic}{_PARTITION}{message_id.partition}"


def delivery_of(native: Any, schema: Any, message_id: MessageId) -> Delivery:
    """Return the client's message as a delivery."""
    import pulsar

    message = pulsar.Message()
    message._message = native
    message._schema = schema
    encryption, schema_version = native.encryption_context(), native.int_schema_version()  # the bytes it takes for text
    error = None
    if encryption is not None and encryption.is_decryption_failed():
        keys = ", ".join(key.key for key in list(encryption.keys()))
        error = UndecodableMessageError(f"payload: encrypted with the key {keys}", is_local=True)
    return Delivery(
        id=message_id,
        data=native.data(),
        properties=native.properties(),
        key=native.partition_key() or None,
        ordering_key=native.ordering_key() or None,
        redelivery_count=native.redelivery_count(),
        publish_time_ms=native.publish_timestamp(),
        event_time_ms=native.event_timestamp(),
        topic=message_id.topic or "",
        native=message,
        error=error,
        is_null=native.has_null_value(),
        producer_name=native.producer_name() or None,
        schema_version=None if schema_version < 0 else schema_version.to_bytes(VERSION_BYTES, "big"),
    )
