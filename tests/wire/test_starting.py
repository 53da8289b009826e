"""Programs that start before their brokers: transient errors are retried for the time of one request."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pulsar_nack import BrokerError, InvalidArgumentError
from pulsar_nack.errors import BrokerRefusedError, ConnectionLostError, RequestTimeoutError
from pulsar_nack.testing import run, virtual_time
from pulsar_nack.wire import Client, ClientOptions, TokenAuthentication
from tests.for_each import for_each
from tests.wire.fake_broker import FakeBroker, found_at, later, redirect, refuse, silence

TOPIC = "persistent://public/default/t"
SECOND = "pulsar://second:6650"


async def subscribe(client: Client, topic: Any = "t") -> None:
    """Subscribe, and close."""
    async with client.subscribe(topic, "s"):
        pass


async def produce(client: Client, topic: str = "t") -> None:
    """Send a message."""
    async with client.producer(topic) as producer:
        await producer.send(b"x")


CALLS: dict[str, Callable[[Client], Awaitable[Any]]] = {
    "subscribe": subscribe,
    "list": lambda client: subscribe(client, ["t", "parted"]),
    "pattern": lambda client: subscribe(client, re.compile("t.*")),
    "producer": produce,
    "producer of partitions": lambda client: produce(client, "parted"),
    "topics": lambda client: client.topics(),
    "partitions": lambda client: client.partitions("t"),
}


def a_broker() -> FakeBroker:
    """Return a broker with a plain and a partitioned topic."""
    broker = FakeBroker()
    broker.topic(TOPIC)
    broker.partitions["persistent://public/default/parted"] = 3
    return broker


def dialling(broker: FakeBroker, error: Exception | None, up_at: float) -> Any:
    """Fail to dial until a time, with an error or by hanging."""

    async def dial(protocol: Any, address: Any) -> None:
        if asyncio.get_running_loop().time() >= up_at:
            await broker.dial(protocol, address)
        elif error is None:
            await asyncio.get_running_loop().create_future()
        else:
            await asyncio.sleep(0.001)
            raise error

    return dial


NOT_YET = {
    "refused": ConnectionRefusedError("nobody listens"),
    "name": socket.gaierror(-2, "Name or service not known"),
    "TLS": ssl.SSLError(1, "wrong version number"),
    "reset": ConnectionResetError("reset by peer"),
    "hangs": None,
}
TROUBLES = [("subscribe", trouble) for trouble in NOT_YET] + [(call, "refused") for call in list(CALLS)[1:]]


@for_each(("call", "trouble"), TROUBLES)
def test_it_works_once_the_broker_is_there(call: str, trouble: str) -> None:
    """O13: the broker starts 5 s after the call, which then succeeds within moments."""

    async def life() -> None:
        broker = a_broker()
        options = ClientOptions(connect_timeout=2)
        async with Client(broker.url, options, dial=dialling(broker, NOT_YET[trouble], 5)) as client:
            await CALLS[call](client)
            assert 5 <= asyncio.get_running_loop().time() < 9

    run(life())


@for_each(("call", "trouble"), TROUBLES)
def test_it_ends_with_the_time_of_a_request(call: str, trouble: str) -> None:
    """O13: no broker for longer: an error says how often and how long it was tried, and the last cause."""

    async def life() -> None:
        broker = a_broker()
        loop = asyncio.get_running_loop()
        async with Client(broker.url, dial=dialling(broker, NOT_YET[trouble], 1e9)) as client:
            told = r"not connected within 10 s" if trouble == "hangs" else str(NOT_YET[trouble])
            with pytest.raises(ConnectionLostError, match=rf"{re.escape(told)} \(tried \d+ times in \d\d(\.\d)? s\)"):
                await CALLS[call](client)
            assert 27.9 <= loop.time() <= 30

    run(life())


@virtual_time
async def test_a_late_broker_is_found_and_said_to_be_awaited(caplog: pytest.LogCaptureFixture) -> None:
    """O13: it starts shortly before the timeout; one log line said that the call is retried."""
    broker = a_broker()
    async with Client(broker.url, dial=dialling(broker, ConnectionRefusedError("nobody"), 27)) as client:
        await subscribe(client)
        assert 27 <= asyncio.get_running_loop().time() < 30
    assert caplog.messages == ["pulsar://broker:6650: not reached: nobody; trying again for up to 30 s"]


@virtual_time
async def test_one_of_several_hosts_comes_up() -> None:
    """O13: all hosts are tried in turn; the error at the end names the last one."""
    broker = a_broker()
    broker.node(SECOND)
    for node in broker.nodes.values():
        node.is_down = True
    url = "pulsar://broker:6650,second:6650"
    async with Client(url, dial=broker.dial) as client:
        asyncio.get_running_loop().call_later(5, broker.nodes[SECOND].start)
        assert await client.topics() == [TOPIC]
        broker.nodes[SECOND].kill()
        with pytest.raises(ConnectionLostError, match=r"(broker|second):6650: not reached: .* \(tried \d+ times"):
            await client.topics()


@for_each("call", CALLS)
def test_what_cannot_pass_ends_at_once(call: str) -> None:
    """O13: the broker refuses us, or the certificate is not trusted, or the token cannot be read."""

    async def life(trouble: str) -> None:
        broker = a_broker()
        options, dial = ClientOptions(), broker.dial
        error: type[Exception] = BrokerError
        if trouble == "unknown":
            broker.always("CONNECT", refuse("AuthenticationError", "who are you?"))
        elif trouble == "certificate":
            untrusted = ssl.SSLCertVerificationError("self-signed")
            untrusted.verify_message = "self-signed"
            dial = dialling(broker, untrusted, 1e9)
        else:
            options, error = ClientOptions(authentication=TokenAuthentication(lambda: "")), InvalidArgumentError
        async with Client(broker.url, options, dial=dial) as client:
            with pytest.raises(error) as caught:
                await CALLS[call](client)
            assert "tried" not in str(caught.value)
            assert asyncio.get_running_loop().time() < 0.1

    for trouble in ("unknown", "certificate", "token"):
        run(life(trouble))


@pytest.mark.parametrize("code", ["AuthorizationError", "InvalidTopicName", "TopicNotFound"])
@virtual_time
async def test_a_refusal_that_cannot_pass_ends_at_once(code: str) -> None:
    """O13: a refusal of a request or of the subscription is treated the same way."""
    for kind in ("PARTITIONED_METADATA", "LOOKUP", "SUBSCRIBE"):
        broker = a_broker()
        broker.always(kind, refuse(code, "no"))
        async with Client(broker.url, dial=broker.dial) as client:
            with pytest.raises(BrokerRefusedError, match=r"subscribing to .* no$"):
                await subscribe(client)
    assert asyncio.get_running_loop().time() < 0.1


@virtual_time
async def test_the_whole_of_a_call_takes_the_time_of_one_request() -> None:
    """O13, O42: slow answers, redirects, one that never comes, and retries together take at most one timeout."""
    loop = asyncio.get_running_loop()
    broker = a_broker()
    scripts: list[dict[str, Any]] = [
        {"PARTITIONED_METADATA": later(12), "LOOKUP": later(12), "SUBSCRIBE": later(12), "PRODUCER": later(12)},
        {"LOOKUP": later(2, found_at(SECOND)), "SUBSCRIBE": silence, "PRODUCER": silence},
        {"LOOKUP": later(4, redirect(SECOND))},
        {"PARTITIONED_METADATA": silence},
        {"LOOKUP": refuse("ServiceNotReady", "not yet")},
    ]
    for script in scripts:
        broker.node(SECOND)
        for kind, answer in script.items():
            broker.always(kind, answer)
        for call in (subscribe, produce):
            async with Client(broker.url, dial=broker.dial) as client:
                began_at = loop.time()
                with pytest.raises(
                    (RequestTimeoutError, BrokerRefusedError), match=r"(subscribing|producing) to .*tried"
                ):
                    await call(client)
                assert 27.9 < loop.time() - began_at <= 30.001
        for kind in script:
            broker.normally(kind)


@virtual_time
async def test_very_many_topics_have_more_time() -> None:
    """O13: each 32 topics have the time of a request, so that many topics succeed."""
    broker = FakeBroker()
    for number in range(70):
        broker.topic(f"{TOPIC}{number}")
    broker.always("SUBSCRIBE", later(15))
    async with Client(broker.url, dial=broker.dial) as client:
        await subscribe(client, re.compile("t.*"))
        assert 45 < asyncio.get_running_loop().time() < 60
