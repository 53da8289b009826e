"""Which commands the consumers and producers of a connection get, and what happens if one of them raises."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from pulsar_nack.errors import ConnectionLostError, ProtocolError
from pulsar_nack.testing import virtual_time
from pulsar_nack.wire._connection._address import Address
from pulsar_nack.wire._connection._connection import Connection
from pulsar_nack.wire._connection._handlers import Handler
from pulsar_nack.wire._connection._options import ClientOptions
from pulsar_nack.wire._connection._requests import set_response
from pulsar_nack.wire._connection._session import Session
from pulsar_nack.wire._consumer._consumer_session import close_command
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from pulsar_nack.wire._protocol._frames import MessageCommand
from tests.wire.fake_broker import Call, FakeBroker, refuse
from tests.wire.frames import command, frame

SECURE = "pulsar+ssl://broker:6651"


class Recorder(Handler):
    """A consumer or producer that records its calls and raises ``fault`` in each."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.fault = fault

    def _note(self, *call: Any) -> None:
        self.calls.append(call)
        if self.fault is not None:
            raise self.fault

    def on_message(self, head: MessageCommand, rest: bytes) -> None:
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


def begin(connection: Connection) -> tuple[int, asyncio.Future[pb.BaseCommand]]:
    """Begin a request; return its id, and a future for the response."""
    response: asyncio.Future[pb.BaseCommand] = asyncio.get_running_loop().create_future()
    return connection.begin_request("ACK", partial(set_response, response)), response


class Stage:
    """An open connection with a consumer and a producer, each with id 1, and the broker's end of it."""

    def __init__(self, broker: FakeBroker, connection: Connection) -> None:
        self.connection = connection
        self.link = broker.links[0]
        self.opened: Call = broker.calls[0]
        self.consumer, self.producer = Recorder(), Recorder()
        connection.consumers[1] = self.consumer
        connection.producers[1] = self.producer

    async def send(self, kind: str, **fields: Any) -> None:
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
async def test_what_is_for_nobody_is_dropped() -> None:
    """Commands for unknown or closed ids change nothing; other handlers continue."""
    stage = await open_stage()
    other = Recorder()
    stage.connection.consumers[2] = other
    del stage.connection.consumers[2]
    for consumer_id, entry in ((2, 0), (3, 1), (1, 2)):
        await stage.message(consumer_id, entry)
    await stage.send("ACTIVE_CONSUMER_CHANGE", consumer_id=2, is_active=True)
    await stage.send("REACHED_END_OF_TOPIC", consumer_id=2)
    await stage.send("SEND_RECEIPT", producer_id=2, sequence_id=6)
    await stage.send("SEND_ERROR", producer_id=2, sequence_id=8, error=9, message="damaged")
    await stage.send("SEND_ERROR", producer_id=1, sequence_id=7, error=9, message="damaged")
    assert stage.connection.is_open
    assert stage.consumer.calls == [("message", 2, b"rest")]
    assert stage.producer.calls == [("refused", 7, "damaged")]
    await stage.connection.aclose()
    assert other.calls == []


@pytest.mark.parametrize(("url", "where"), [("pulsar://broker:6650", "pulsar://new"), (SECURE, "pulsar+ssl://new")])
@virtual_time
async def test_closed_by_the_broker(url: str, where: str) -> None:
    """A handler that the broker closes gets the new address, with or without TLS like its own, and no later command."""
    stage = await open_stage(url)
    places = {"assignedBrokerServiceUrl": "pulsar://new", "assignedBrokerServiceUrlTls": "pulsar+ssl://new"}
    await stage.send("CLOSE_CONSUMER", consumer_id=1, request_id=0, **places)
    await stage.send("CLOSE_PRODUCER", producer_id=1, request_id=0, **places)
    for kind, field in (("CLOSE_CONSUMER", "consumer_id"), ("CLOSE_PRODUCER", "producer_id")):
        await stage.send(kind, **{field: 1, "request_id": 0})
    await stage.message(1, 0)
    await stage.connection.aclose()
    assert stage.consumer.calls == [("closed", where)]
    assert stage.producer.calls == [("closed", where)]


@virtual_time
async def test_topics_that_migrate() -> None:
    """A topic that migrates to another cluster is reported to its consumer and its producer, and they are closed."""
    stage = await open_stage()
    for kind in (pb.CommandTopicMigrated.Consumer, pb.CommandTopicMigrated.Producer):
        for number in (1, 2):
            await stage.send("TOPIC_MIGRATED", resource_id=number, resource_type=kind, brokerServiceUrl="pulsar://far")
    assert stage.consumer.calls == stage.producer.calls == [("migrated", "pulsar://far"), ("closed", None)]
    await stage.connection.aclose()


@virtual_time
async def test_all_are_called_about_the_loss() -> None:
    """All handlers of a lost connection are called once, and so is its owner."""
    broker = FakeBroker()
    closed: list[Connection] = []
    connection = await Connection.open(
        Address.parse(broker.url), ClientOptions(), dial=broker.dial, on_closed=closed.append
    )
    stage = Stage(broker, connection)
    broker.cut(ConnectionResetError("reset by peer"))
    connection.close()
    await connection.aclose()
    assert stage.consumer.calls == stage.producer.calls == [("lost", ConnectionLostError)]
    assert closed == [connection]
    late = Session(connection, connection.consumers, "t", what="consumer", close=close_command, on_closed=print)
    with pytest.raises(ConnectionLostError, match="broke: reset by peer"):
        await late.register(close_command)
    assert not connection.consumers
    with pytest.raises(ConnectionLostError, match="broke: reset by peer"):
        begin(connection)


@virtual_time
async def test_a_fault_of_a_user() -> None:
    """A consumer that raises is logged, and the connection is closed: all other handlers are called."""
    stage = await open_stage()
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    fault = RuntimeError("a fault")
    stage.connection.consumers[2] = Recorder(fault)
    await stage.message(2, 0)
    assert [each["exception"] for each in reported] == [fault, fault]
    assert stage.consumer.calls == stage.producer.calls == [("lost", ConnectionLostError)]
    await stage.connection.aclose()


@virtual_time
async def test_nothing_is_called_after_the_end() -> None:
    """Bytes after a command that ends the connection are not decoded."""
    stage = await open_stage()
    bad = command("CONNECTED")
    bad.connected.server_version = "again"
    sent = command("REACHED_END_OF_TOPIC")
    sent.reachedEndOfTopic.consumer_id = 1
    _, waiting = begin(stage.connection)
    stage.link.transport.deliver(frame(sent) + frame(bad) + frame(sent))
    await asyncio.sleep(0.1)
    with pytest.raises(ConnectionLostError, match="CONNECTED on a connection that is open") as caught:
        await waiting
    assert isinstance(caught.value.__cause__, ProtocolError)
    assert stage.consumer.calls == [("end",), ("lost", ProtocolError)]
    await stage.connection.aclose()


@virtual_time
async def test_an_error_that_is_for_no_request() -> None:
    """An error without a request, as for an expired token, ends the connection with the broker's text."""
    stage = await open_stage()
    refuse("AuthenticationError", "expired")(stage.opened)
    await asyncio.sleep(0.1)
    with pytest.raises(ConnectionLostError, match="AuthenticationError: expired"):
        stage.connection.send(b"")


@virtual_time
async def test_kinds_that_nobody_knows() -> None:
    """Commands of kinds that have no meaning for a client are accepted and ignored."""
    stage = await open_stage()
    for kind in ("GET_OR_CREATE_SCHEMA_RESPONSE", "PONG"):
        stage.link.send(command(kind))
    stage.link.transport.deliver(b"\x00\x00\x00\x06\x00\x00\x00\x02\x08\x63")  # number 99
    await asyncio.sleep(0.1)
    assert stage.connection.is_open
    assert stage.consumer.calls == []
    await stage.connection.aclose()


@virtual_time
async def test_receipts_by_expectation() -> None:
    """A request that is begun gets the response, refusal or loss by its id; a cancelled one affects no other."""
    stage = await open_stage()
    connection = stage.connection
    numbers, (good, bad, let_go, lost) = zip(*(begin(connection) for _ in range(4)), strict=True)
    let_go.cancel()
    for number in numbers[:3]:
        failed = {"error": 0, "message": "no"} if number == numbers[1] else {}
        await stage.send("ACK_RESPONSE", consumer_id=1, request_id=number, **failed)
    assert (await good).ackResponse.request_id == numbers[0]
    with pytest.raises(Exception, match="UnknownError: no"):
        await bad
    stage.link.transport.cut()
    with pytest.raises(ConnectionLostError):
        await lost


@virtual_time
async def test_a_producer_that_has_to_wait_its_turn() -> None:
    """A request that the broker is still processing waits beyond the usual timeout until it is done."""
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
    await stage.send("PRODUCER_SUCCESS", request_id=request_id, producer_name="p")
    assert (await task).producer_success.producer_name == "p"
    await stage.connection.aclose()
