"""The publisher over the official client, with a client that only records its calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pulsar_nack import BrokerError, ClosedError
from pulsar_nack.testing import virtual_time

pulsar = pytest.importorskip("pulsar")
asyncio_client = pytest.importorskip("pulsar.asyncio")

from pulsar_nack.consumer._official_publisher import OfficialPublisher  # noqa: E402 - needs what is skipped for above


def failure(name: str) -> Exception:
    """Return the client's error."""
    error: Exception = asyncio_client.PulsarException(getattr(pulsar.Result, name))
    return error


class Made:
    """A producer or a consumer."""

    def __init__(self, client: Client) -> None:
        self.sent: list[dict[str, Any]] = []
        self.is_closed = False
        self._client = client

    async def send(self, data: bytes, **about: Any) -> Any:
        """Record a message."""
        await asyncio.sleep(0.01)
        if self._client.send_fails:
            raise self._client.send_fails.pop()
        self.sent.append({"data": data, **about})
        return pulsar.MessageId(-1, 1, len(self.sent) - 1, -1)

    async def close(self) -> None:
        """Record it."""
        self.is_closed = True


class Client:
    """A client; errors in its list are raised, the last first."""

    def __init__(self) -> None:
        self.producers: list[Made] = []
        self.consumers: list[tuple[str, str, Made]] = []
        self.subscribe_fails: list[Exception] = []
        self.create_fails: list[Exception] = []
        self.send_fails: list[Exception] = []
        self.options: dict[str, Any] = {}

    async def create_producer(self, topic: str, **options: Any) -> Made:
        """Make a producer."""
        del topic
        await asyncio.sleep(1)
        if self.create_fails:
            raise self.create_fails.pop()
        self.options = options
        self.producers.append(Made(self))
        return self.producers[-1]

    async def subscribe(self, topic: str, subscription: str, **options: Any) -> Made:
        """Make a consumer."""
        del options
        if self.subscribe_fails:
            raise self.subscribe_fails.pop()
        self.consumers.append((topic, subscription, Made(self)))
        return self.consumers[-1][2]


async def publish(publisher: OfficialPublisher, topic: str = "dead", **about: Any) -> Any:
    """Publish a message."""
    usual: dict[str, Any] = {"properties": {}, "key": None, "ordering_key": None, "event_time_ms": 0}
    return await publisher.publish(topic, b"data", **{**usual, **about})


@virtual_time
async def test_one_producer_for_each_topic() -> None:
    """Concurrent calls share one producer of a topic; each is without batches, in chunks, and closed at the end."""
    client = Client()
    publisher = OfficialPublisher(client)
    ids = await asyncio.gather(*(publish(publisher) for _ in range(3)), publish(publisher, "other"))
    assert [len(each.sent) for each in client.producers] == [3, 1]
    assert {(each.ledger, each.topic) for each in ids} == {(1, "dead"), (1, "other")}
    assert client.options == {"batching_enabled": False, "chunking_enabled": True}
    assert not client.consumers
    await publisher.aclose()
    assert all(each.is_closed for each in client.producers)
    with pytest.raises(ClosedError):
        await publish(publisher)


@virtual_time
async def test_what_is_sent() -> None:
    """Keys of bytes are sent as base64, no event time as none; the rest as it is."""
    client = Client()
    publisher = OfficialPublisher(client)
    await publish(publisher, key=b"\x00\xff", ordering_key="o", properties={"a": "b"})
    await publish(publisher, key="k", event_time_ms=5)
    first, second = client.producers[0].sent
    assert (first["partition_key"], first["ordering_key"], first["event_timestamp"]) == ("AP8=", "o", None)
    assert first["properties"] == {"a": "b"}
    assert (second["partition_key"], second["event_timestamp"]) == ("k", 5)
    await publisher.aclose()


@virtual_time
async def test_a_subscription_before_the_first_message() -> None:
    """It is created before the first message of a topic and closed; an exclusive one exists already."""
    client = Client()
    client.subscribe_fails = [failure("ConsumerBusy")]
    publisher = OfficialPublisher(client, "repair")
    for topic in ("dead", "dead", "other"):
        await publish(publisher, topic)
    ((topic, name, consumer),) = client.consumers
    assert (topic, name, consumer.is_closed) == ("other", "repair", True)
    client.subscribe_fails = [failure("AuthorizationError")]
    with pytest.raises(BrokerError, match=r"third.*AuthorizationError"):
        await publish(publisher, "third")
    await publisher.aclose()


@virtual_time
async def test_failures() -> None:
    """A failed call raises the client's error, and the next one tries again; a closed producer is replaced."""
    client = Client()
    client.create_fails = [failure("Timeout")]
    publisher = OfficialPublisher(client)
    with pytest.raises(BrokerError, match=r"dead.*Timeout"):
        await publish(publisher)
    await publish(publisher)
    client.send_fails = [failure("Timeout")]
    with pytest.raises(BrokerError, match="Timeout"):
        await publish(publisher)
    await publish(publisher)
    assert len(client.producers) == 1
    client.send_fails = [failure("AlreadyClosed")]
    with pytest.raises(BrokerError, match="AlreadyClosed"):
        await publish(publisher)
    await publish(publisher)
    assert len(client.producers) == 2
    await publisher.aclose()
    assert client.producers[0].is_closed


@virtual_time
async def test_closed_while_a_producer_is_made() -> None:
    """Closing ends an opening producer; the calls that wait for it end too."""
    publisher = OfficialPublisher(Client())
    call = asyncio.create_task(publish(publisher))
    await asyncio.sleep(0.5)
    await publisher.aclose()
    await asyncio.wait([call])
    assert call.cancelled()
