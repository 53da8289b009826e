"""Dead letters of the native client on a scripted broker: their content, and publishing them during faults."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

import pulsar_nack
from pulsar_nack import AlreadySettledError, Consumer, DeadLetterPolicy, InvalidArgumentError, MessageId
from pulsar_nack.errors import BrokerRefusedError
from pulsar_nack.testing import virtual_time
from pulsar_nack.wire import Client, SchemaInfo
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from tests.consumer.consuming import is_quiet
from tests.for_each import for_each
from tests.wire.fake_broker import FakeBroker, carried_out_then_cut, cut, later, refuse, silence
from tests.wire.letters import DEAD, RETRY, TOPIC, consuming, properties, stored, unacked
from tests.wire.using import broker_with, numbers


def giving_up(broker: FakeBroker, **settings: Any) -> AbstractAsyncContextManager[Consumer]:
    """A consumer that dead-letters after the first redelivery."""
    policy = DeadLetterPolicy(1, initial_subscription="repair")
    return consuming(broker, **{"retry_topic": None, "dead_letter": policy, **settings})


@virtual_time
async def test_all_that_a_message_has_is_there() -> None:
    """U4: a key of bytes, ordering key, properties and event time are those of the message, byte for byte."""
    broker = FakeBroker()
    ordering_key = b"\xff\x00"
    broker.topic(TOPIC).publish(
        b"bad",
        properties={"colour": "red"},
        partition_key="AP8Q",
        partition_key_b64_encoded=True,
        ordering_key=ordering_key,
        event_time=5,
    )
    async with giving_up(broker) as consumer:
        await (await consumer.receive(timeout=1)).dead_letter("why")
        assert unacked(broker, TOPIC) == 0
    ((metadata, payload),) = stored(broker, DEAD)
    assert payload == b"bad"
    assert (metadata.partition_key, metadata.partition_key_b64_encoded) == ("AP8Q", True)
    assert (metadata.ordering_key, metadata.event_time) == (ordering_key, 5)
    assert properties(metadata) == {
        "colour": "red",
        "REAL_TOPIC": TOPIC,
        "REAL_SUBSCRIPTION": "billing",
        "ORIGIN_MESSAGE_ID": "7:0:-1",
        "ORIGIN_MESSAGE_IDY_TIME": "7:0:-1",
        "PULSAR_NACK_ATTEMPTS": "1",
        "PULSAR_NACK_REASON": "why",
    }
    (made,) = broker.commands("PRODUCER")
    assert (made.topic, made.initial_subscription_name) == (DEAD, "repair")


@pytest.mark.parametrize("kind", ["shared", "exclusive", "failover"])
@virtual_time
async def test_a_retry_that_waits_when_the_connection_breaks(kind: str) -> None:
    """U6: a redelivery that no call has received when the connection breaks comes again as the same attempt."""
    broker = broker_with(b"0", b"1", topic=TOPIC)
    async with giving_up(broker, consumer_type=kind, redelivery="local") as consumer:
        for message in [await consumer.receive(timeout=1) for _ in range(2)]:
            await message.nack(1)
        await asyncio.sleep(2)
        assert consumer.statistics().ready == 2
        broker.cut()
        await asyncio.sleep(5)
        again = [await consumer.receive(timeout=5) for _ in range(2)]
        assert sorted((message.data, message.attempt) for message in again) == [(b"0", 2), (b"1", 2)]
        await consumer.acknowledge(again)
        assert consumer.statistics().dead_lettered == unacked(broker, TOPIC) == 0


@virtual_time
async def test_one_producer_made_when_it_is_needed() -> None:
    """One producer, opened for the first dead letter, publishes all of a topic, and closes with the consumer."""
    broker = broker_with(*numbers(50), topic=TOPIC)
    async with giving_up(broker) as consumer:
        messages = [await consumer.receive(timeout=1) for _ in range(50)]
        assert not broker.commands("PRODUCER")
        await asyncio.gather(*(message.dead_letter("why") for message in messages))
        assert len(broker.commands("PRODUCER")) == 1
        await consumer.aclose()
        assert len(broker.commands("CLOSE_PRODUCER")) == 1
    assert sorted(payload for _, payload in stored(broker, DEAD)) == sorted(b"%d" % number for number in range(50))


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("PRODUCER", refuse("ServiceNotReady")),
        ("PRODUCER", refuse("AuthorizationError")),
        ("PRODUCER", cut),
        ("SEND", cut),
        ("SEND", carried_out_then_cut),
        ("SEND", silence),
        ("SEND", refuse("NotAllowedError")),
        ("ACK", cut),
        ("ACK", carried_out_then_cut),
        ("ACK", refuse("UnknownError")),
        ("CLOSE_PRODUCER", silence),
    ],
)
@pytest.mark.parametrize("topic", [DEAD, RETRY])
@virtual_time
async def test_trouble(topic: str, kind: str, answer: Any) -> None:
    """U15: with any fault at any step, the dead letter is stored in the end, and then the message acknowledged."""
    broker = broker_with(b"bad", topic=TOPIC)
    async with consuming(broker, dead_letter=DeadLetterPolicy(1)) as consumer:
        message = await consumer.receive(timeout=1)
        broker.next(kind, answer)
        await (message.dead_letter("why") if topic == DEAD else message.reconsume_later(5))
        assert unacked(broker, TOPIC) == 0
        seen: set[MessageId] = set()
        while len(seen) < len(stored(broker, RETRY)):
            again = await consumer.receive(timeout=60)
            assert again.attempt == 2
            seen.add(again.id)
            await again.ack()
        assert await is_quiet(consumer)
    assert unacked(broker, RETRY) == 0
    assert {payload for _, payload in stored(broker, topic)} == {b"bad"}


@pytest.mark.parametrize("topic", [DEAD, RETRY])
@virtual_time
async def test_nothing_is_acknowledged_before_the_receipt(topic: str) -> None:
    """U15: while the receipt is late the message stays unacknowledged; a reconnect delivers it to nobody."""
    broker = broker_with(b"bad", topic=TOPIC)
    async with consuming(broker, dead_letter=DeadLetterPolicy(1)) as consumer:
        message = await consumer.receive(timeout=1)
        broker.next("SEND", later(10))
        call = asyncio.create_task(message.dead_letter("why") if topic == DEAD else message.reconsume_later(3600))
        await asyncio.sleep(5)
        assert (call.done(), unacked(broker, TOPIC)) == (False, 1)
        for verb in (message.ack, message.nack):
            with pytest.raises(AlreadySettledError, match="sent to the"):
                await verb()
        broker.cut()
        call.cancel()  # it continues
        assert await is_quiet(consumer)
        assert unacked(broker, TOPIC) == 0
    assert {payload for _, payload in stored(broker, topic)} == {b"bad"}


@for_each("is_batch", [False, True])
@virtual_time
async def test_null_differs_from_empty(is_batch: bool) -> None:
    """O14: a message without a value has None as its data, in batches too, and so does its dead letter."""
    broker = FakeBroker()
    async with giving_up(broker) as consumer, Client(broker.url, dial=broker.dial) as client:
        async with client.producer(TOPIC, batching=is_batch) as producer:
            await asyncio.gather(*(producer.send(data, key="k") for data in (None, b"", b"x")))
        messages = [await consumer.receive(timeout=1) for _ in range(3)]
        assert [message.data for message in messages] == [None, b"", b"x"]
        assert [message.value() for message in messages] == [None, b"", b"x"]
        assert "attempt 1, null>" in repr(messages[0])
        for message in messages:
            await message.dead_letter("why")
        assert [(about.null_value, payload) for about, payload in stored(broker, DEAD)] == [
            (True, b""),
            (False, b""),
            (False, b"x"),
        ]
        async with client.subscribe(DEAD, "repair", initial_position="earliest") as repair:
            assert [(await repair.receive(timeout=1)).data for _ in range(3)] == [None, b"", b"x"]


@virtual_time
async def test_dead_letters_have_the_schema_of_their_messages() -> None:
    """O15: one version after another; a broker that enforces schemas accepts them, and reports each one's version."""
    broker = FakeBroker()
    broker.enforces_schemas = True
    schemas = [SchemaInfo("avro", b"first", "Order"), SchemaInfo("avro", b"second", "Order", {"a": "b"})]
    broker.topic(DEAD).schemas.append(b"")  # another producer's, so that version numbers differ
    async with giving_up(broker) as consumer, Client(broker.url, dial=broker.dial) as client:
        for schema in (*schemas, schemas[0]):
            async with client.producer(TOPIC, schema_info=schema, name="shop") as producer:
                await producer.send(b"x")
        messages = [await consumer.receive(timeout=1) for _ in range(3)]
        versions = [message.schema_version for message in messages]
        assert versions == [number.to_bytes(8, "big") for number in (0, 1, 0)]
        assert [message.producer_name for message in messages] == ["shop"] * 3
        assert [await client.schema(message.topic, message.schema_version) for message in messages[:2]] == schemas
        with pytest.raises(BrokerRefusedError, match="TopicNotFound"):
            await client.schema(TOPIC, b"\x00" * 7 + b"\x09")
        with pytest.raises(InvalidArgumentError, match=r"^version: .* got 9$"):
            await client.schema(TOPIC, 9)  # type: ignore[arg-type]
        for message in messages:
            await message.dead_letter("why")
        assert [about.schema_version[-1] for about, _ in stored(broker, DEAD)] == [1, 2, 1]
        assert [await client.schema(DEAD, about.schema_version) for about, _ in stored(broker, DEAD)][:2] == schemas
        producers = [each for each in broker.commands("PRODUCER") if each.topic == DEAD]
        assert len(producers) == 2
        assert unacked(broker, TOPIC) == 0


@virtual_time
async def test_a_schema_that_the_broker_does_not_tell(caplog: pytest.LogCaptureFixture) -> None:
    """O15: without the schema the dead letter is published with a warning; transient errors are retried."""
    broker = FakeBroker()
    broker.topic(TOPIC).publish(b"x", schema_version=b"\x05")
    broker.next("GET_SCHEMA", refuse("ServiceNotReady"))
    async with giving_up(broker) as consumer:
        await (await consumer.receive(timeout=1)).dead_letter("why")
        assert consumer.statistics().dead_letter_failures == 1
    ((about, payload),) = stored(broker, DEAD)
    assert (about.HasField("schema_version"), payload) == (False, b"x")
    assert sum("without their schema, version 05" in record.message for record in caplog.records) == 1


@virtual_time
async def test_what_is_encrypted_goes_there_as_it_is_stored() -> None:
    """O12: an encrypted message is dead-lettered only when nacked: as stored, so that a reader with the key can."""
    broker = FakeBroker()
    topic = broker.topic(TOPIC)
    keys = [pb.EncryptionKeys(key="k", value=b"v")]
    batched = topic.publish_batch([b"0", b"1", b"2"], encryption_keys=keys)
    lone = topic.publish(b"?", properties={"colour": "red"}, encryption_keys=keys)
    topic.publish(b"readable")
    async with giving_up(broker) as consumer:
        messages = [await consumer.receive(timeout=1) for _ in range(3)]
        assert [str(message.error) for message in messages[:2]] == ["payload: encrypted with the key k"] * 2
        assert messages[2].data == b"readable"
        assert await is_quiet(consumer)
        assert consumer.statistics().dead_lettered == 0
        for message in messages[:2]:
            await message.dead_letter("no key")
        await messages[2].ack()
        assert unacked(broker, TOPIC) == 0
    (about_batch, batch), (about_lone, alone) = stored(broker, DEAD)
    assert (batch, alone) == (batched.rest, lone.rest)
    assert properties(about_lone)["colour"] == "red"
    reasons = [properties(about)["PULSAR_NACK_REASON"] for about in (about_batch, about_lone)]
    assert reasons == ["no key"] * 2


@virtual_time
async def test_the_connection_goes_on_without_the_setting() -> None:
    """Without the setting an encrypted message is delivered with its error; neither way breaks the connection."""
    broker = FakeBroker()
    broker.topic(TOPIC).publish(b"?", encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")])
    async with giving_up(broker, dead_letter=None) as consumer:
        message = await consumer.receive(timeout=1)
        assert "encrypted" in str(message.error)
        await message.ack()
        assert broker.dialled == [broker.url]


@virtual_time
async def test_partitions_have_one_topic_for_their_dead_letters() -> None:
    """U15: dead letters of all partitions go to one topic, named after the partitioned topic."""
    broker = FakeBroker()
    broker.partitions[TOPIC] = 2
    for partition in range(2):
        broker.topic(f"{TOPIC}-partition-{partition}").publish(b"%d" % partition)
    async with giving_up(broker) as consumer:
        for _ in range(2):
            await (await consumer.receive(timeout=1)).dead_letter("why")
    assert sorted(payload for _, payload in stored(broker, DEAD)) == [b"0", b"1"]
    origins = [properties(about) for about, _ in stored(broker, DEAD)]
    assert {each["REAL_TOPIC"] for each in origins} == {TOPIC}
    assert {each["ORIGIN_MESSAGE_ID"] for each in origins} == {"7:0:0", "7:0:1"}


@virtual_time
async def test_a_client_that_is_closed_closes_with_what_is_under_way() -> None:
    """A closing client lets its consumers finish publishing dead letters, as closing consumers do."""
    broker = broker_with(b"bad", topic=TOPIC)
    async with Client(broker.url, dial=broker.dial) as client:
        consumer = await client.subscribe(
            "orders", "billing", initial_position="earliest", dead_letter=DeadLetterPolicy(1)
        )
        message = await consumer.receive(timeout=1)
        broker.next("SEND", later(1))
        call = asyncio.create_task(message.dead_letter("why"))
        await asyncio.sleep(0.1)
        await client.aclose()
        await call
    assert [payload for _, payload in stored(broker, DEAD)] == [b"bad"]
    assert unacked(broker, TOPIC) == 0


@virtual_time
async def test_names_of_topics_are_checked_at_once() -> None:
    """N24: an invalid topic name or setting is refused when subscribing, without a broker."""
    broker = FakeBroker()
    async with Client(broker.url, dial=broker.dial) as client:
        with pytest.raises(InvalidArgumentError, match="topic"):
            client.subscribe("orders", "billing", dead_letter=DeadLetterPolicy(1, "a/b"))
        with pytest.raises(InvalidArgumentError, match="dead_letter"):
            client.subscribe("orders", "billing", dead_letter=1)  # type: ignore[arg-type]
        assert not broker.dialled


@virtual_time
async def test_a_topic_that_takes_nothing_for_a_while() -> None:
    """While the dead-letter topic is terminated nothing is stored; a new producer works once it is replaced."""
    broker = FakeBroker()
    for payload in (b"first", b"second"):
        broker.topic(TOPIC).publish(payload)
    async with giving_up(broker) as consumer:
        await (await consumer.receive(timeout=1)).dead_letter("why")
        broker.topic(DEAD).is_terminated = True
        broker.cut()  # a terminated topic refuses the producer for good when it reconnects
        message = await consumer.receive(timeout=1)
        call = asyncio.create_task(message.dead_letter("why"))
        assert await is_quiet(consumer)
        assert (call.done(), unacked(broker, TOPIC)) == (False, 1)
        assert consumer.statistics().dead_letter_failures > 1
        before = len(broker.commands("PRODUCER"))
        broker.topic(DEAD).is_terminated = False
        await call
        assert unacked(broker, TOPIC) == 0
        assert len(broker.commands("PRODUCER")) > before
    assert [payload for _, payload in stored(broker, DEAD)] == [b"first", b"second"]


@virtual_time
async def test_cancelled_while_the_producer_is_made() -> None:
    """A consumer that closes while its first producer opens ends in time, and leaves no task."""
    broker = broker_with(b"bad", topic=TOPIC)
    async with giving_up(broker) as consumer:
        message = await consumer.receive(timeout=1)
        broker.always("PRODUCER", silence)
        call = asyncio.create_task(message.dead_letter("why"))
        await asyncio.sleep(0.1)
        before = asyncio.get_running_loop().time()
        await consumer.aclose()
        assert asyncio.get_running_loop().time() - before < 10
        with pytest.raises(pulsar_nack.ClosedError):
            await call
    assert not stored(broker, DEAD)
    assert [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


@for_each(
    ("field", "wrong"),
    [
        ("type", {"type": "avor"}),
        ("type", {"type": True}),
        ("type", {"type": []}),
        ("type", {"type": 1 << 31}),
        ("data", {"type": "avro", "data": "{}"}),
        ("name", {"type": 4, "name": 3}),
        ("name", {"type": 4, "name": "\ud800"}),
        ("properties", {"type": 4, "properties": {"a": 1}}),
        ("properties", {"type": 4, "properties": ["a"]}),
    ],
)
def test_schemas_that_are_none(field: str, wrong: dict[str, Any]) -> None:
    """Invalid schemas are named; unknown types are named by their numbers."""
    with pytest.raises(InvalidArgumentError, match=f"^{field}: "):
        SchemaInfo(**wrong)
    assert SchemaInfo.of(SchemaInfo(99, b"x").to_protobuf()) == SchemaInfo(99, b"x")
