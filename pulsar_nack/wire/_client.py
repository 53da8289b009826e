"""The client: connections, and what is made over them: consumers and producers."""

from __future__ import annotations

import asyncio
import logging
import re
import warnings
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from .._check import check_config
from .._delays import Delay, delay_ms
from .._foreign import quoted
from .._lifetime import NotCopied, check_loop
from ..clock import LoopClock
from ..consumer import Consumer, Subscribing
from ..consumer._consumer import check_settings
from ..errors import ClosedError, InvalidArgumentError
from ._connection._address import parse_service_url
from ._connection._core import Core
from ._connection._lookup import Lookup
from ._connection._options import ClientOptions
from ._connection._pool import ClientStatistics, Pool
from ._connection._together import each_tried
from ._consumer._port import WirePort, no_queue, traits_of
from ._consumer._selection import selection_of
from ._consumer._settings import ProducerSettings, Settings, client_options, producer_options, split
from ._consumer._subscribe_options import TYPES, SubscribeOptions, SubscriptionType
from ._protocol._schema_info import SchemaInfo
from ._protocol._topics import normalize, normalize_namespace

if TYPE_CHECKING:
    from ._producer._producer import Producer, Producing

_LOG: Final = logging.getLogger("pulsar_nack.wire")


class Client(NotCopied):
    """A client of a broker or a cluster, over the broker's own protocol. Get it from :func:`pulsar_nack.connect`.

    Use it as ``async with``, or call :meth:`aclose`, in one event loop. Closing it closes its open consumers and
    producers too. Consumers and producers keep their client alive. If you drop it and all of them without closing it,
    it warns (:class:`ResourceWarning`) and closes its connections.

    :param url: one address or several
    :param options: how brokers are reached
    :param dial: opens connections in another way than over the network, for tests
    """

    def __init__(self, url: str, options: ClientOptions | None = None, *, dial: Any = None) -> None:
        parse_service_url(url)
        check_config(options, ClientOptions, "options")
        self._url = url
        self._options = options or ClientOptions()
        self._dial = dial
        self._made: Core | None = None
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()
        self._closing: asyncio.Task[None] | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Client of {self._url!r}{', closed' if self._is_closed else ''}>"

    def __del__(self) -> None:
        core = self.__dict__.get("_made")  # not set if the URL was refused
        if core is not None and not self._is_closed and not core.loop.is_closed():
            core.loop.call_soon_threadsafe(_close_dropped, core, quoted(self))
            warnings.warn(f"unclosed {quoted(self)}", ResourceWarning, source=self, stacklevel=2)

    async def __aenter__(self) -> Self:
        self._core()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close what is open of its consumers and producers, then the connections. Idempotent, in any loop.

        :raises WrongLoopError: it is open, and was used in another event loop than the one that runs
        """
        if self._made is not None and (self._closing is None or not self._closing.done()):
            check_loop(self._made.loop, "the client")
        self._is_closed = True
        if self._made is None:
            return
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(self._made), name="pulsar_nack.wire client closing")
        await asyncio.shield(self._closing)

    async def _close(self, core: Core) -> None:
        await each_tried(each.close() for each in list(self._open))
        await core.aclose()

    # --- consumers -------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topic: str | Sequence[str] | re.Pattern[str],
        subscription: str,
        *,
        consumer_type: SubscriptionType = "shared",
        discovery_interval: Delay = 60.0,
        **settings: Unpack[Settings],
    ) -> Subscribing:
        """Subscribe, on a Shared subscription unless told otherwise.

        While no broker answers, or is not ready, it tries again for ``request_timeout``, as the methods below do.

        :param topic: a topic, with whatever partitions; a list of topics; or a pattern by :func:`re.compile` for whole
            names of topics, ``persistent://tenant/namespace/name`` or ``tenant/namespace/name``, or for the last part
            of those in ``public/default``
        :param subscription: its name
        :param discovery_interval: how often is looked for new partitions, and for new topics of a pattern
        :param settings: those of :class:`~pulsar_nack.Consumer`, and those of
            :class:`~pulsar_nack.wire.SubscribeOptions` (``initial_position``, ``receiver_queue_size``, ...)
        :return: to be used as ``async with``, or awaited
        :raises InvalidArgumentError: names the argument
        :raises ClosedError: the client is closed
        :raises TopicNotFoundError: when entered or awaited: the topic does not exist, and may not be created
        :raises BrokerError: when entered or awaited: it could not subscribe; with the broker's own words, and the
            number of tries
        """
        selection = selection_of(topic)
        of_consumer, of_subscription = split(settings)
        if consumer_type not in TYPES:
            raise InvalidArgumentError("consumer_type", consumer_type, f"one of {', '.join(TYPES)}")
        options = SubscribeOptions(subscription=subscription, type=consumer_type, **of_subscription)
        if not options.receiver_queue_size and selection.only is None:
            raise no_queue()
        interval = delay_ms(discovery_interval, "discovery_interval") / 1000
        if not interval:
            raise InvalidArgumentError("discovery_interval", discovery_interval, "more than 0")
        check_settings(traits_of(options), of_consumer)
        dead_letter = of_consumer.get("dead_letter")
        if dead_letter is not None and dead_letter.publisher is None and dead_letter.topic is not None:
            normalize(dead_letter.topic)
        self._check_open()

        async def make() -> Consumer:
            port = await WirePort.open(self._core(), selection, options, discovery_interval=interval)
            try:
                self._check_open()  # it may have been closed meanwhile
                consumer = Consumer(port, **of_consumer)
            except BaseException:
                await port.close()
                raise
            consumer._keeps = self
            self._open.add(consumer)  # not its port alone, whose end leaves the consumer's own tasks
            return consumer

        return Subscribing(make)

    # --- producers -------------------------------------------------------------------------------------------------

    def producer(self, topic: str, **settings: Unpack[ProducerSettings]) -> Producing:
        """Produce to a topic, with whatever partitions.

        :param topic: its name
        :param settings: those of :class:`~pulsar_nack.wire.ProducerOptions` (``batching``, ``compression``, ...)
        :return: to be used as ``async with``, or awaited; either gives a :class:`~pulsar_nack.wire.Producer`
        :raises InvalidArgumentError: names the argument
        :raises ClosedError: the client is closed
        :raises MissingExtraError: when entered or awaited: what its compression needs is not installed
        :raises BrokerError: likewise: it could not be made; with the broker's own words
        """
        from ._producer._producer import Producer, Producing

        name = normalize(topic)
        options = producer_options(settings)
        self._check_open()

        async def make() -> Producer:
            producer = await Producer.open(self._core(), name, options)
            if self._is_closed:
                await producer.aclose()
                raise ClosedError("the client")
            producer._keeps = self
            self._open.add(producer)
            return producer

        return Producing(make)

    # --- looking ---------------------------------------------------------------------------------------------------

    async def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has, 0 if it has none.

        :raises BrokerError: the broker refused, or cannot be reached
        """
        core, name = self._core(), normalize(topic)
        return await core.patiently(lambda: core.lookup.partitions(name))

    async def topics(self, namespace: str = "public/default") -> list[str]:
        """Return the full names of the persistent topics of a namespace, each partition by itself.

        :raises BrokerError: the broker refused, or cannot be reached
        """
        core, name = self._core(), normalize_namespace(namespace)
        return sorted(await core.patiently(lambda: core.lookup.topics(name)))

    async def schema(self, topic: str, version: bytes | None = None) -> SchemaInfo:
        """Return a schema of a topic, by which its messages can be decoded.

        :param version: a message's ``schema_version``; None: the latest
        :raises InvalidArgumentError: names the argument
        :raises BrokerRefusedError: the broker said no; with the code ``TopicNotFound`` if it has no such schema
        :raises BrokerError: it cannot be reached
        """
        if version is not None and not isinstance(version, bytes):
            raise InvalidArgumentError("version", version, "bytes, as a message's schema_version, or None")
        return await self._core().lookup.schema(normalize(topic), version)

    def statistics(self) -> ClientStatistics:
        """Return counts of open, lost, restored and failed connections; all 0 before the first request."""
        return ClientStatistics() if self._made is None else self._made.pool.statistics()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the client")

    def _core(self) -> Core:
        self._check_open()
        loop = asyncio.get_running_loop()
        if self._made is None:
            pool = Pool(self._url, self._options, dial=self._dial)
            self._made = Core(
                pool=pool, lookup=Lookup(pool, self._options), options=self._options, loop=loop, clock=LoopClock()
            )
        check_loop(self._made.loop, "the client")
        return self._made


def _close_dropped(core: Core, name: str) -> None:
    core.loop.create_task(core.aclose(), name="pulsar_nack.wire client closing")
    _LOG.warning("%s was dropped without being closed; its connections are closed now", name)


def connect(url: str, options: Mapping[str, Any]) -> Client:
    """Return a client; see :func:`pulsar_nack.connect`."""
    return Client(url, client_options(options))
