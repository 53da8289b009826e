"""A client's producer of a topic with all its partitions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from ..._delays import Delay
from ..._lifetime import ClosesWhenDropped, Opening, check_loop
from ..._tasks import gather_or_cancel, gather_settled
from ...consumer.transport import DeadLetterProducers, Schema, warn_without_schema
from ...errors import BrokerError, BrokerRefusedError, ClosedError, WouldBlockError
from ...ids import MessageId
from .._connection._context import ClientContext
from .._connection._options import SchemaInfo
from .._connection._requests import as_text, is_transient, with_text
from .._protocol._compression import require_compression
from .._protocol._topics import normalize, partition_name
from ._options import ProducerOptions
from ._outgoing import OutgoingMessage, PendingLimiter
from ._routing import PartitionRouter
from ._topic_producer import TopicProducer

_DISCOVERY_S: Final = 60.0
"""How often to look for new partitions."""

_LOG: Final = logging.getLogger("pulsar_nack.wire")


class Producer(ClosesWhenDropped):
    """Sends messages to a topic. Get it from :meth:`Client.producer`; close it, or use it as ``async with``.

    Use it in the client's event loop. If you drop it without closing it, it warns (:class:`ResourceWarning`), sends
    its queued messages and closes.

    Messages are confirmed in the order in which they were sent to a partition. When a connection breaks, unconfirmed
    messages are sent again, chunked ones with all their chunks: they may be stored twice, unless the broker
    deduplicates. Failures to reconnect, also of credentials, are retried at growing intervals; ``send_timeout`` bounds
    how long a message waits.
    """

    def __init__(self, context: ClientContext, topic: str, options: ProducerOptions) -> None:
        self.topic = topic
        self._context = context
        self._options = options
        self._router = PartitionRouter(options.routing, options.hashing)
        self._pending = PendingLimiter(options.max_pending_messages, options.max_pending_bytes)
        self._producers: list[TopicProducer] = []
        self._discovery: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, context: ClientContext, topic: str, options: ProducerOptions) -> Self:
        """Connect to the brokers of all partitions.

        :param topic: the full name
        :raises BrokerRefusedError: a broker refused
        :raises BrokerError: a broker cannot be reached
        :raises MissingExtraError: the package for the compression is not installed
        """
        require_compression(options.compression_type)
        self = cls(context, topic, options)
        ends_at = context.deadline()
        try:
            partitions = await context.retry_transient(lambda: context.partitions(topic), ends_at=ends_at)
        except BrokerError as error:
            raise with_text(error, f"producing to {topic}: {error}") from error
        names = [partition_name(topic, number) for number in range(partitions)] if partitions else [topic]
        self._producers = await self._opened(names, ends_at)
        if partitions:
            self._discovery = context.loop.create_task(
                self._discover_partitions(), name=f"pulsar_nack.wire partitions of {topic}"
            )
        self._inner = self
        return self._twin()

    def __repr__(self) -> str:
        state = "closed" if self._closing else f"{self._pending.messages} messages unconfirmed"
        return f"<Producer of {self.topic} as {self.name!r}, {state}>"

    @property
    def name(self) -> str:
        """Return the producer's name, yours or the broker's choice; with partitions, that of the first one."""
        return self._producers[0].name if self._producers else self._options.name or ""

    @property
    def is_connected(self) -> bool:
        """Return whether it is connected to the brokers of all partitions."""
        return all(producer.is_connected for producer in self._producers)

    @property
    def last_sequence_id(self) -> int:
        """Return the highest sequence id of a confirmed message, in any partition; -1: none."""
        return max((producer.queue.last_sequence_id for producer in self._producers), default=-1)

    @property
    def failed_attempts(self) -> int:
        """Return how many attempts to reconnect to the broker of a partition have failed."""
        return sum(producer.failed_attempts for producer in self._producers)

    @property
    def pending(self) -> int:
        """Return how many messages are unconfirmed."""
        return self._pending.messages

    # --- sending ---------------------------------------------------------------------------------------------------

    async def send(
        self,
        data: bytes | bytearray | memoryview | None,
        *,
        properties: Mapping[str, str] | None = None,
        key: str | bytes | None = None,
        ordering_key: str | bytes | None = None,
        event_time_ms: int = 0,
        deliver_at_ms: int | None = None,
        deliver_after: Delay | None = None,
        sequence_id: int | None = None,
        replicate_to: Sequence[str] | None = None,
    ) -> MessageId:
        """Send a message and return its id when the broker has stored it. Waits while too many are unconfirmed.

        A cancelled call may still send the message.

        :param data: the payload; None: the key has no value any more
        :param properties: of the application
        :param key: decides on the partition, the order on Key_Shared, and what compaction keeps; bytes are encoded
        :param ordering_key: decides on the order on Key_Shared instead of ``key``
        :param event_time_ms: a time of the application, epoch ms
        :param deliver_at_ms: hold the message back on Shared and Key_Shared subscriptions until then, epoch ms
        :param deliver_after: hold it back for so long from now, in seconds
        :param sequence_id: above that of the previous message in this partition, unless that one failed; a producer
            may begin with one that an earlier producer of its name has sent. None: the next one
        :param replicate_to: names of clusters; None: those of the namespace
        :return: with ledger and entry -1 if the broker has received a message with this sequence id already
        :raises InvalidArgumentError: names the argument; or the message is too large
        :raises BrokerRefusedError: the broker refused the message
        :raises RequestTimeoutError: not confirmed within ``send_timeout``; it may still be stored
        :raises BrokerError: the broker's answers do not say whether it is stored
        :raises ClosedError: the producer was closed before the message was confirmed, or cannot reconnect
        """
        message = OutgoingMessage(
            data,
            properties=properties,
            key=key,
            ordering_key=ordering_key,
            event_time_ms=event_time_ms,
            deliver_at_ms=deliver_at_ms,
            deliver_after=deliver_after,
            sequence_id=sequence_id,
            replicate_to=replicate_to,
        )
        self._check_open()
        if not self._pending.acquire_nowait(message.size):
            await self._pending.acquire(message.size)
        return await self._enqueue(message)

    def send_nowait(self, data: bytes | bytearray | memoryview | None, **about: Any) -> asyncio.Future[MessageId]:
        """Begin to send a message; return a future that gets the result or error of :meth:`send`.

        A large message is compressed in a thread; the future gets the error if it is too large then.

        :param about: the other parameters of :meth:`send`
        :raises InvalidArgumentError: names the argument; or the message is too large
        :raises WouldBlockError: too many messages are unconfirmed; nothing is sent
        :raises BrokerRefusedError: the broker accepts nothing more from this producer
        :raises ClosedError: the producer is closed
        """
        message = OutgoingMessage(data, **about)
        self._check_open()
        if not self._pending.acquire_nowait(message.size):
            raise WouldBlockError(
                "the producer", wanted=1, room=max(self._pending.max_messages - self._pending.messages, 0)
            )
        return self._enqueue(message)

    def _enqueue(self, message: OutgoingMessage) -> asyncio.Future[MessageId]:
        """Pass an admitted message to the producer of a partition."""
        receipt: asyncio.Future[MessageId] = self._context.loop.create_future()
        message.receipt = receipt
        if self._closing is not None:  # while the message waited
            self._pending.release(message.size)
            raise ClosedError("the producer")
        try:
            producer = self._chosen(message)
            producer.check_open()
            producer.queue.send(message)
        except BaseException:
            self._pending.release(message.size)
            raise
        return receipt

    def _chosen(self, message: OutgoingMessage) -> TopicProducer:
        producers = self._producers
        if len(producers) == 1:
            return producers[0]
        return producers[self._router.partition(message.key, len(producers), is_filling=self._is_filling)]

    def _is_filling(self, partition: int) -> bool:
        return bool(self._producers[partition].queue.batches)

    def _on_done(self, message: OutgoingMessage) -> None:
        self._pending.release(message.size)

    async def flush(self) -> None:
        """Send all batches, and return when all messages so far are confirmed or have failed.

        That includes calls of :meth:`send` that still wait; each of them returns, or raises, for its own message.
        """
        check_loop(self._context.loop, "the producer")
        for turn in list(self._pending.waiting):
            if not turn.done():
                self._send_batches()
                await asyncio.wait([turn])
        self._send_batches()
        await asyncio.gather(*(producer.queue.flush() for producer in self._producers))

    def _send_batches(self) -> None:
        for producer in self._producers:
            producer.queue.send_batches()

    # --- partitions ------------------------------------------------------------------------------------------------

    async def _opened(self, names: Sequence[str], ends_at: float | None = None) -> list[TopicProducer]:
        """Return connected producers for topics or partitions; if one fails, close all and raise its error."""
        made = [TopicProducer(self._context, name, self._options, self._on_done) for name in names]
        try:
            await gather_or_cancel((_open(each, ends_at) for each in made), most=len(made))
        except BaseException:
            await gather_settled(each.aclose() for each in made)  # the caller may be cancelled again
            raise
        return made

    async def _discover_partitions(self) -> None:
        """Add producers for new partitions."""
        last_error = ""
        while not self._context.pool.is_closed:
            await asyncio.sleep(_DISCOVERY_S)
            known = len(self._producers)
            try:
                partitions = await self._context.partitions(self.topic)
                names = [partition_name(self.topic, number) for number in range(known, partitions)]
                self._producers += await self._opened(names)
                last_error = ""
            except Exception as error:  # noqa: BLE001 - also those of the user's authentication
                if last_error != (last_error := as_text(error)):
                    _LOG.warning("cannot look for new partitions of %s: %s", self.topic, last_error)

    # --- closing ---------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Send all queued messages, wait for their receipts, a few seconds at most, and close. Idempotent, in any loop.

        :raises WrongLoopError: called in another event loop than the client's; all methods raise this
        """
        if self._closing is None or not self._closing.done():
            check_loop(self._context.loop, "the producer")
        await asyncio.shield(self._begin_close())

    async def close(self) -> None:
        """Close the producer, as :meth:`aclose` does."""
        await self.aclose()

    def _begin_close(self) -> asyncio.Task[None]:
        if self._closing is None:
            self._pending.close(ClosedError("the producer"))
            closing = (self._inner or self)._close()
            self._closing = self._context.loop.create_task(closing, name=f"pulsar_nack.wire closing {self.topic}")
        return self._closing

    def _open_in(self) -> asyncio.AbstractEventLoop | None:
        return None if self._closing is not None or self._context.pool.is_closed else self._context.loop

    async def _close(self) -> None:
        if self._discovery is not None:
            self._discovery.cancel()
            await asyncio.wait([self._discovery])
        await asyncio.gather(*(producer.aclose() for producer in self._producers))

    def _check_open(self) -> None:
        check_loop(self._context.loop, "the producer")
        if self._closing is not None:
            raise ClosedError("the producer")


async def _open(producer: TopicProducer, ends_at: float | None) -> None:
    try:
        await producer.open(ends_at)
    except BrokerError as error:
        raise with_text(error, f"producing to {producer.topic}: {error}") from error


Producing = Opening[Producer]
"""Returned by :meth:`Client.producer`: use it as ``async with``, or await it and close the producer yourself."""


class WirePublisher:
    """The :class:`~pulsar_nack.consumer.OwnPublisher` of the native client, for dead letters.

    Large messages are sent in chunks. Each schema has its own producer, which registers the schema for the dead-letter
    topic: brokers that enforce schemas refuse messages without one.

    :param initial_subscription: created together with a new dead-letter topic; None: no subscription
    """

    def __init__(self, context: ClientContext, initial_subscription: str | None = None) -> None:
        self._context = context
        self._options = ProducerOptions(chunking=True, initial_subscription=initial_subscription)
        self._producers: DeadLetterProducers[Producer] = DeadLetterProducers(self._make)

    async def _make(self, key: tuple[str, Schema | None]) -> Producer:
        topic, schema = key
        info = None if schema is None else await self._schema_info(schema)
        options = self._options.model_copy(update={"schema_info": info})
        return await Producer.open(self._context, normalize(topic), options)

    async def _schema_info(self, schema: Schema) -> SchemaInfo | None:
        try:
            return await self._context.schema(*schema)
        except BrokerRefusedError as error:
            if is_transient(error):
                raise
            warn_without_schema(_LOG, schema, error)
            return None

    async def publish(self, topic: str, data: bytes | None, *, schema: Schema | None = None, **about: Any) -> MessageId:
        """Publish a message.

        :param about: ``properties``, ``key``, ``ordering_key`` and ``event_time_ms``, as :meth:`Producer.send`
        :raises BrokerError: the broker refused, or cannot be reached
        :raises InvalidArgumentError: the message, or the name of the topic
        """
        return await self._producers.use(
            (topic, schema), lambda producer: producer.send(data, **about), is_spent=_is_spent
        )

    async def aclose(self) -> None:
        """Close the producers."""
        await self._producers.aclose()


def _is_spent(error: Exception) -> bool:
    """Return whether a producer may not recover: it was closed, or the broker refused."""
    return isinstance(error, ClosedError | BrokerRefusedError)
