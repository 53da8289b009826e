"""The native client on a scripted broker, with the interface of the fake port, for the tests of consumers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pulsar_nack import MessageId
from pulsar_nack.wire import SubscribeOptions, WirePort
from pulsar_nack.wire._connection._context import ClientContext
from pulsar_nack.wire._connection._pool import Pool
from pulsar_nack.wire._consumer._topic_discovery import selection_of
from tests.wire.fake_broker import FakeBroker
from tests.wire.fake_topics import FakeSubscription

from .local_stand_in import LocalStandIn


class WireTopic:
    """The part of :class:`~pulsar_nack.testing.FakeTopic` that tests use, at a broker that answers at once."""

    def __init__(
        self,
        name: str = "persistent://public/default/fake",
        *,
        batch_index_ack: bool = False,
        partitions: int = 0,
        entries_per_ledger: int = 0,
    ) -> None:
        if partitions or entries_per_ledger:
            raise NotImplementedError("the scripted broker has one ledger for each topic")
        self.name = name
        self.batch_index_ack = batch_index_ack
        self.broker = FakeBroker(latency=0.0)
        self.stored = self.broker.topic(name)
        self.ports: set[WireStandIn] = set()
        self._pools: dict[WireStandIn, Pool] = {}

    async def subscribe(self, port: WireStandIn, *, name: str, **options: Any) -> WirePort:
        """Subscribe; a new subscription begins with the first message."""
        pool = self._pools[port] = Pool(self.broker.url, dial=self.broker.dial)
        context = ClientContext(pool)
        self.ports.add(port)
        subscription = SubscribeOptions(name, initial_position="earliest", **options)
        return await WirePort.open(context, selection_of(self.name), subscription)

    async def left(self, port: WireStandIn) -> None:
        """Close the connection of a port."""
        self.ports.discard(port)
        pool = self._pools.pop(port, None)
        if pool is not None:
            await pool.aclose()

    def publish(
        self,
        data: bytes,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int = 0,
    ) -> MessageId:
        """Publish a message."""
        fields: dict[str, Any] = {} if key is None else {"partition_key": key}
        entry = self.stored.publish(data, properties=properties, event_time=event_time_ms, **fields)
        return MessageId(*entry.place, topic=self.name)

    def publish_batch(self, messages: list[bytes]) -> list[MessageId]:
        """Publish a batch."""
        entry, size = self.stored.publish_batch(messages), len(messages)
        return [MessageId(*entry.place, batch_index=at, batch_size=size, topic=self.name) for at in range(size)]

    def subscription(self, name: str = "fake") -> WireSubscription:
        """Return a subscription."""
        return WireSubscription(self, name)

    @property
    def entries(self) -> int:
        """Return how many entries were published."""
        return len(self.stored.entries)


class WireSubscription:
    """The part of :class:`~pulsar_nack.testing.FakeSubscription` that tests use."""

    def __init__(self, topic: WireTopic, name: str) -> None:
        self._topic = topic
        self._name = name

    @property
    def _stored(self) -> FakeSubscription | None:
        return self._topic.stored.subscriptions.get(self._name)

    @property
    def backlog(self) -> int:
        """Return how many entries are unacknowledged."""
        return self._topic.entries - (0 if self._stored is None else len(self._stored.acked))

    def reset(self, to: MessageId | None = None) -> None:
        """Reset it as an administrator does: its consumers are disconnected."""
        if self._stored is not None:
            self._stored.rewind(0 if to is None else self._topic.stored.index_of(to[:2]))
        self._topic.broker.cut()

    def restart(self) -> None:
        """End all connections, like a broker that restarts."""
        self._topic.broker.cut()


class WireStandIn(LocalStandIn):
    """A port over the native client, created and used like :class:`~pulsar_nack.testing.FakePort`."""

    def __init__(
        self,
        topic: WireTopic | None = None,
        *,
        batch_index_ack: bool = False,
        unacked_limit: int | None = None,
        **settings: Any,
    ) -> None:
        if unacked_limit is not None:
            raise NotImplementedError("the scripted broker knows no such limit")
        topic = topic or WireTopic(batch_index_ack=batch_index_ack)
        super().__init__(topic, batch_index_ack=batch_index_ack, **settings)  # type: ignore[arg-type]
        self.subscription = WireSubscription(topic, settings.get("subscription", "fake"))  # type: ignore[assignment]
        del self._options["unacked_limit"]

    def redeliver_acked_next(self) -> None:
        """Not supported: the scripted broker does not do this."""
        raise NotImplementedError("the scripted broker does not deliver what is acknowledged")
