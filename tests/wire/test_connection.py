"""Connections on a scripted broker and virtual time: opening, requests, keep-alive, slow sockets, closing."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from pulsar_nack.errors import BrokerRefusedError, ConnectionLostError, ProtocolError, RequestTimeoutError
from pulsar_nack.testing import virtual_time
from pulsar_nack.wire._connection._address import Address
from pulsar_nack.wire._connection._connection import Connection
from pulsar_nack.wire._connection._options import ClientOptions
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from tests.wire.fake_broker import URL, FakeBroker, cut, half, later, raw, refuse, silence
from tests.wire.frames import command, frame
from tests.wire.producing import drained

TOPIC = "persistent://public/default/t"


async def connect(broker: FakeBroker, **settings: Any) -> Connection:
    """Return an open connection to the first node."""
    return await Connection.open(Address.parse(broker.url), ClientOptions(**settings), dial=broker.dial)


def is_closed(connection: Connection) -> bool:
    """Return whether the connection is closed; a function, so that mypy does not narrow it."""
    return not connection.is_open


def lookup(connection: Connection) -> tuple[pb.BaseCommand, int]:
    """Return a lookup request and its id."""
    request_id = connection.request_id()
    asked = command("LOOKUP")
    asked.lookupTopic.topic, asked.lookupTopic.request_id = TOPIC, request_id
    return asked, request_id


@virtual_time
async def test_opens() -> None:
    """CONNECT has version, features and authentication; the broker's answer is readable."""
    broker = FakeBroker()
    broker.max_message_bytes = 1_000_000
    connection = await connect(broker)
    asked = broker.commands("CONNECT")[0]
    assert asked.client_version.startswith("pulsar-nack-")
    assert (asked.protocol_version, asked.feature_flags.supports_auth_refresh) == (21, True)
    assert not asked.HasField("auth_method_name")
    assert (connection.connected.protocol_version, connection.connected.server_version) == (21, "fake")
    assert connection.max_message_bytes == 1_000_000
    assert connection.connected.feature_flags.supports_auth_refresh
    assert connection.is_open
    await connection.aclose()
    assert is_closed(connection)
    assert broker.links == []
    assert len(asyncio.all_tasks()) == 1


@virtual_time
async def test_nobody_there() -> None:
    """A broker that is down is a lost connection, and the error has its address."""
    broker = FakeBroker()
    broker.node(URL).kill()
    with pytest.raises(ConnectionLostError, match="pulsar://broker:6650: not reached: nobody listens"):
        await connect(broker)


@virtual_time
async def test_dialling_hangs() -> None:
    """A dial that gets no answer ends when the connection timeout is over."""
    broker = FakeBroker()
    broker.node(URL).hangs = True
    with pytest.raises(ConnectionLostError, match="not connected within 2 s"):
        await connect(broker, connect_timeout=2)
    assert asyncio.get_running_loop().time() == pytest.approx(2)


@virtual_time
async def test_no_answer_to_the_first_command() -> None:
    """A broker that accepts the connection and never answers is given up, and the connection is closed."""
    broker = FakeBroker()
    broker.always("CONNECT", silence)
    with pytest.raises(ConnectionLostError, match="not connected within 10 s"):
        await connect(broker)
    await asyncio.sleep(1)
    assert broker.links == []


@virtual_time
async def test_not_let_in() -> None:
    """The broker's refusal of a connection is raised with its text."""
    broker = FakeBroker()
    broker.next("CONNECT", refuse("AuthenticationError", "who are you?"))
    with pytest.raises(BrokerRefusedError, match="AuthenticationError: who are you") as caught:
        await connect(broker)
    assert (caught.value.code, caught.value.text) == ("AuthenticationError", "who are you?")
    await asyncio.sleep(1)
    assert broker.links == []


@pytest.mark.parametrize("answer", [cut, half(), raw(b"HTTP/1.1 400 Bad Request\r\n\r\n")], ids=["cut", "half", "http"])
@virtual_time
async def test_the_first_answer_is_broken(answer: Any) -> None:
    """An end, half a frame, or another protocol instead of the first answer fails the opening at once."""
    broker = FakeBroker()
    broker.next("CONNECT", answer)
    with pytest.raises((ConnectionLostError, ProtocolError)):
        await connect(broker)
    assert asyncio.get_running_loop().time() < 0.1


@virtual_time
async def test_cancelled_opening_leaves_nothing() -> None:
    """A cancelled opening leaves no connection and no task behind."""
    broker = FakeBroker()
    broker.always("CONNECT", silence)
    task = asyncio.create_task(connect(broker))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(1)
    assert broker.links == []
    assert len(asyncio.all_tasks()) == 1


@virtual_time
async def test_requests_get_their_answers() -> None:
    """Each answer goes to its request, in any order."""
    broker = FakeBroker()
    connection = await connect(broker)
    broker.next("LOOKUP", later(1.0))
    first, second = lookup(connection), lookup(connection)
    slow = asyncio.create_task(connection.request(*first))
    await asyncio.sleep(0)
    quick = await connection.request(*second)
    assert quick.lookupTopicResponse.request_id == second[1]
    assert not slow.done()
    assert (await slow).lookupTopicResponse.request_id == first[1]
    await connection.aclose()


@virtual_time
async def test_refusals_are_raised() -> None:
    """A refusal is raised with the broker's code and text, and the connection stays."""
    broker = FakeBroker()
    connection = await connect(broker)
    broker.next("LOOKUP", refuse("AuthorizationError", "not you"))
    with pytest.raises(BrokerRefusedError, match="AuthorizationError: not you"):
        await connection.request(*lookup(connection))
    assert (await connection.request(*lookup(connection))).lookupTopicResponse.brokerServiceUrl == URL
    await connection.aclose()


@virtual_time
async def test_requests_time_out() -> None:
    """A request without an answer raises exactly after its timeout; a late answer has no effect."""
    broker = FakeBroker()
    connection = await connect(broker, request_timeout=5, keep_alive=100)
    started = asyncio.get_running_loop().time()
    broker.next("LOOKUP", later(7.0))
    with pytest.raises(RequestTimeoutError, match="no answer to LOOKUP within 5 s"):
        await connection.request(*lookup(connection))
    assert asyncio.get_running_loop().time() - started == pytest.approx(5)
    broker.next("LOOKUP", silence)
    with pytest.raises(TimeoutError):
        await connection.request(*lookup(connection), timeout=1)
    assert asyncio.get_running_loop().time() - started == pytest.approx(6)
    await asyncio.sleep(3)
    assert connection.is_open
    await connection.aclose()


@virtual_time
async def test_a_lost_connection_fails_requests() -> None:
    """Open requests fail at once when the connection breaks, and later ones too."""
    broker = FakeBroker()
    connection = await connect(broker)
    broker.next("LOOKUP", cut)
    with pytest.raises(ConnectionLostError, match="the broker closed the connection"):
        await connection.request(*lookup(connection))
    assert is_closed(connection)
    with pytest.raises(ConnectionLostError, match="the broker closed the connection"):
        connection.send(b"x")
    with pytest.raises(ConnectionLostError):
        await connection.request(*lookup(connection))
    await connection.aclose()


@virtual_time
async def test_pings_are_answered() -> None:
    """A PONG answers a PING."""
    broker = FakeBroker()
    connection = await connect(broker)
    broker.links[0].send(command("PING"))
    await asyncio.sleep(0.1)
    assert len([call for call in broker.calls if call.kind == "PONG"]) == 1
    await connection.aclose()


@virtual_time
async def test_a_silent_broker_is_gone() -> None:
    """A broker that has not answered a ping when the next one is due counts as gone; one that answers stays."""
    broker = FakeBroker()
    connection = await connect(broker, keep_alive=10)
    await asyncio.sleep(95)
    assert connection.is_open
    assert len([call for call in broker.calls if call.kind == "PING"]) == 9
    broker.always("PING", silence)
    await asyncio.sleep(20.5)
    assert is_closed(connection)
    with pytest.raises(ConnectionLostError, match="no sign of life for 10 s"):
        await drained(connection)


@virtual_time
async def test_frames_in_pieces() -> None:
    """Answers that arrive byte by byte are complete answers."""
    broker = FakeBroker()
    connection = await connect(broker)
    broker.links[0].transport.piece_bytes = 1
    assert (await connection.request(*lookup(connection))).lookupTopicResponse.brokerServiceUrl == URL
    await connection.aclose()


@virtual_time
async def test_a_frame_that_is_too_large() -> None:
    """A frame above the broker's own limit breaks the connection before its bytes have arrived."""
    broker = FakeBroker()
    broker.max_message_bytes = 10_000
    connection = await connect(broker)
    broker.links[0].transport.deliver(frame(command("PING"), bytes(30_000))[:100])
    await asyncio.sleep(0.1)
    assert is_closed(connection)
    with pytest.raises(ConnectionLostError, match="frame"):
        connection.send(b"")


@virtual_time
async def test_a_slow_socket() -> None:
    """Producers wait while a broker does not read, and no longer."""
    broker = FakeBroker()
    connection = await connect(broker, write_buffer_bytes=10_000)
    transport = broker.links[0].transport
    transport.stall()
    for _ in range(10):
        await drained(connection)
        connection.send(frame(command("PING"), bytes(1_000)))
    waiting = asyncio.create_task(drained(connection))
    await asyncio.sleep(5)
    assert not waiting.done()
    transport.go_on()
    await waiting
    await connection.aclose()


@virtual_time
async def test_a_broker_that_never_reads() -> None:
    """Unsent bytes are bounded: beyond the limit the broker counts as gone, and waiting callers get the error."""
    broker = FakeBroker()
    connection = await connect(broker, write_buffer_bytes=10_000, max_unsent_bytes=1 << 20)
    broker.links[0].transport.stall()
    connection.send(bytes(20_000))
    waiting = asyncio.create_task(drained(connection))
    await asyncio.sleep(0)
    for _ in range(11):
        if connection.is_open:
            connection.send(bytes(100_000))
    with pytest.raises(ConnectionLostError, match="does not read"):
        await waiting
    await connection.aclose()


@virtual_time
async def test_closing_does_not_wait_for_ever() -> None:
    """Closing waits a few seconds for a broker that does not read; a cancelled close waits less."""
    for patience, expected in ((60, 5), (2, 2)):
        broker = FakeBroker()
        connection = await connect(broker)
        broker.links[0].transport.stall()
        connection.send(bytes(100_000))
        began = asyncio.get_running_loop().time()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await connection.aclose()
        assert asyncio.get_running_loop().time() - began == pytest.approx(expected)
        await asyncio.sleep(0.1)
        assert broker.links == []
        assert len(asyncio.all_tasks()) == 1
