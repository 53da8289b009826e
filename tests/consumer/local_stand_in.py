"""Local topics with the interface of the fake port, so that the tests of consumers run on them as well."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any

from pulsar_nack import Delivery, MessageId, Position
from pulsar_nack.config import DelayedDeliveryConfig, TopicConfig
from pulsar_nack.consumer import PortTraits
from pulsar_nack.testing import FaultyPort, LocalBroker
from pulsar_nack.topic import LocalPort, LocalTopic


class StandInTopic:
    """The part of :class:`~pulsar_nack.testing.FakeTopic` that tests use, on a local topic.

    Publishing does not wait: ids are known in advance; a task does the work. The broker closes with the last port,
    until it is needed again.
    """

    def __init__(
        self,
        name: str = "persistent://public/default/fake",
        *,
        batch_index_ack: bool = False,
        partitions: int = 0,
        entries_per_ledger: int = 50_000,
    ) -> None:
        if partitions:
            raise NotImplementedError("a local topic has no partitions")
        self.name = name
        self.batch_index_ack = batch_index_ack
        self._per_ledger = entries_per_ledger
        self.ports: set[LocalStandIn] = set()
        self.opened: LocalTopic | None = None
        self.backlogs: dict[str, int] = {}
        self._broker: LocalBroker | None = None
        self._published = 0
        self._waiting: deque[tuple[Any, dict[str, Any]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    async def open(self) -> LocalTopic:
        """Return the topic, with all messages published by now."""
        if self._broker is None:
            self._broker = LocalBroker(
                TopicConfig(max_entries_per_ledger=self._per_ledger), delayed=DelayedDeliveryConfig()
            )
        self.opened = await self._broker.topic(self.name)
        return self.opened

    async def subscribe(self, port: LocalStandIn, **options: Any) -> LocalPort:
        """Subscribe; a new subscription begins with the first message."""
        async with self._lock:
            opened = await self.open()
            self.ports.add(port)
            return await opened.subscribe(initial_position="earliest", **options)

    async def left(self, port: LocalStandIn) -> None:
        """Close the broker with the last port."""
        async with self._lock:
            self.ports.discard(port)
            await self._close_unless_used()

    async def _close_unless_used(self) -> None:
        if self.ports or self._broker is None:
            return
        if self.opened is not None:
            self.backlogs = {name: self.opened.backlog(name) for name in self.opened.subscriptions}
        self.opened = None
        await self._broker.restart()

    def publish(
        self,
        data: bytes,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int = 0,
    ) -> MessageId:
        """Publish a message in the background; return the id that it will have."""
        options = {"key": key, "properties": properties, "event_time_ms": event_time_ms}
        return MessageId(*self._put(data, options), topic=self.name)

    def publish_batch(self, messages: list[bytes]) -> list[MessageId]:
        """Publish a batch in the background; return the ids that its messages will have."""
        position, size = self._put(list(messages), {"batch": True}), len(messages)
        return [MessageId(*position, batch_index=at, batch_size=size, topic=self.name) for at in range(size)]

    def _put(self, payload: Any, options: dict[str, Any]) -> Position:
        self._waiting.append((payload, options))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._publish())
        self._published += 1
        number = self._published - 1
        return Position(1 + number // self._per_ledger, number % self._per_ledger)

    async def _publish(self) -> None:
        async with self._lock:
            opened = await self.open()
            while self._waiting:
                payload, options = self._waiting.popleft()
                await opened.publish(payload, **options)
            self._task = None
            await self._close_unless_used()

    def subscription(self, name: str = "fake") -> StandInSubscription:
        """Return a subscription."""
        return StandInSubscription(self, name)

    @property
    def entries(self) -> int:
        """Return how many entries were published."""
        return self._published


class StandInSubscription:
    """The part of :class:`~pulsar_nack.testing.FakeSubscription` that tests use."""

    def __init__(self, topic: StandInTopic, name: str) -> None:
        self._topic = topic
        self._name = name

    @property
    def backlog(self) -> int:
        """Return how many entries are unacknowledged."""
        opened = self._topic.opened
        if opened is None:
            return self._topic.backlogs.get(self._name, self._topic.entries)
        return opened.backlog(self._name) + len(self._topic._waiting)

    def reset(self, to: MessageId | None = None) -> None:
        """Not supported: only the fake port can do this without waiting."""
        raise NotImplementedError("a local topic is moved by a call that waits")

    def restart(self) -> None:
        """Not supported: a port of a local topic does not survive it."""
        raise NotImplementedError("a local topic that is restarted closes its ports")


class LocalStandIn(FaultyPort):
    """A port of a local topic, created and used like :class:`~pulsar_nack.testing.FakePort`."""

    def __init__(
        self,
        topic: StandInTopic | None = None,
        *,
        subscription: str = "fake",
        subscription_type: str = "shared",
        latency: float = 0.0,
        min_redelivery_delay: float = 0.0,
        batch_index_ack: bool = False,
        max_ids_per_request: int = 1_000,
        receiver_queue_size: int = 1_000,
        unacked_limit: int | None = None,
    ) -> None:
        self.topic = topic or StandInTopic(batch_index_ack=batch_index_ack)
        if batch_index_ack and not self.topic.batch_index_ack:
            raise NotImplementedError("a local topic acknowledges single messages of a batch when a consumer does")
        self.subscription = StandInSubscription(self.topic, subscription)
        self._options: dict[str, Any] = {
            "name": subscription,
            "type": subscription_type,
            "receiver_queue_size": receiver_queue_size,
            "unacked_limit": unacked_limit,
            "batch_index_ack": batch_index_ack,
        }
        self._own_traits = PortTraits(
            honours_ids=subscription_type == "shared",
            redelivery_latency=latency,
            min_redelivery_delay=min_redelivery_delay,
            max_ids_per_request=max_ids_per_request,
            batch_index_ack=batch_index_ack,
            receiver_queue_size=receiver_queue_size,
        )
        self._latency = latency
        self._opening: asyncio.Task[LocalPort] | None = None
        self._way: asyncio.Task[None] | None = None
        self._on_the_way: deque[tuple[float, Delivery]] = deque()
        self._sent = asyncio.Event()
        super().__init__(self._subscribe, None)  # type: ignore[arg-type]
        if self.topic.ports:  # messages of other ports are there at once
            self._opening = asyncio.get_running_loop().create_task(self._subscribe())

    def redeliver_acked_next(self) -> None:
        """Not supported: a local topic does not do this."""
        raise NotImplementedError("a local topic does not deliver what is acknowledged")

    async def _subscribe(self) -> LocalPort:
        return await self.topic.subscribe(self, **self._options)

    async def _ensure(self) -> None:
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._subscribe())
        self._port = await asyncio.shield(self._opening)

    @property
    def traits(self) -> PortTraits:
        """Return the traits of the fake port."""
        return self._own_traits

    async def _begin(self, name: Any, ids: Any) -> Any:
        self._check_open()
        await self._ensure()
        return await super()._begin(name, ids)

    async def receive(self) -> Delivery:
        """Receive, after the latency from the broker to here."""
        if not self._latency:
            return await super().receive()
        self._check_open()
        loop = asyncio.get_running_loop()
        if self._way is None:
            self._way = loop.create_task(self._bring())
        while not self._on_the_way or self._on_the_way[0][0] > loop.time():
            if self._on_the_way:
                await asyncio.sleep(self._on_the_way[0][0] - loop.time())
            else:
                self._sent.clear()
                await self._sent.wait()
        return self._on_the_way.popleft()[1]

    async def _bring(self) -> None:
        while True:
            delivery = await super().receive()
            self._on_the_way.append((asyncio.get_running_loop().time() + self._latency, delivery))
            self._sent.set()

    async def close(self) -> None:
        """Close, and the broker with the last port."""
        if self.is_closed:
            return
        if self._way is not None:
            self._way.cancel()
        if self._opening is None:
            self._is_closed = True
            return
        await self._ensure()
        await super().close()
        await self.topic.left(self)
