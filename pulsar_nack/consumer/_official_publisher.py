"""Publishes dead letters, and messages for retry topics, with the official client."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from .._foreign import quoted
from ..errors import BrokerError
from ..ids import MessageId
from ._letter_publishing import DeadLetterProducers, ProducerKey, warn_without_schema
from ._port import Schema

_log = logging.getLogger("pulsar_nack.consumer")


class OfficialPublisher:
    """A :class:`~pulsar_nack.consumer.OwnPublisher` over a ``pulsar.asyncio.Client``.

    :param initial_subscription: created before the first message is sent to a topic; None: no subscription
    """

    def __init__(self, client: Any, initial_subscription: str | None = None) -> None:
        self._client = client
        self._initial_subscription = initial_subscription
        self._producers: DeadLetterProducers[Any] = DeadLetterProducers(self._make)

    async def _make(self, key: ProducerKey) -> Any:
        topic, schema = key
        if self._initial_subscription is not None:
            await self._make_subscription(topic, self._initial_subscription)
        of_schema = {} if schema is None else await self._schema(*schema)
        return await self._client.create_producer(topic, batching_enabled=False, chunking_enabled=True, **of_schema)

    async def _schema(self, topic: str, version: bytes) -> dict[str, Any]:
        """Return the producer options for a schema of another topic; none if the broker does not have it."""
        import pulsar

        number = int.from_bytes(version, "big")  # as delivery_of made it
        try:
            info = await asyncio.to_thread(self._client._client.get_schema_info, topic, number)
        except RuntimeError as error:  # the binding raises this class
            warn_without_schema(_log, (topic, version), error)
            return {}
        schema = pulsar.schema.BytesSchema()
        schema._schema_info = info
        return {"schema": schema}

    async def _make_subscription(self, topic: str, name: str) -> None:
        import pulsar.asyncio

        shared = pulsar.ConsumerType.Shared
        try:
            consumer = await self._client.subscribe(topic, name, consumer_type=shared, receiver_queue_size=1)
        except pulsar.asyncio.PulsarException as error:
            if error.error().name != "ConsumerBusy":  # then it exists, and an exclusive consumer has it
                raise
        else:
            await consumer.close()

    async def publish(
        self,
        topic: str,
        data: bytes | None,
        *,
        properties: Mapping[str, str],
        key: str | bytes | None,
        ordering_key: str | None,
        event_time_ms: int,
        schema: Schema | None = None,
        deliver_at_ms: int | None = None,
    ) -> MessageId:
        """Publish a message. The client knows no keys of bytes: those are sent as base64.

        :raises BrokerError: the client could not
        """
        import pulsar.asyncio

        about: dict[str, Any] = {
            "properties": dict(properties),
            "partition_key": base64.b64encode(key).decode("ascii") if isinstance(key, bytes) else key,
            "ordering_key": ordering_key,
            "event_timestamp": event_time_ms or None,
        }
        if deliver_at_ms is not None:
            about["deliver_at"] = deliver_at_ms

        async def send(producer: Any) -> Any:
            return await (_send_null(producer, about) if data is None else producer.send(data, **about))

        try:
            sent = await self._producers.use((topic, schema), send, is_spent=_is_spent)
        except pulsar.asyncio.PulsarException as error:
            raise BrokerError(f"publishing to {topic}: the client says {quoted(str(error))}") from error
        return MessageId.from_bytes(sent.serialize(), topic)

    async def aclose(self) -> None:
        """Close the producers."""
        await self._producers.aclose()


async def _send_null(producer: Any, about: Mapping[str, Any]) -> Any:
    """Send a message without a value, which the client's asyncio producer cannot."""
    import _pulsar
    import pulsar.asyncio

    builder = _pulsar.MessageBuilder()
    builder.set_null_value()
    for name, value in about["properties"].items():
        builder.property(name, value)
    for name in ("partition_key", "ordering_key", "event_timestamp", "deliver_at"):
        if about.get(name) is not None:
            getattr(builder, name)(about[name])
    sent: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    producer._producer.send_async(builder.build(), partial(pulsar.asyncio._set_future, sent))
    return await sent


def _is_spent(error: Exception) -> bool:
    """Return whether a producer is closed or fenced for good."""
    result = getattr(error, "error", None)
    return callable(result) and getattr(result(), "name", "") in {"AlreadyClosed", "ProducerFenced"}
