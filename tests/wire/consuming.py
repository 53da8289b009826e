"""A topic's wire consumer on a scripted broker, and the messages that it delivers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any, Final

from pulsar_nack.consumer import Delivery, SessionEvent
from pulsar_nack.wire._connection._context import ClientContext
from pulsar_nack.wire._connection._options import ClientOptions
from pulsar_nack.wire._connection._pool import Pool
from pulsar_nack.wire._consumer._inbox import WireInbox
from pulsar_nack.wire._consumer._subscribe_options import SubscribeOptions
from pulsar_nack.wire._consumer._topic_consumer import TopicConsumer
from tests.wire.fake_broker import FakeBroker
from tests.wire.fake_topics import FakeSubscription, FakeTopic

TOPIC: Final = "persistent://public/default/t"
NAME: Final = "s"


def context_of(url: str, dial: Any = None, **settings: Any) -> ClientContext:
    """Return what the consumers and producers of one client share."""
    return ClientContext(Pool(url, ClientOptions(**settings), dial=dial))


@asynccontextmanager
async def nothing_remains(broker: FakeBroker, context: ClientContext, users: Sequence[Any]) -> AsyncIterator[None]:
    """At the end close consumers or producers and their client; then no task and no connection is left."""
    before = asyncio.all_tasks()
    try:
        yield
    finally:
        for user in users:
            await user.aclose()
        await context.pool.aclose()
    assert asyncio.all_tasks() == before
    assert broker.links == []


class Ended(list[tuple[Any, Exception | None]]):
    """The outcomes of acknowledgements: their tokens and errors, in order; passed as ``done``."""

    def __call__(self, tokens: Sequence[Any], error: Exception | None) -> None:
        self.extend((token, error) for token in tokens)


class Arrived(WireInbox):
    """Messages that consumers have delivered, without a port."""

    def __init__(self) -> None:
        super().__init__(lambda: None)

    async def take(self, count: int = 1) -> list[Delivery]:
        """Wait for this many messages and take them."""
        async with asyncio.timeout(100):
            return [await self.get() for _ in range(count)]

    def take_nowait(self, most: int = 1_000_000) -> list[Delivery]:
        """Take the messages that have arrived."""
        return list(islice(iter(self.get_nowait, None), most))

    def __len__(self) -> int:
        return sum(queue.messages for queue in self._epochs)


class Consuming:
    """A broker with one topic, a client of it, and its consumers."""

    def __init__(self, broker: FakeBroker, **settings: Any) -> None:
        self.broker = broker
        self.context = context_of(broker.url, broker.dial, **settings)
        self.arrived = Arrived()
        self.consumers: list[TopicConsumer] = []

    @property
    def topic(self) -> FakeTopic:
        """Return the topic at the broker."""
        return self.broker.topic(TOPIC)

    @property
    def subscription(self) -> FakeSubscription:
        """Return the subscription at the broker."""
        return self.topic.subscriptions[NAME]

    def make(
        self,
        arrived: Arrived | None = None,
        told: Callable[[SessionEvent, str, int], None] = lambda *_: None,
        **options: Any,
    ) -> TopicConsumer:
        """Return a consumer that is not subscribed; from the earliest message on by default."""
        settings = SubscribeOptions(NAME, **{"initial_position": "earliest", **options})
        put = (self.arrived if arrived is None else arrived).put
        consumer = TopicConsumer(self.context, TOPIC, settings, put, on_event=told)
        self.consumers.append(consumer)
        return consumer

    async def open(self, arrived: Arrived | None = None, **options: Any) -> TopicConsumer:
        """Return a consumer that is subscribed."""
        consumer = self.make(arrived, **options)
        await consumer.open()
        return consumer

    async def holding(
        self, count: int, *, published: int | None = None, **options: Any
    ) -> tuple[TopicConsumer, list[Delivery]]:
        """Publish numbers; return a subscribed consumer and the first messages, which it has taken.

        :param published: how many are published; None: as many as are taken
        """
        for number in range(published or count):
            self.topic.publish(b"%d" % number)
        consumer = await self.open(**options)
        return consumer, await self.arrived.take(count)

    def permits(self) -> int:
        """Return how many messages the broker may send the first consumer by its own count."""
        return self.subscription.consumers[0].permits


@asynccontextmanager
async def consuming(**settings: Any) -> AsyncIterator[Consuming]:
    """Yield a broker and a client; at the end all is closed, and no task and no connection is left."""
    made = Consuming(FakeBroker(), **settings)
    async with nothing_remains(made.broker, made.context, made.consumers):
        yield made
