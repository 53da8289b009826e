"""The official client's producers, for dead letters."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from ..errors import BrokerError
from ..ids import MessageId
from ._producers import Producers


class OfficialPublisher:
    """A :class:`~pulsar_nack.Publisher` over a ``pulsar.asyncio.Client``.

    :param initial_subscription: made before the first message is sent to a topic; None: none is
    """

    def __init__(self, client: Any, initial_subscription: str | None = None) -> None:
        self._client = client
        self._initial_subscription = initial_subscription
        self._producers: Producers[Any] = Producers(self._make)

    async def _make(self, topic: str) -> Any:
        if self._initial_subscription is not None:
            await self._make_subscription(topic, self._initial_subscription)
        return await self._client.create_producer(topic, batching_enabled=False, chunking_enabled=True)

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
        data: bytes,
        *,
        properties: Mapping[str, str],
        key: str | bytes | None,
        ordering_key: str | None,
        event_time_ms: int,
    ) -> MessageId:
        """Publish a message. The client knows no keys of bytes: those are sent as base64.

        :raises BrokerError: the client could not
        """
        import pulsar.asyncio

        async def send(producer: Any) -> Any:
            return await producer.send(
                data,
                properties=dict(properties),
                partition_key=base64.b64encode(key).decode("ascii") if isinstance(key, bytes) else key,
                ordering_key=ordering_key,
                event_timestamp=event_time_ms or None,
            )

        try:
            sent = await self._producers.use(topic, send, is_spent=_is_spent)
        except pulsar.asyncio.PulsarException as error:
            raise BrokerError(f"publishing to {topic}: the client says {str(error)!r}") from error
        return MessageId.from_bytes(sent.serialize(), topic)

    async def aclose(self) -> None:
        """Close the producers."""
        await self._producers.aclose()


def _is_spent(error: Exception) -> bool:
    """Return whether a producer is closed, or fenced, and stays so."""
    result = getattr(error, "error", None)
    return callable(result) and getattr(result(), "name", "") in {"AlreadyClosed", "ProducerFenced"}
