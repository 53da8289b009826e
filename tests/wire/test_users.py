"""What a connection tells the consumers and producers on it, and what becomes of them when one of them has a fault."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pulsar_nack.errors import ConnectionLostError, ProtocolError
from pulsar_nack.testing import virtual_time
from pulsar_nack.wire import _pulsar_pb2 as pb
from pulsar_nack.wire._connection._address import Address
from pulsar_nack.wire._connection._connection import Connection
from pulsar_nack.wire._connection._options import ClientOptions
from pulsar_nack.wire._protocol._heads import MessageHead
from tests.wire.fake_broker import Call, FakeBroker, refuse
from tests.wire.frames import command, frame

SECURE = "pulsar+ssl://broker:6651"


class Recorder:
    """A consumer or producer that notes what it is told; ``fault`` is raised at each call."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.fault = fault

    def _note(self, *told: Any) -> None:
        self.told.append(told)
        if self.fault is not None:
            raise self.fault

    def on_message(self, head: MessageHead, rest: bytes) -> None:
        self._note("message", head.entry, bytes(rest))

    def on_closed_by_broker(self, assigned_url: str | None) -> None:
        self._note("closed", assigned_url)

    def on_active_changed(self, is_active: bool) -> None:
        self._note("active", is_active)

    def on_end_of_topic(self) -> None:
        self._note("end")

    def on_topic_migrated(self, url: str | None) -> None:
        self._note("migrated", url)

    def on_receipt(self, command: pb.CommandSendReceipt) -> None:
        self._note("receipt", command.sequence_id)

    def on_send_error(self, command: pb.CommandSendError) -> None:
        self._note("refused", command.sequence_id, command.message)

    def on_connection_lost(self, error: Exception) -> None:
        self._note("lost", type(error))


class Stage:
    """An open connection with a consumer and a producer, each number 1, and the broker's end of it."""

    def __init__(self, broker: FakeBroker, connection: Connection) -> None:
        self.connection = connection
        self.link = broker.links[0]
        self.opened: Call = broker.calls[0]
        self.consumer, self.producer = Recorder(), Recorder()
        connection.add_consumer(1, self.consumer)
        connection.add_producer(1, self.producer)

    async def tell(self, kind: str, **fields: Any) -> None:
        """Let the broker send a command."""
        self.opened.reply(kind, **fields)
        await asyncio.sleep(0.01)

    async def message(self, consumer_id: int, entry: int) -> None:
        """Let the broker deliver an entry."""
        sent = command("MESSAGE")
        sent.message.consumer_id = consumer_id
        sent.message.message_id.ledgerId, sent.message.message_id.entryId = 7, entry
        self.link.send(sent, b"rest")
        await asyncio.sleep(0.01)


async def open_stage(url: str = "pulsar://broker:6650") -> Stage:
    """Connect."""
    broker = FakeBroker(url)
    return Stage(broker, await Connection.open(Address.parse(url), ClientOptions(), dial=broker.dial))


@virtual_time
async def test_messages_go_to_their_consumer() -> None:
    """Each message goes to whom it is for; those of a consumer that is gone are dropped."""
    stage = await open_stage()
    other = Recorder()
    stage.connection.add_consumer(2, other)
    for consumer_id, entry in ((1, 0), (2, 1), (3, 2), (1, 3)):
        await stage.message(consumer_id, entry)
    stage.connection.remove_consumer(1)
    await stage.message(1, 4)
    assert stage.consumer.told == [("message", 0, b"rest"), ("message", 3, b"rest")]
    assert other.told == [("message", 1, b"rest")]
    await stage.connection.aclose()
    assert other.told[-1] == ("lost", ConnectionLostError)
    assert len(stage.consumer.told) == 2


@virtual_time
async def test_receipts_go_to_their_producer() -> None:
    """Receipts and refusals of sends go to whom they are for; others are dropped."""
    stage = await open_stage()
    await stage.tell("SEND_RECEIPT", producer_id=1, sequence_id=5)
    await stage.tell("SEND_RECEIPT", producer_id=2, sequence_id=6)
    await stage.tell("SEND_ERROR", producer_id=1, sequence_id=7, error=9, message="damaged")
    await stage.tell("SEND_ERROR", producer_id=2, sequence_id=8, error=9, message="damaged")
    stage.connection.remove_producer(1)
    await stage.tell("SEND_RECEIPT", producer_id=1, sequence_id=9)
    assert stage.producer.told == [("receipt", 5), ("refused", 7, "damaged")]
    await stage.connection.aclose()


@virtual_time
async def test_news_of_a_topic() -> None:
    """Who becomes active, and the end of a topic, are told to the consumer concerned."""
    stage = await open_stage()
    await stage.tell("ACTIVE_CONSUMER_CHANGE", consumer_id=1, is_active=True)
    await stage.tell("ACTIVE_CONSUMER_CHANGE", consumer_id=1, is_active=False)
    await stage.tell("ACTIVE_CONSUMER_CHANGE", consumer_id=2, is_active=True)
    await stage.tell("REACHED_END_OF_TOPIC", consumer_id=1)
    await stage.tell("REACHED_END_OF_TOPIC", consumer_id=2)
    assert stage.consumer.told == [("active", True), ("active", False), ("end",)]
    await stage.connection.aclose()


@pytest.mark.parametrize(("url", "where"), [("pulsar://broker:6650", "pulsar://new"), (SECURE, "pulsar+ssl://new")])
@virtual_time
async def test_closed_by_the_broker(url: str, where: str) -> None:
    """Whom the broker closes is told where to, by the address of its own kind, and hears nothing any more."""
    stage = await open_stage(url)
    places = {"assignedBrokerServiceUrl": "pulsar://new", "assignedBrokerServiceUrlTls": "pulsar+ssl://new"}
    await stage.tell("CLOSE_CONSUMER", consumer_id=1, request_id=0, **places)
    await stage.tell("CLOSE_PRODUCER", producer_id=1, request_id=0, **places)
    for kind, field in (("CLOSE_CONSUMER", "consumer_id"), ("CLOSE_PRODUCER", "producer_id")):
        await stage.tell(kind, **{field: 1, "request_id": 0})
    await stage.message(1, 0)
    await stage.connection.aclose()
    assert stage.consumer.told == [("closed", where)]
    assert stage.producer.told == [("closed", where)]


@virtual_time
async def test_closed_without_a_place() -> None:
    """A broker that does not tell where a topic goes leaves that open."""
    stage = await open_stage()
    await stage.tell("CLOSE_CONSUMER", consumer_id=1, request_id=0)
    await stage.tell("CLOSE_PRODUCER", producer_id=1, request_id=0)
    assert stage.consumer.told == stage.producer.told == [("closed", None)]
    await stage.connection.aclose()


@virtual_time
async def test_topics_that_migrate() -> None:
    """A topic that goes to another cluster is told to its consumer, and to its producer as being closed."""
    stage = await open_stage()
    for kind in (pb.CommandTopicMigrated.Consumer, pb.CommandTopicMigrated.Producer):
        for number in (1, 2):
            await stage.tell("TOPIC_MIGRATED", resource_id=number, resource_type=kind, brokerServiceUrl="pulsar://far")
    assert stage.consumer.told == [("migrated", "pulsar://far")]
    assert stage.producer.told == [("closed", "pulsar://far")]
    await stage.connection.aclose()


@virtual_time
async def test_all_are_told_of_the_loss() -> None:
    """A lost connection is told to all who are on it, once each, and to the one who opened it."""
    broker = FakeBroker()
    closed: list[Connection] = []
    connection = await Connection.open(
        Address.parse(broker.url), ClientOptions(), dial=broker.dial, on_closed=closed.append
    )
    stage = Stage(broker, connection)
    broker.cut(ConnectionResetError("reset by peer"))
    connection.close()
    await connection.aclose()
    assert stage.consumer.told == stage.producer.told == [("lost", ConnectionLostError)]
    assert closed == [connection]
    with pytest.raises(ConnectionLostError, match="broke: reset by peer"):
        connection.add_consumer(1, Recorder())
    with pytest.raises(ConnectionLostError, match="broke: reset by peer"):
        connection.expect(1)


@virtual_time
async def test_a_fault_of_a_user() -> None:
    """A consumer that raises is reported, and everything begins anew: the others are told of the loss, all of them."""
    stage = await open_stage()
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    fault = RuntimeError("a fault")
    stage.connection.add_consumer(2, Recorder(fault))
    await stage.message(2, 0)
    assert [each["exception"] for each in reported] == [fault, fault]
    assert stage.consumer.told == stage.producer.told == [("lost", ConnectionLostError)]
    await stage.connection.aclose()


@virtual_time
async def test_nothing_is_told_after_the_end() -> None:
    """What comes in the same bytes after a command that ends the connection is not looked at."""
    stage = await open_stage()
    bad = command("CONNECTED")
    bad.connected.server_version = "again"
    sent = command("REACHED_END_OF_TOPIC")
    sent.reachedEndOfTopic.consumer_id = 1
    waiting = stage.connection.expect(99)
    stage.link.transport.deliver(frame(sent) + frame(bad) + frame(sent))
    await asyncio.sleep(0.1)
    with pytest.raises(ConnectionLostError, match="CONNECTED on a connection that is open") as caught:
        await waiting
    assert isinstance(caught.value.__cause__, ProtocolError)
    assert stage.consumer.told == [("end",), ("lost", ProtocolError)]
    await stage.connection.aclose()


@virtual_time
async def test_an_error_that_is_for_no_request() -> None:
    """A broker that says no to nothing in particular, as to an expired token, ends the connection with its words."""
    stage = await open_stage()
    refuse("AuthenticationError", "expired")(stage.opened)
    await asyncio.sleep(0.1)
    with pytest.raises(ConnectionLostError, match="AuthenticationError: expired"):
        stage.connection.send(b"")


@virtual_time
async def test_kinds_that_nobody_knows() -> None:
    """Commands of kinds that have nothing to say to a client are taken without a word."""
    stage = await open_stage()
    for kind in ("GET_OR_CREATE_SCHEMA_RESPONSE", "PONG"):
        stage.link.send(command(kind))
    stage.link.transport.deliver(b"\x00\x00\x00\x06\x00\x00\x00\x02\x08\x63")  # number 99
    await asyncio.sleep(0.1)
    assert stage.connection.is_open
    assert stage.consumer.told == []
    await stage.connection.aclose()


@virtual_time
async def test_receipts_by_expectation() -> None:
    """Who sends by itself gets the answer by its request id, a refusal or a loss likewise; one let go harms nobody."""
    stage = await open_stage()
    connection = stage.connection
    numbers = [connection.request_id() for _ in range(4)]
    good, bad, let_go, lost = (connection.expect(number) for number in numbers)
    let_go.cancel()
    for number in numbers[:3]:
        failed = {"error": 0, "message": "no"} if number == numbers[1] else {}
        await stage.tell("ACK_RESPONSE", consumer_id=1, request_id=number, **failed)
    assert (await good).ackResponse.request_id == numbers[0]
    with pytest.raises(Exception, match="UnknownError: no"):
        await bad
    stage.link.transport.cut()
    with pytest.raises(ConnectionLostError):
        await lost


@virtual_time
async def test_a_producer_that_has_to_wait_its_turn() -> None:
    """A broker that works on a request lets it wait beyond the usual time, until it is done."""
    stage = await open_stage()
    request_id = stage.connection.request_id()
    asked = command("PRODUCER")
    asked.producer.topic, asked.producer.producer_id, asked.producer.request_id = "t", 1, request_id
    stage.opened.broker.next(
        "PRODUCER", lambda call: call.reply("PRODUCER_SUCCESS", producer_name="p", producer_ready=False)
    )
    task = asyncio.create_task(stage.connection.request(asked, request_id))
    await asyncio.sleep(300)
    assert not task.done()
    await stage.tell("PRODUCER_SUCCESS", request_id=request_id, producer_name="p")
    assert (await task).producer_success.producer_name == "p"
    await stage.connection.aclose()
