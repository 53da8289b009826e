"""Each failure to reconnect is one failed attempt: logged once, counted and retried."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pulsar_nack import BrokerError, ClosedError, DeadLetterPolicy, InvalidArgumentError
from pulsar_nack.errors import ProtocolError
from pulsar_nack.testing import virtual_time
from pulsar_nack.wire import Client, ClientOptions
from pulsar_nack.wire._connection._authentication import TokenAuthentication
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from tests.wire.fake_broker import Call, FakeBroker, as_usual, found_at, refuse
from tests.wire.frames import command

TOPIC = "persistent://public/default/t"
OPTIONS: dict[str, Any] = {"backoff_maximum": 1.0, "request_timeout": 5.0}


class Moody(TokenAuthentication):
    """A token that can be had or not."""

    def __init__(self) -> None:
        super().__init__("token")
        self.fault: BaseException | None = None

    async def data(self, challenge: bytes | None) -> bytes:
        """Return the token, or raise the fault."""
        if self.fault is not None:
            raise self.fault
        return await super().data(challenge)


FAULTS: list[BaseException | str] = [
    InvalidArgumentError("token", "/run/token", "a file with a token in it ([Errno 2] No such file)"),
    InvalidArgumentError("token", "", "text that is not empty"),
    RuntimeError("vault: 503"),
    RuntimeError(),
    BrokerError("https://issuer: the answer of the issuer is not JSON"),
    ProtocolError("junk"),
    TimeoutError(),
    OSError("no file handles"),
    ExceptionGroup("both", [ValueError(1)]),
    ClosedError("the secret store"),
    asyncio.CancelledError(),
    "broker:6650",
    "http://broker:8080",
    "pulsar://",
    "pulsar://[::",
    "pulsar://a:1,b:2",
    "refused",
]
"""The errors of an authentication, or the broker's addresses; see :func:`break_it`."""


def break_it(broker: FakeBroker, who: Moody, fault: BaseException | str) -> None:
    """Make each connection attempt fail from now on, and end the connections."""
    if fault == "refused":
        broker.always("PRODUCER", refuse("ServiceNotReady"))
        broker.always("SUBSCRIBE", refuse("ServiceNotReady"))
    elif isinstance(fault, str):
        broker.always("LOOKUP", found_at(fault))
    else:
        who.fault = fault
    broker.cut()


def mend(broker: FakeBroker, who: Moody) -> None:
    """Make everything work again."""
    who.fault = None
    for kind in ("LOOKUP", "PRODUCER", "SUBSCRIBE"):
        broker.normally(kind)


def connect(broker: FakeBroker, who: Moody) -> Client:
    """Return a client."""
    return Client(broker.url, ClientOptions(authentication=who, **OPTIONS), dial=broker.dial)


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
@virtual_time
async def test_what_fails_for_a_moment_ends_nothing(
    fault: BaseException | str, caplog: pytest.LogCaptureFixture
) -> None:
    """O11: producers, consumers and dead letters keep trying, and work again when their credentials do."""
    caplog.set_level(logging.WARNING)
    broker, who = FakeBroker(), Moody()
    dead = broker.topic(f"{TOPIC}-s-DLQ")
    async with (
        connect(broker, who) as client,
        client.producer("t") as producer,
        client.subscribe("t", "s", dead_letter=DeadLetterPolicy(1), initial_position="earliest") as consumer,
    ):
        await producer.send(b"before")
        await (await consumer.receive(timeout=1)).dead_letter("the first makes the producer of dead letters")
        await producer.send(b"poison")
        await producer.send(b"good")
        poison, good = [await consumer.receive(timeout=1) for _ in range(2)]
        break_it(broker, who, fault)
        await asyncio.sleep(0.01)
        giving_up, acking = (asyncio.ensure_future(each) for each in (poison.dead_letter("bad"), good.ack()))
        sending = asyncio.ensure_future(producer.send(b"while it fails"))
        await asyncio.sleep(10)
        assert not producer.is_connected
        assert not sending.done()
        mend(broker, who)
        await asyncio.gather(sending, acking, giving_up)
        assert (await consumer.receive(timeout=1)).data == b"while it fails"
        assert len(dead.entries) == 2
        assert producer.failed_attempts > 3
        for about in ("cannot produce again yet", "cannot subscribe again yet"):
            assert sum(f"{TOPIC}: {about}: " in record.getMessage() for record in caplog.records) == 1
        assert all(record.getMessage().rstrip(": ") for record in caplog.records)


def looks_for_partitions(client: Client) -> Any:
    """Return a producer that looks for partitions."""
    return client.producer("t")


def looks_for_partitions_to_consume(client: Client) -> Any:
    """Return a consumer that looks for partitions."""
    return client.subscribe("t", "s")


def looks_for_topics(client: Client) -> Any:
    """Return a consumer of a pattern, which looks for topics."""
    return client.subscribe(re.compile(f"{TOPIC}.*"), "s")


@pytest.mark.parametrize("tells_of_topics", [False, True])
@pytest.mark.parametrize(
    "fault", [RuntimeError("vault: 503"), ClosedError("the secret store"), "http://broker"], ids=repr
)
@pytest.mark.parametrize("looking", [looks_for_partitions, looks_for_partitions_to_consume, looks_for_topics])
@virtual_time
async def test_looking_for_more_goes_on(
    looking: Callable[[Client], Any],
    fault: BaseException | str,
    tells_of_topics: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """O11: looking for partitions and topics continues too, and finds those that were created meanwhile."""
    caplog.set_level(logging.WARNING)
    broker, who = FakeBroker(), Moody()
    broker.partitions[TOPIC] = 1
    broker.tells_of_topics = tells_of_topics
    broker.topic(f"{TOPIC}-partition-0")
    async with connect(broker, who) as client, looking(client):
        break_it(broker, who, fault)
        broker.partitions[TOPIC] = 2
        broker.topic(f"{TOPIC}-partition-1")
        await asyncio.sleep(200)
        calls = len(broker.dialled)
        mend(broker, who)
        await asyncio.sleep(130)
        new = [call.body.topic for call in broker.calls if call.kind in {"PRODUCER", "SUBSCRIBE"}][-2:]
        assert f"{TOPIC}-partition-1" in new
        assert calls < 700, "it does not spin"
    told = [record.getMessage() for record in caplog.records if "cannot look for new" in record.getMessage()]
    assert len(told) <= 1


@virtual_time
async def test_a_task_that_is_ended_by_others_ends_its_owner() -> None:
    """O11: if the reconnecting task is cancelled, waiting and later calls raise and name the cause."""
    broker, who = FakeBroker(), Moody()
    async with connect(broker, who) as client, client.producer("t") as producer, client.subscribe("t", "s") as consumer:
        await producer.send(b"")
        message = await consumer.receive(timeout=1)
        receiving = asyncio.ensure_future(consumer.receive())
        break_it(broker, who, RuntimeError("vault"))
        await asyncio.sleep(0.01)
        waiting = [asyncio.ensure_future(each) for each in (producer.send(b""), producer.flush(), message.ack())]
        await asyncio.sleep(1)
        for task in asyncio.all_tasks():
            if "producing to" in task.get_name() or "subscribing to" in task.get_name():
                task.cancel()
        mend(broker, who)
        sent, flushed, _acked = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(sent, ClosedError)
        assert isinstance(sent.__cause__, asyncio.CancelledError)
        assert flushed is None
        for call in (receiving, consumer.receive(), message.ack(), producer.send(b"")):
            with pytest.raises(ClosedError):
                await call


@virtual_time
async def test_a_client_that_is_closed_under_its_users_ends_them() -> None:
    """O11: a consumer or producer that reconnects when its client closes raises, and does not wait for ever."""
    broker, who = FakeBroker(), Moody()
    client = connect(broker, who)
    producer, consumer = await client.producer("t"), await client.subscribe("t", "s")
    await client._open_context().pool.aclose()
    await asyncio.sleep(1)
    for call in (producer.send(b""), consumer.receive()):
        with pytest.raises(ClosedError):
            await call
    await client.aclose()


def migrating(call: Call) -> None:
    """Notify a consumer or producer that its topic has migrated to another cluster; do not answer its request."""
    moved = command("TOPIC_MIGRATED")
    is_consumer = call.kind == "SUBSCRIBE"
    kind = pb.CommandTopicMigrated.Consumer if is_consumer else pb.CommandTopicMigrated.Producer
    moved.topicMigrated.resource_type = kind
    moved.topicMigrated.resource_id = call.body.consumer_id if is_consumer else call.body.producer_id
    moved.topicMigrated.brokerServiceUrl = "pulsar://gone,new"
    call.link.send(moved)


@pytest.mark.parametrize("kind", ["SUBSCRIBE", "PRODUCER"])
@pytest.mark.parametrize("is_open", [True, False])
@virtual_time
async def test_a_topic_that_migrates_is_looked_up_in_the_other_cluster(kind: str, is_open: bool) -> None:
    """The client asks there, by its service URL, also if it migrates while opening, or the first cluster ends."""
    broker = FakeBroker()
    service, owner = broker.node("pulsar://new:6650"), broker.node("pulsar://newer:6650")
    broker.node("pulsar://gone:6650").kill()
    first = broker.node(broker.url)
    broker.always("LOOKUP", lambda call: found_at(first.url if call.link.node is first else owner.url)(call))
    topic = broker.topic(TOPIC)
    async with Client(broker.url, ClientOptions(**OPTIONS), dial=broker.dial) as client:

        async def opened() -> Callable[[], Awaitable[object]]:
            if kind == "PRODUCER":
                producer = await client.producer("t")
                return lambda: producer.send(b"x")
            consumer = await client.subscribe("t", "s", initial_position="earliest")

            async def receive() -> None:
                topic.publish(b"x")
                await (await consumer.receive(timeout=10)).ack()

            return receive

        if is_open:
            use = await opened()
            await use()
        answers = {first: migrating, service: refuse("ServiceNotReady"), owner: as_usual}
        broker.always(kind, lambda call: answers[call.link.node](call))
        topic.owner = owner.url
        if is_open:
            migrating(next(call for call in broker.calls if call.kind == kind))
            broker.unload(TOPIC)
        else:
            use = await opened()
        await use()
        first.kill()
        broker.cut()
        await use()
        assert broker.dialled[-1] == owner.url
