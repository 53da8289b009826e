"""The official client's producers, for dead letters."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from ..errors import BrokerError
from ..ids import MessageId
from ._port import Schema
from ._producers import Producers

_log = logging.getLogger("pulsar_nack.consumer")
_Key = tuple[str, Schema | None]


class OfficialPublisher:
    """A :class:`~pulsar_nack.OwnPublisher` over a ``pulsar.asyncio.Client``.

    :param initial_subscription: made before the first message is sent to a topic; None: none is
    """

    def __init__(self, client: Any, initial_subscription: str | None = None) -> None:
        self._client = client
        self._initial_subscription = initial_subscription
        self._producers: Producers[_Key, Any] = Producers(self._make)

    async def _make(self, key: _Key) -> Any:
        topic, schema = key
        if self._initial_subscription is not None:
            await self._make_subscription(topic, self._initial_subscription)
        of_schema = {} if schema is None else await self._schema(*schema)
        return await self._client.create_producer(topic, batching_enabled=False, chunking_enabled=True, **of_schema)

    async def _schema(self, topic: str, version: bytes) -> dict[str, Any]:
        """Return what makes a producer send with a schema of another topic; nothing if the broker has none."""
        import pulsar

        number = int.from_bytes(version, "big")  # as delivery_of made it
        try:
            info = await asyncio.to_thread(self._client._client.get_schema_info, topic, number)
        except RuntimeError as error:  # what the binding raises is one
            _log.warning("dead letters of %s go without their schema, version %s: %s", topic, version.hex(), error)
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
            if error.error().name != "ConsumerBusy":  # then it is there, and somebody has it alone
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
    ) -> MessageId:
        """Publish a message. The client knows no keys of bytes: those are sent as base64.

        :raises BrokerError: the client could not
        """
        import _pulsar
        import pulsar.asyncio

        builder = _pulsar.MessageBuilder()
        if data is None:
            builder.set_null_value()
        else:
            builder.content(data)
        for name, value in properties.items():
            builder.property(name, value)
        if key is not None:
            builder.partition_key(base64.b64encode(key).decode("ascii") if isinstance(key, bytes) else key)
        if ordering_key is not None:
            builder.ordering_key(ordering_key)
        if event_time_ms:
            builder.event_timestamp(event_time_ms)
        message = builder.build()
        loop = asyncio.get_running_loop()

        async def send(producer: Any) -> Any:
            sent: asyncio.Future[Any] = loop.create_future()
            producer._producer.send_async(message, partial(_call_soon, loop, _resolve_sent, sent))
            return await sent

        try:
            handle = await self._producers.use((topic, schema), send, is_spent=_is_spent)
        except pulsar.asyncio.PulsarException as error:
            raise BrokerError(f"publishing to {topic}: the client says {str(error)!r}") from error
        return MessageId.from_bytes(handle.serialize(), topic)

    async def aclose(self) -> None:
        """Close the producers."""
        await self._producers.aclose()


def _call_soon(loop: asyncio.AbstractEventLoop, function: Any, *args: object) -> None:
    """Go on in the loop; the client calls from a thread of its own."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:  # the loop is closed: nobody waits for this any more
        return


def _resolve_sent(sent: asyncio.Future[Any], result: Any, handle: Any) -> None:
    import pulsar.asyncio

    if sent.done():
        return
    if result.name == "Ok":
        sent.set_result(handle)
    else:
        sent.set_exception(pulsar.asyncio.PulsarException(result))


def _is_spent(error: Exception) -> bool:
    """Return whether a producer is closed, or fenced, and stays so."""
    result = getattr(error, "error", None)
    return callable(result) and getattr(result(), "name", "") in {"AlreadyClosed", "ProducerFenced"}
