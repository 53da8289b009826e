"""The native client's producers, for dead letters."""

from __future__ import annotations

from collections.abc import Mapping

from ..consumer._producers import Producers
from ..errors import BrokerRefusedError, ClosedError
from ..ids import MessageId
from ._core import Core
from ._producer import Producer
from ._producer_options import ProducerOptions
from ._topics import normalize


class WirePublisher:
    """A :class:`~pulsar_nack.Publisher`; large messages go in chunks.

    :param initial_subscription: made with a topic that is not there yet; None: none is
    """

    def __init__(self, core: Core, initial_subscription: str | None = None) -> None:
        self._core = core
        self._options = ProducerOptions(chunking=True, initial_subscription=initial_subscription)
        self._producers: Producers[Producer] = Producers(self._make)

    async def _make(self, topic: str) -> Producer:
        return await Producer.open(self._core, normalize(topic), self._options)

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
        """Publish a message.

        :raises BrokerError: the broker refused, or cannot be reached
        :raises InvalidArgumentError: the message, or the name of the topic
        """

        async def send(producer: Producer) -> MessageId:
            return await producer.send(
                data, properties=properties, key=key, ordering_key=ordering_key, event_time_ms=event_time_ms
            )

        return await self._producers.use(topic, send, is_spent=_is_spent)

    async def aclose(self) -> None:
        """Close the producers."""
        await self._producers.aclose()


def _is_spent(error: Exception) -> bool:
    """Return whether a producer may not recover by itself: it was closed, or the broker said no."""
    return isinstance(error, ClosedError | BrokerRefusedError)
