"""The native client's producers, for dead letters."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from ...consumer._port import Schema
from ...consumer._producers import Producers, warn_without_schema
from ...errors import BrokerRefusedError, ClosedError
from ...ids import MessageId
from .._connection._core import Core
from .._connection._refusals import is_transient
from .._protocol._schema_info import SchemaInfo
from .._protocol._topics import normalize
from ._options import ProducerOptions
from ._producer import Producer

_LOG: Final = logging.getLogger("pulsar_nack.wire")
_Key = tuple[str, Schema | None]


class WirePublisher:
    """A :class:`~pulsar_nack.OwnPublisher`; large messages go in chunks.

    Each schema has its own producer, which registers the schema for the dead-letter topic: brokers that
    enforce schemas refuse messages without.

    :param initial_subscription: made with a topic that is not there yet; None: none is
    """

    def __init__(self, core: Core, initial_subscription: str | None = None) -> None:
        self._core = core
        self._options = ProducerOptions(chunking=True, initial_subscription=initial_subscription)
        self._producers: Producers[_Key, Producer] = Producers(self._make)

    async def _make(self, key: _Key) -> Producer:
        topic, schema = key
        info = None if schema is None else await self._schema_info(schema)
        return await Producer.open(self._core, normalize(topic), self._options.model_copy(update={"schema_info": info}))

    async def _schema_info(self, schema: Schema) -> SchemaInfo | None:
        try:
            return await self._core.lookup.schema(*schema)
        except BrokerRefusedError as error:
            if is_transient(error):
                raise
            warn_without_schema(_LOG, schema, error)
            return None

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
        """Publish a message.

        :raises BrokerError: the broker refused, or cannot be reached
        :raises InvalidArgumentError: the message, or the name of the topic
        """

        async def send(producer: Producer) -> MessageId:
            return await producer.send(
                data, properties=properties, key=key, ordering_key=ordering_key, event_time_ms=event_time_ms
            )

        return await self._producers.use((topic, schema), send, is_spent=_is_spent)

    async def aclose(self) -> None:
        """Close the producers."""
        await self._producers.aclose()


def _is_spent(error: Exception) -> bool:
    """Return whether a producer may not recover by itself: it was closed, or the broker said no."""
    return isinstance(error, ClosedError | BrokerRefusedError)
