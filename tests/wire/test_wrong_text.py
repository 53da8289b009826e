"""Texts of a broker or a publisher that are not UTF-8."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import pytest
from google.protobuf.descriptor import FieldDescriptor

from pulsar_nack import BrokerError
from pulsar_nack.errors import ProtocolError, UndecodableMessageError
from pulsar_nack.testing import run, virtual_time
from pulsar_nack.wire import Client
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from pulsar_nack.wire._protocol._batches import encode_batch
from pulsar_nack.wire._protocol._compression import compress
from pulsar_nack.wire._protocol._frames import FrameDecoder
from tests.for_each import for_each
from tests.wire import hostile
from tests.wire.fake_broker import Call, FakeBroker
from tests.wire.frames import command, frame, message_rest
from tests.wire.hostile import assert_fit, client_of
from tests.wire.using import subscribed, take

TOPIC: Final = "persistent://public/default/t"
MARK: Final = "SECRET-mark"
WRONG: Final = b"SECRET-\xffark"


# --- commands --------------------------------------------------------------------------------------------------------


def _fill(message: Any, path: list[FieldDescriptor]) -> None:
    """Set the text at the end of a path of fields, and every field required on the way."""
    for field in message.DESCRIPTOR.fields:
        is_on_the_way = bool(path) and field.name == path[0].name
        if not is_on_the_way and not field.is_required:
            continue
        if field.message_type is not None:
            place = getattr(message, field.name)
            part = place.add() if hasattr(place, "add") else place
            part.SetInParent()
            _fill(part, path[1:] if is_on_the_way else [])
        elif is_on_the_way and hasattr(getattr(message, field.name), "append"):
            getattr(message, field.name).append(MARK)
        elif field.type == FieldDescriptor.TYPE_STRING:
            setattr(message, field.name, MARK if is_on_the_way else "good")
        elif field.type == FieldDescriptor.TYPE_BYTES:
            setattr(message, field.name, b"\xff")
        else:
            setattr(message, field.name, field.default_value or (1 if field.enum_type is None else 0))


def _texts(kind: Any, above: tuple[Any, ...] = ()) -> Iterator[list[FieldDescriptor]]:
    for field in kind.fields:
        if field.type == FieldDescriptor.TYPE_STRING:
            yield [*above, field]
        elif field.message_type is not None and field.message_type not in {
            kind,
            *(each.message_type for each in above),
        }:
            yield from _texts(field.message_type, (*above, field))


PATHS: Final = {".".join(field.name for field in path): path for path in _texts(pb.BaseCommand.DESCRIPTOR)}


@for_each("path", list(PATHS))
def test_a_text_of_a_command(path: str) -> None:
    """Each text field of each command, nested ones too: an error names it, and does not quote it."""
    body, *_ = PATHS[path]
    made = pb.BaseCommand()
    _fill(made, PATHS[path])
    made.type = body.number  # type: ignore[assignment]
    data = frame(made)
    good, wrong = FrameDecoder().feed(data), data.replace(MARK.encode(), WRONG)
    assert (len(good), wrong != data) == (1, True)
    with pytest.raises(ProtocolError, match=rf"{path} is not UTF-8: byte 0xff at 7 of 11") as caught:
        FrameDecoder().feed(wrong)
    assert_fit(str(caught.value))
    assert "SECRET" not in f"{caught.value!r}{caught.value.__cause__}"


def _wrong(kind: str, **fields: Any) -> Callable[[Call], None]:
    """Answer with a command in which the marked text is not UTF-8."""

    def answer(call: Call) -> None:
        made = command(kind)
        body = pb.BaseCommand.DESCRIPTOR.fields_by_number[made.type].name
        getattr(made, body).MergeFrom(type(getattr(made, body))(request_id=call.request_id, **fields))
        call.link.transport.deliver(frame(made).replace(MARK.encode(), WRONG))

    return answer


ANSWERS: Final[dict[str, tuple[str, Callable[[Call], None], Callable[[Client], Awaitable[Any]]]]] = {
    "error.message": (
        "SUBSCRIBE",
        _wrong("ERROR", error=3, message=MARK),
        lambda client: client.subscribe("t", "s").__aenter__(),
    ),
    "lookupTopicResponse.brokerServiceUrl": (
        "LOOKUP",
        _wrong("LOOKUP_RESPONSE", response=1, brokerServiceUrl=MARK),
        lambda client: client.producer("t").__aenter__(),
    ),
    "producer_success.producer_name": (
        "PRODUCER",
        _wrong("PRODUCER_SUCCESS", producer_name=MARK),
        lambda client: client.producer("t").__aenter__(),
    ),
    "getTopicsOfNamespaceResponse.topics": (
        "GET_TOPICS_OF_NAMESPACE",
        _wrong("GET_TOPICS_OF_NAMESPACE_RESPONSE", topics=["persistent://public/default/a", MARK]),
        lambda client: client.topics(),
    ),
    "getSchemaResponse.schema.name": (
        "GET_SCHEMA",
        _wrong("GET_SCHEMA_RESPONSE", schema=pb.Schema(name=MARK, schema_data=b"", type=2)),
        lambda client: client.schema("t"),
    ),
    "getSchemaResponse.error_message": (
        "GET_SCHEMA",
        _wrong("GET_SCHEMA_RESPONSE", error_code=11, error_message=MARK),
        lambda client: client.schema("t"),
    ),
}


@for_each("path", list(ANSWERS))
def test_a_text_of_an_answer(path: str) -> None:
    """The call fails with a broker error that names the field; the connection is closed and counted like any other."""
    kind, answer, call = ANSWERS[path]

    async def test() -> None:
        broker = FakeBroker()
        broker.always(kind, answer)
        async with client_of(broker) as client:
            with pytest.raises(BrokerError, match=rf"{path} is not UTF-8") as caught:
                await call(client)
            assert_fit(str(caught.value))
            assert "SECRET" not in str(caught.value)
            assert client.statistics().protocol_errors >= 1

    run(test())


EVENTS: Final = {
    "close_consumer.assignedBrokerServiceUrl": ("CLOSE_CONSUMER", {"consumer_id": 1, "request_id": 1}),
    "topicMigrated.brokerServiceUrl": ("TOPIC_MIGRATED", {"resource_id": 1, "resource_type": 1}),
}


@for_each("path", list(EVENTS))
def test_a_text_of_an_event(path: str) -> None:
    """It ends the connection; the consumer subscribes again and continues."""

    async def test() -> None:
        broker = FakeBroker()
        async with client_of(broker) as client, client.subscribe("t", "s") as consumer:
            kind, fields = EVENTS[path]
            body, text = path.split(".")
            made = command(kind)
            for name, value in {**fields, text: MARK}.items():
                setattr(getattr(made, body), name, value)
            broker.links[0].transport.deliver(frame(made).replace(MARK.encode(), WRONG))
            broker.topic(TOPIC).publish(b"after")
            assert (await consumer.receive(timeout=60)).data == b"after"
            assert client.statistics().protocol_errors == 1

    run(test())


# --- messages --------------------------------------------------------------------------------------------------------


def _checked(metadata: pb.MessageMetadata, payload: bytes = b"x") -> bytes:
    """Return an entry with the marked text in its metadata replaced."""
    return hostile.with_metadata(metadata.SerializeToString().replace(MARK.encode(), WRONG), payload)


PROPERTY: Final = {"properties": [pb.KeyValue(key="good", value="good"), pb.KeyValue(key="name", value=MARK)]}
ENTRIES: Final = {
    "properties.value": _checked(hostile.about(**PROPERTY)),
    "properties.key": _checked(hostile.about(properties=[pb.KeyValue(key=MARK, value="value")])),
    "partition_key": _checked(hostile.about(partition_key=MARK)),
    "producer_name": _checked(hostile.about(producer_name=MARK)),
    "replicated_from": _checked(hostile.about(replicated_from=MARK)),
    "packed properties.value": _checked(
        hostile.about(compression=pb.ZLIB, uncompressed_size=1, **PROPERTY), compress(pb.ZLIB, b"x")
    ),
}


@for_each("name", list(ENTRIES))
def test_a_text_of_a_message(name: str) -> None:
    """The message is delivered with its error and its stored bytes; those around it arrive, and nothing is lost."""

    async def test() -> None:
        broker = FakeBroker()
        topic = broker.topic(TOPIC)
        async with subscribed(broker, receiver_queue_size=2) as consumer:
            for _ in range(5):  # more than the queue has, so that a lost permit shows
                topic.publish(b"before")
                topic.append(ENTRIES[name])
            topic.publish(b"after")
            for _ in range(5):
                assert (await consumer.receive(timeout=10)).data == b"before"
                message = await consumer.receive(timeout=10)
                _assert_unreadable(message, name.rpartition(" ")[2])
                assert message._delivery.data == ENTRIES[name]
                await message.ack()
            assert (await consumer.receive(timeout=10)).data == b"after"

    run(test())


def _assert_unreadable(message: Any, name: str) -> None:
    assert isinstance(message.error, UndecodableMessageError)
    assert f"{name} is not UTF-8: byte 0xff at 7 of 11" in str(message.error)
    assert_fit(str(message.error))
    with pytest.raises(UndecodableMessageError):
        message.data  # noqa: B018
    for text in (message.key or "", *message.properties, *message.properties.values()):
        assert isinstance(text, str)


@virtual_time
async def test_a_text_of_a_message_in_a_batch() -> None:
    """Only that message is unreadable; later members of the batch are not."""
    members = [pb.SingleMessageMetadata(partition_key=key) for key in ("a", MARK, "c")]
    payload = encode_batch((each, b"%d" % at) for at, each in enumerate(members)).replace(MARK.encode(), WRONG)
    broker = FakeBroker()
    topic = broker.topic(TOPIC)
    topic.append(message_rest(hostile.about(num_messages_in_batch=3), payload), messages=3)
    async with subscribed(broker) as consumer:
        first, second, third = await take(consumer, 3)
        assert [(each.key, each.data) for each in (first, third)] == [("a", b"0"), ("c", b"2")]
        _assert_unreadable(second, "partition_key")
        assert (second.id.batch_index, second._delivery.data) == (1, b"1")
        for message in (first, second, third):
            await message.ack()
        port: Any = consumer.port
        assert port._context.memory_limit.bytes == 0


@virtual_time
async def test_a_text_of_a_batch() -> None:
    """A batch whose own metadata is invalid is one unreadable message, counted as the broker counts it."""
    metadata = hostile.about(num_messages_in_batch=3, producer_name=MARK)
    payload = encode_batch((pb.SingleMessageMetadata(), b"") for _ in range(3))
    broker = FakeBroker()
    topic = broker.topic(TOPIC)
    async with subscribed(broker, receiver_queue_size=3) as consumer:
        for _ in range(5):
            topic.append(_checked(metadata, payload), messages=3)
        topic.publish(b"after")
        for _ in range(5):
            message = await consumer.receive(timeout=10)
            _assert_unreadable(message, "producer_name")
            await message.ack()
        assert (await consumer.receive(timeout=10)).data == b"after"


@virtual_time
async def test_a_text_of_a_chunked_message() -> None:
    """An invalid key in each chunk makes one unreadable message, not one for each chunk."""
    broker = FakeBroker()
    topic = broker.topic(TOPIC)
    for index, payload in enumerate((b"ab", b"cd")):
        about = hostile.about(
            uuid="u", chunk_id=index, num_chunks_from_msg=2, total_chunk_msg_size=4, partition_key=MARK
        )
        topic.append(_checked(about, payload))
    topic.publish(b"after")
    async with subscribed(broker) as consumer:
        message, after = await take(consumer, 2)
        _assert_unreadable(message, "partition_key")
        assert (len(message.id.parts), message._delivery.data, after.data) == (2, b"abcd", b"after")


@virtual_time
async def test_names_in_other_alphabets() -> None:
    """Text that is not ASCII is valid."""
    broker = FakeBroker()
    topic = broker.topic(TOPIC)
    topic.publish(b"x", producer_name="производитель", partition_key="ключ", properties={"é": "ü"})
    topic.append(message_rest(hostile.about(producer_name="производитель"), b"plain"))
    async with subscribed(broker) as consumer:
        first, second = await take(consumer, 2)
        assert (first.producer_name, first.key, first.properties) == ("производитель", "ключ", {"é": "ü"})
        assert (second.producer_name, second.data) == ("производитель", b"plain")
