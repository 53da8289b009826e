"""Fields of messages on a real broker, with both clients: no value, producer name and schema version."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pulsar
import pytest

import pulsar_nack
from pulsar_nack import Consumer, DeadLetterPolicy
from pulsar_nack.errors import UndecodableMessageError
from pulsar_nack.wire import Client, SchemaInfo
from tests.broker._admin import Admin
from tests.broker.test_wire_topics_on_broker import send_encrypted
from tests.consumer.official import is_over_wire, official_client, take

NAME: Final = {"name": "name", "type": "string"}
COUNT: Final = {"name": "count", "type": "int", "default": 0}
VERSIONS: Final = [
    SchemaInfo("avro", json.dumps({"type": "record", "name": "Order", "fields": fields}).encode(), "Order")
    for fields in ([NAME], [COUNT, NAME])
]
GIVES_UP: Final = DeadLetterPolicy(1, initial_subscription="repair")

pytestmark = pytest.mark.usefixtures("transport")


@pytest.fixture
async def client(service_url: str) -> AsyncIterator[Client]:
    """A native client."""
    async with pulsar_nack.connect(service_url) as native:
        yield native


@asynccontextmanager
async def consuming(client: Client, url: str, topic: str, **settings: Any) -> AsyncIterator[Consumer]:
    """Open a consumer on ``sub`` from the first message on, with the client under test."""
    settings.setdefault("dead_letter", GIVES_UP)
    if is_over_wire():
        settings.pop("crypto_failure_action", None)
        async with client.subscribe(topic, "sub", initial_position="earliest", **settings) as consumer:
            yield consumer
    else:
        settings["initial_position"] = pulsar.InitialPosition.Earliest
        async with official_client(url) as official, pulsar_nack.subscribe(official, topic, "sub", **settings) as made:
            yield made


@pytest.fixture
def enforcing(admin: Admin) -> Iterator[str]:
    """Return a topic in a namespace that enforces schemas."""
    namespace = f"public/schemas-{uuid.uuid4().hex[:8]}"
    admin.request("PUT", f"namespaces/{namespace}", {"replication_clusters": ["standalone"]})
    admin.request("POST", f"namespaces/{namespace}/schemaValidationEnforced", body=True)
    topic = f"persistent://{namespace}/orders"
    yield topic
    for each in (topic, f"{topic}-sub-DLQ"):
        admin.delete(each)
    admin.request("DELETE", f"namespaces/{namespace}")


@pytest.mark.parametrize("is_batch", [False, True], ids=["alone", "batch"])
async def test_null_differs_from_empty(client: Client, service_url: str, topic: str, is_batch: bool) -> None:
    """O14, O57: a message without a value differs from an empty one, as a dead letter too."""
    expected = [None, b"", b"x"]
    async with client.producer(topic, batching=is_batch, batch_delay=0.1) as producer:
        await asyncio.gather(*(producer.send(data, key="k") for data in expected))
    async with consuming(client, service_url, topic) as consumer:
        messages = await take(consumer, 3)
        assert [message.data for message in messages] == expected
        assert [message.value() for message in messages] == expected
        for message in messages:
            await message.dead_letter("why")
    async with client.subscribe(f"{topic}-sub-DLQ", "repair") as repair:
        letters = await take(repair, 3)
        assert [letter.data for letter in letters] == expected
        assert [letter.key for letter in letters] == ["k"] * 3


async def test_versions_of_a_schema_differ(client: Client, service_url: str, enforcing: str) -> None:
    """O15, O57: messages name producer and schema version; where schemas are enforced dead letters keep them."""
    for number, schema in enumerate([*VERSIONS, VERSIONS[0]]):
        async with client.producer(enforcing, name=f"shop-{number}", schema_info=schema) as producer:
            await producer.send(b"%d" % number, sequence_id=10 + number)
    async with consuming(client, service_url, enforcing) as consumer:
        messages = await take(consumer, 3)
        assert [message.producer_name for message in messages] == ["shop-0", "shop-1", "shop-2"]
        assert [message.sequence_id for message in messages] == ([10, 11, 12] if is_over_wire() else [None] * 3)
        versions = [message.schema_version for message in messages]
        assert versions[0] == versions[2] != versions[1]
        assert [await _definition(client, enforcing, each) for each in versions[:2]] == _definitions()
        assert not any(message.is_replicated for message in messages)
        for message in messages:
            await message.dead_letter("why")
        assert consumer.statistics().dead_letter_failures == 0
    dead = f"{enforcing}-sub-DLQ"
    async with client.subscribe(dead, "repair") as repair:
        letters = sorted(await take(repair, 3), key=lambda letter: letter.data)
        found = [await _definition(client, dead, letter.schema_version) for letter in letters]
        assert found == [*_definitions(), _definitions()[0]]


async def _definition(client: Client, topic: str, version: bytes | None) -> Any:
    return json.loads((await client.schema(topic, version)).data)


def _definitions() -> list[Any]:
    return [json.loads(each.data) for each in VERSIONS]


async def test_what_is_encrypted_says_so(client: Client, service_url: str, topic: str) -> None:
    """O57: without a key an encrypted message is delivered with its error, and not taken for undecodable."""
    await send_encrypted(client, topic)
    action = pulsar.ConsumerCryptoFailureAction.CONSUME
    async with consuming(client, service_url, topic, crypto_failure_action=action) as consumer:
        (message,) = await take(consumer, 1)
        assert isinstance(message.error, UndecodableMessageError)
        with pytest.raises(UndecodableMessageError, match="encrypted with the key key"):
            message.value()
        await message.ack()
        assert consumer.statistics().dead_lettered == 0
