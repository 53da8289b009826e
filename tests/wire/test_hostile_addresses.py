"""TLS is a property of the client: no address from a broker removes it, and no foreign address is dialled."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest

from pulsar_nack import BrokerError
from pulsar_nack.testing import run
from pulsar_nack.wire import TokenAuthentication
from tests.for_each import for_each
from tests.wire import hostile
from tests.wire.fake_broker import Answer, Call, FakeBroker, as_usual
from tests.wire.frames import command
from tests.wire.hostile import TOKEN, assert_fit, client_of

TOPIC: Final = "persistent://public/default/orders"
SECURE: Final = "pulsar+ssl://broker:6651"
EVIL: Final = "pulsar://evil:6650"


def ends(kind: str, part: str, **fields: Any) -> Answer:
    """Do what a broker does, then close the handler, or say that its topic moved, with an address without TLS."""

    def answer(call: Call) -> None:
        as_usual(call)
        closing = command(kind)
        getattr(closing, part).MergeFrom(type(getattr(closing, part))(**fields))
        call.link.send(closing)

    return answer


LOOKUPS: Final[list[dict[str, Any]]] = [
    {"response": 1, "authoritative": True},
    {"response": 1, "proxy_through_service_url": True},
    {"response": 0},
]


@for_each("fields", LOOKUPS)
def test_a_lookup_does_not_take_tls_off(fields: dict[str, Any]) -> None:
    """O31: a lookup's answer, a proxied one, or a redirect to an address without TLS is refused, and not dialled."""

    async def test() -> None:
        broker = FakeBroker(SECURE)
        broker.node(EVIL)
        evil = {"brokerServiceUrl": EVIL, "brokerServiceUrlTls": EVIL}
        broker.always("LOOKUP", hostile.answers("LOOKUP_RESPONSE", **evil, **fields))
        async with client_of(broker, authentication=TokenAuthentication(TOKEN)) as client:
            for making in (lambda: client.subscribe("orders", "s"), lambda: client.producer("orders")):
                with pytest.raises(BrokerError, match=f"{re.escape(EVIL)}, which is without TLS"):
                    await making()
        assert set(broker.dialled) == {SECURE}

    run(test())


MOVES: Final[list[tuple[str, str, str, dict[str, Any]]]] = [
    ("SUBSCRIBE", "CLOSE_CONSUMER", "close_consumer", {"consumer_id": 1, "request_id": 0}),
    ("SUBSCRIBE", "TOPIC_MIGRATED", "topicMigrated", {"resource_id": 1, "resource_type": 1}),
    ("PRODUCER", "CLOSE_PRODUCER", "close_producer", {"producer_id": 1, "request_id": 0}),
    ("PRODUCER", "TOPIC_MIGRATED", "topicMigrated", {"resource_id": 1, "resource_type": 0}),
]


@for_each(("made", "kind", "part", "fields"), MOVES)
def test_a_move_does_not_take_tls_off(made: str, kind: str, part: str, fields: dict[str, Any]) -> None:
    """O31: an assigned broker or another cluster without TLS is not dialled: a lookup follows."""

    async def test() -> None:
        broker = FakeBroker(SECURE)
        broker.node(EVIL)
        url = "brokerServiceUrlTls" if kind == "TOPIC_MIGRATED" else "assignedBrokerServiceUrlTls"
        broker.next(made, ends(kind, part, **{url: EVIL}, **fields))
        async with (
            client_of(broker, authentication=TokenAuthentication(TOKEN)) as client,
            client.subscribe("orders", "s", initial_position="earliest") as consumer,
        ):
            if kind == "TOPIC_MIGRATED" and made == "SUBSCRIBE":
                broker.unload(TOPIC)
            async with client.producer("orders") as producer:
                await producer.send(b"x")
                assert (await consumer.receive(timeout=10)).data == b"x"
        assert set(broker.dialled) == {SECURE}

    run(test())


@for_each("url", [SECURE, "pulsar://h\x1b[31m:1", "http://evil", "", "pulsar://u:p@evil", f"pulsar://{'h' * 4_000}:1"])
def test_addresses_that_are_none(url: str) -> None:
    """O31: no address of another kind than the client's is dialled; the error is the broker's, short and printable."""

    async def test() -> None:
        broker = FakeBroker()
        broker.always("LOOKUP", hostile.answers("LOOKUP_RESPONSE", response=1, brokerServiceUrl=url))
        async with client_of(broker) as client:
            with pytest.raises(BrokerError) as caught:
                await client.subscribe("orders", "s")
        assert_fit(str(caught.value))
        assert set(broker.dialled) == {broker.url}

    run(test())
