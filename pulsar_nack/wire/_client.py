"""The client: makes consumers and producers over shared connections."""

from __future__ import annotations

import asyncio
import re
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from .._check import check_callable, check_config, check_flag, model_of
from .._delays import Delay, delay_ms
from .._lifetime import ClosesWhenDropped, check_loop
from .._tasks import gather_settled
from ..consumer import Consumer, ReceivedMessage, Subscribing
from ..consumer.transport import AnyType, check_settings, native_settings, subscription_type
from ..errors import ClosedError, InvalidArgumentError
from ._connection._address import parse_service_url
from ._connection._context import ClientContext
from ._connection._options import ClientOptions, SchemaInfo
from ._connection._pool import ClientStatistics, Pool
from ._consumer._port import WirePort, traits_of
from ._consumer._positions import start_of
from ._consumer._subscribe_options import (
    SubscribeOptions,
    SubscribeSettings,
    queue_required,
    reader_options,
    split_settings,
)
from ._consumer._topic_discovery import selection_of, with_retry_topic
from ._protocol._topics import normalize, normalize_namespace

if TYPE_CHECKING:
    from ..ids import MessageId
    from ._consumer._positions import TopicPosition
    from ._consumer._subscribe_options import ReaderSettings
    from ._producer._options import ProducerSettings
    from ._producer._producer import Producer, Producing
    from ._reader import Reader, Reading
    from ._table_view import TableView, Viewing

_Opened = TypeVar("_Opened", bound=ClosesWhenDropped)


class Client(ClosesWhenDropped):
    """A client of a broker or a cluster, over the broker's own protocol. Get it from :func:`pulsar_nack.connect`.

    Use it as ``async with``, or call :meth:`aclose`, in one event loop. Closing it closes its open consumers and
    producers too. Consumers and producers keep their client alive. If you drop it and all of them without closing it,
    it warns (:class:`ResourceWarning`) and closes its connections.

    :param url: one address or several
    :param options: how to reach brokers
    :param dial: opens connections other than over the network, for tests
    """

    def __init__(self, url: str, options: ClientOptions | None = None, *, dial: Any = None) -> None:
        parse_service_url(url)
        check_config(options, ClientOptions, "options")
        self._url = url
        self._options = options or ClientOptions()
        self._dial = dial
        self._context: ClientContext | None = None
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()
        self._closing: asyncio.Task[None] | None = None
        self._is_closed = False
        self._inner = self._twin()

    def __repr__(self) -> str:
        return f"<Client of {self._url!r}{', closed' if self._is_closed else ''}>"

    async def __aenter__(self) -> Self:
        self._open_context()
        return self

    async def aclose(self) -> None:
        """Close all open consumers and producers, then the connections. Idempotent, in any loop.

        :raises WrongLoopError: the client is open, and was used in another event loop
        """
        if self._context is not None and (self._closing is None or not self._closing.done()):
            check_loop(self._context.loop, "the client")
        self._is_closed = True
        if self._context is not None:
            await asyncio.shield(self._begin_close())

    def _open_in(self) -> asyncio.AbstractEventLoop | None:
        return None if self._is_closed or self._context is None else self._context.loop

    def _begin_close(self) -> asyncio.Task[None]:
        assert self._context is not None
        if self._closing is None:
            closing = self._close(self._context)
            self._closing = self._context.loop.create_task(closing, name="pulsar_nack.wire client closing")
        return self._closing

    async def _close(self, context: ClientContext) -> None:
        await gather_settled(each.close() for each in list(self._open))
        await context.aclose()

    # --- consumers -------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topic: str | Sequence[str] | re.Pattern[str],
        subscription: str,
        *,
        consumer_type: AnyType = "shared",
        discovery_interval: Delay = 60.0,
        **settings: Unpack[SubscribeSettings],
    ) -> Subscribing:
        """Subscribe, on a Shared subscription by default.

        While no broker answers or is ready, this method and those below retry for ``request_timeout``.

        :param topic: a topic with all its partitions; a list of topics; or a pattern, by :func:`re.compile` or as text
            with ``is_pattern_topic=True``, for whole names of topics, ``persistent://tenant/namespace/name`` or
            ``tenant/namespace/name``, or for the last part of those in ``public/default``
        :param subscription: its name
        :param consumer_type: ``"shared"``, ``"key_shared"``, ``"exclusive"``, ``"failover"``, or a
            ``pulsar.ConsumerType``
        :param discovery_interval: how often to look for new partitions, and for new topics that match a pattern
        :param settings: those of :class:`~pulsar_nack.Consumer`, and those of
            :class:`~pulsar_nack.wire.SubscribeOptions` (``initial_position``, ``receiver_queue_size``, ...), by the
            official client's names too where it has them
        :return: use it as ``async with``, or await it
        :raises InvalidArgumentError: names the argument
        :raises ClosedError: the client is closed
        :raises TopicNotFoundError: when entered or awaited: the topic does not exist, and may not be created
        :raises BrokerError: when entered or awaited: subscribing failed; with the broker's text and the number of tries
        """
        words = native_settings(settings)
        selection = selection_of(topic, is_pattern=words.pop("is_pattern_topic", isinstance(topic, re.Pattern)))
        of_consumer, of_subscription = split_settings(words)
        kind = subscription_type(consumer_type)
        options = SubscribeOptions(subscription=subscription, type=kind, **of_subscription)
        interval = _interval_s(discovery_interval)
        check_settings(traits_of(options), of_consumer)
        if (retry_topic := of_consumer.get("retry_topic")) is not None:
            if not options.durable:
                raise InvalidArgumentError("retry_topic", retry_topic, "None, as durable_subscription is False")
            selection, of_consumer["retry_topic"] = with_retry_topic(selection, retry_topic, subscription)
        if not options.receiver_queue_size and (selection.only is None or selection.retry_topic is not None):
            raise queue_required()
        dead_letter = of_consumer.get("dead_letter")
        if dead_letter is not None and dead_letter.publisher is None and dead_letter.topic is not None:
            normalize(dead_letter.topic)
        self._check_open()

        async def make() -> Consumer:
            port = await WirePort.open(self._open_context(), selection, options, discovery_interval=interval)
            try:
                self._check_open()  # the client may have been closed meanwhile
                consumer = Consumer(port, **of_consumer)
            except BaseException:
                await port.close()
                raise
            consumer._keeps = self
            self._open.add(consumer)  # not only its port: the consumer has tasks too
            return consumer

        return Subscribing(make, "consumer")

    # --- readers ---------------------------------------------------------------------------------------------------

    def reader(
        self,
        topic: str | Sequence[str] | re.Pattern[str],
        start: TopicPosition | Sequence[MessageId] = "earliest",
        *,
        inclusive: bool = False,
        discovery_interval: Delay = 60.0,
        **settings: Unpack[ReaderSettings],
    ) -> Reading:
        """Read a topic with all its partitions from a place of your choice, without acknowledgements.

        :param topic: as for :meth:`subscribe`
        :param start: ``"earliest"``, or ``"latest"``: after the last message; after the message with this id, or with
            these ids, one of each topic or partition, where topics without an id begin at the earliest message; or the
            first message published at a time or later, a datetime (local time if it names no zone) or epoch ms
        :param inclusive: begin with the message that ``start`` names, also with the last one for ``"latest"``
        :param discovery_interval: how often to look for new partitions, and for new topics that match a pattern
        :param settings: ``reader_name`` and ``subscription``, chosen for you by default, and those of
            :class:`~pulsar_nack.wire.SubscribeOptions` that readers have: ``receiver_queue_size``, ``read_compacted``,
            ``properties``, ``max_pending_chunked``, ``max_chunked_bytes``, ``chunk_timeout``, ``create_topic``
        :return: use it as ``async with``, or await it; either gives a :class:`~pulsar_nack.wire.Reader`
        :raises InvalidArgumentError: names the argument; when entered or awaited for an id that is of no topic
        :raises ClosedError: the client is closed
        :raises TopicNotFoundError: when entered or awaited: the topic does not exist, and may not be created
        :raises BrokerError: when entered or awaited: subscribing failed; with the broker's text and the number of tries
        """
        from ._reader import Reading

        make = self._reader_maker(topic, start, discovery_interval, settings, inclusive=inclusive)

        async def make_and_keep() -> Reader:
            return await self._keep(await make())

        return Reading(make_and_keep, "reader")

    def _reader_maker(
        self, topic: Any, start: object, discovery_interval: object, settings: Mapping[str, Any], *, inclusive: bool
    ) -> Callable[[], Awaitable[Reader]]:
        """Check the arguments of a reader, and return what opens it."""
        from ._reader import Reader

        selection, begin, options = selection_of(topic), start_of(start), reader_options(settings)
        check_flag("inclusive", inclusive)
        if not options.receiver_queue_size and selection.only is None:
            raise queue_required()
        interval = _interval_s(discovery_interval)
        self._check_open()
        return lambda: Reader.open(
            self._open_context(), selection, options, begin, inclusive=inclusive, discovery_interval=interval
        )

    def table_view(
        self,
        topic: str | Sequence[str],
        *,
        decode: Callable[[ReceivedMessage], Any] = ReceivedMessage.value,
        discovery_interval: Delay = 60.0,
        **settings: Unpack[ReaderSettings],
    ) -> Viewing:
        """Return the newest value of each key of a topic with all its partitions, as a mapping that follows the topic.

        It is complete when it opens. By default it reads the compacted topic, which is faster, with the same result.

        :param topic: a topic or a list of topics
        :param decode: returns the value of a message that has one; None: the key is removed
        :param discovery_interval: how often to look for new partitions
        :param settings: those of :meth:`reader`; ``read_compacted`` is True by default
        :return: use it as ``async with``, or await it; either gives a :class:`~pulsar_nack.wire.TableView`
        :raises InvalidArgumentError: names the argument
        :raises ClosedError: the client is closed
        :raises BrokerError: when entered or awaited: reading failed
        """
        from ._table_view import TableView, Viewing

        check_callable("decode", decode, "a callable that takes a message")
        options = {"read_compacted": True, **settings}
        make_reader = self._reader_maker(topic, "earliest", discovery_interval, options, inclusive=False)

        async def make() -> TableView:
            return await self._keep(await TableView.open(await make_reader(), decode))

        return Viewing(make, "table view")

    # --- producers -------------------------------------------------------------------------------------------------

    def producer(self, topic: str, **settings: Unpack[ProducerSettings]) -> Producing:
        """Produce to a topic with all its partitions.

        :param topic: its name
        :param settings: those of :class:`~pulsar_nack.wire.ProducerOptions` (``batching``, ``compression``, ...)
        :return: use it as ``async with``, or await it; either gives a :class:`~pulsar_nack.wire.Producer`
        :raises InvalidArgumentError: names the argument
        :raises ClosedError: the client is closed
        :raises MissingExtraError: when entered or awaited: the package for the compression is not installed
        :raises BrokerError: when entered or awaited: connecting failed; with the broker's text
        """
        from ._producer._options import ProducerOptions
        from ._producer._producer import Producer, Producing

        name = normalize(topic)
        options = model_of(ProducerOptions, settings)
        self._check_open()

        async def make() -> Producer:
            return await self._keep(await Producer.open(self._open_context(), name, options))

        return Producing(make, "producer")

    # --- topics ----------------------------------------------------------------------------------------------------

    async def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has, 0 if it has none.

        :raises BrokerError: the broker refused, or cannot be reached
        """
        context, name = self._open_context(), normalize(topic)
        return await context.retry_transient(lambda: context.partitions(name))

    async def topics(self, namespace: str = "public/default") -> list[str]:
        """Return the full names of the persistent topics of a namespace, each partition as one.

        :raises BrokerError: the broker refused, or cannot be reached
        """
        context, name = self._open_context(), normalize_namespace(namespace)
        return sorted(await context.retry_transient(lambda: context.topics(name)))

    async def schema(self, topic: str, version: bytes | None = None) -> SchemaInfo:
        """Return a schema of a topic, to decode its messages with.

        :param version: a message's ``schema_version``; None: the latest
        :raises InvalidArgumentError: names the argument
        :raises BrokerRefusedError: the broker refused; with the code ``TopicNotFound`` if it has no such schema
        :raises BrokerError: no broker can be reached
        """
        if version is not None and not isinstance(version, bytes):
            raise InvalidArgumentError("version", version, "bytes, as a message's schema_version, or None")
        return await self._open_context().schema(normalize(topic), version)

    def statistics(self) -> ClientStatistics:
        """Return counts of open, lost, restored and failed connections; all 0 before the first request."""
        return ClientStatistics() if self._context is None else self._context.pool.statistics()

    async def _keep(self, opened: _Opened) -> _Opened:
        """Close an object with this client, which lives as long; close it now if the client was closed meanwhile."""
        if self._is_closed:
            await opened.aclose()
            raise ClosedError("the client")
        opened._keeps = self
        self._open.add(opened)
        return opened

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the client")

    def _open_context(self) -> ClientContext:
        self._check_open()
        if self._context is None:
            self._context = ClientContext(Pool(self._url, self._options, dial=self._dial))
        check_loop(self._context.loop, "the client")
        return self._context


def _interval_s(discovery_interval: object) -> float:
    interval = delay_ms(discovery_interval, "discovery_interval") / 1000
    if not interval:
        raise InvalidArgumentError("discovery_interval", discovery_interval, "more than 0")
    return interval


def connect(url: str, options: Mapping[str, Any]) -> Client:
    """Return a client; see :func:`pulsar_nack.connect`."""
    return Client(url, model_of(ClientOptions, options, hides_unknown=True))
