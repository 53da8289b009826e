"""Brokers and clients that read slowly, stop, or stop for ever; real sockets with small buffers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final

import pytest

from pulsar_nack import MessageId
from pulsar_nack.wire import Client, ClientOptions, Producer
from pulsar_nack.wire._connection._address import Address
from pulsar_nack.wire._connection._connection import Connection
from tests.patience import patience
from tests.wire.conftest import Run
from tests.wire.fake_broker import Call, as_usual
from tests.wire.frames import command, decode_entry, messages_of
from tests.wire.producing import drained
from tests.wire.served import Served, set_buffers

TOPIC: Final = "persistent://public/default/t"
SMALL: Final = 16_384
"""Bytes of the system's buffers."""
BOUND: Final = 64 << 10
"""How many unsent bytes a client keeps before its producers wait."""


KEEP_ALIVE_S: Final = 0.5
"""Short, so that a silent broker is soon noticed; long enough for a busy machine to answer within it."""


async def dial(connection: Connection, address: Address) -> None:
    """Connect over a socket with small buffers."""
    loop, one = asyncio.get_running_loop(), socket.socket()
    set_buffers(one, SMALL)
    one.settimeout(0)
    await loop.sock_connect(one, (address.host, address.port))
    await loop.create_connection(lambda: connection, sock=one)


def client_of(there: Served, **options: Any) -> Client:
    """Return a client that reads and writes little at once."""
    return Client(there.broker.url, ClientOptions(**{"write_buffer_bytes": BOUND, **options}), dial=dial)


def connection_of(client: Client) -> Connection:
    """Return the only connection."""
    assert client._context is not None
    (connection,) = client._context.pool.connections()
    return connection


def waiting_bytes(client: Client) -> int:
    """Return how many bytes wait to be written."""
    transport = connection_of(client)._transport
    assert transport is not None
    return transport.get_write_buffer_size()


def stored(there: Served) -> list[bytes]:
    """Return the payloads that the broker stores."""
    entries = there.broker.topic(TOPIC).entries
    return [bytes(message.payload) for entry in entries for message in messages_of(decode_entry(entry.rest))]


def payloads(count: int, size: int) -> list[bytes]:
    """Return large, different payloads."""
    return [b"%08d" % number * (size // 8) for number in range(count)]


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(patience(5)):
        while not condition():
            await asyncio.sleep(0.005)


def begin(producer: Producer, all_payloads: list[bytes]) -> list[asyncio.Future[MessageId]]:
    """Send all messages without waiting."""
    return [producer.send_nowait(payload) for payload in all_payloads]


def test_a_broker_that_stops_reading_for_a_while(run: Run) -> None:
    """Unsent bytes stay within their limit and ``drained`` waits; when the broker reads, all is stored in order."""

    async def test(there: Served) -> None:
        messages = payloads(60, 50_000)
        async with client_of(there) as client, client.producer(TOPIC) as producer:
            there.flow.stop()
            receipts = begin(producer, messages)
            await until(lambda: connection_of(client).writable is not None)
            waiting = asyncio.create_task(drained(connection_of(client)))
            await asyncio.sleep(0.2)
            assert 0 < waiting_bytes(client) <= BOUND + 51_000
            assert not waiting.done()
            assert not receipts[-1].done()
            there.flow.go_on()
            await waiting
            ids = await asyncio.gather(*receipts)
            assert [each.entry for each in ids] == list(range(60))
        assert stored(there) == messages
        assert len([call for call in there.broker.calls if call.kind == "CONNECT"]) == 1

    run(test, buffer_bytes=SMALL)


@pytest.mark.slow
def test_a_broker_that_reads_slowly(run: Run) -> None:
    """A broker that reads slower than it is sent to stays connected: for two keep-alive intervals no side gives up."""

    async def test(there: Served) -> None:
        messages = payloads(80, 20_000)
        there.flow.size, there.flow.pause = 8_000, 0.006
        async with client_of(there, keep_alive=KEEP_ALIVE_S) as client, client.producer(TOPIC) as producer:
            loop = asyncio.get_running_loop()
            began = loop.time()
            await asyncio.gather(*begin(producer, messages))
            assert loop.time() - began > 2 * KEEP_ALIVE_S
        assert stored(there) == messages
        assert len([call for call in there.broker.calls if call.kind == "CONNECT"]) == 1

    run(test, buffer_bytes=SMALL)


def test_pings_while_the_way_is_full(run: Run) -> None:
    """A ping that arrives while nothing can be sent is answered once when there is room again, without an error."""

    async def test(there: Served) -> None:
        async with client_of(there) as client, client.producer(TOPIC) as producer:
            there.flow.stop()
            receipts = begin(producer, payloads(20, 50_000))
            await until(lambda: connection_of(client).writable is not None)
            await asyncio.sleep(0.3)  # the system takes no more
            before = waiting_bytes(client)
            for link in there.broker.links:
                ping = command("PING")
                ping.ping.SetInParent()
                link.send(ping)
            await until(lambda: waiting_bytes(client) > before)
            assert connection_of(client).is_open
            there.flow.go_on()
            await asyncio.gather(*receipts)
            await until(lambda: len([call for call in there.broker.calls if call.kind == "PONG"]) == 1)

    run(test, buffer_bytes=SMALL)


@pytest.mark.slow
def test_a_broker_that_never_reads_again(run: Run) -> None:
    """It is disconnected within two keep-alive intervals; all is sent again in order on the next connection."""

    async def test(there: Served) -> None:
        messages = payloads(40, 20_000)
        options = {"keep_alive": KEEP_ALIVE_S, "backoff_minimum": 0.01, "backoff_maximum": 0.05}
        async with client_of(there, **options) as client, client.producer(TOPIC) as producer:
            assert await producer.send(b"first")
            loop = asyncio.get_running_loop()
            there.flow.stop()
            first, began = connection_of(client), loop.time()
            receipts = begin(producer, messages)
            await until(lambda: not first.is_open)
            assert loop.time() - began < patience(2 * KEEP_ALIVE_S)
            there.flow.end()  # the broker sees it too
            await asyncio.gather(*receipts)
        came = stored(there)
        assert list(dict.fromkeys(came)) == [b"first", *messages]
        assert came[-40:] == messages

    run(test, buffer_bytes=SMALL)


@pytest.mark.slow
def test_acks_to_a_broker_that_never_reads_again(run: Run) -> None:
    """Unsent acknowledgements are sent again on the next connection: none is lost, no message is delivered twice."""

    async def test(there: Served) -> None:
        for number in range(300):
            there.broker.topic(TOPIC).publish(b"%d" % number)
        options = {"keep_alive": KEEP_ALIVE_S, "backoff_minimum": 0.01, "backoff_maximum": 0.05}
        async with (
            client_of(there, **options) as client,
            client.subscribe(TOPIC, "s", initial_position="earliest") as consumer,
        ):
            messages = [await consumer.receive() for _ in range(300)]
            there.flow.stop()
            first = connection_of(client)
            acking = asyncio.gather(*(message.ack() for message in messages[:200]))
            await until(lambda: not first.is_open)
            there.flow.end()
            await acking
            with pytest.raises(TimeoutError):
                await consumer.receive(timeout=0.3)
            subscription = there.broker.topic(TOPIC).subscriptions["s"]
            assert {entry for _, entry in subscription.acked} == set(range(200))

    run(test, buffer_bytes=SMALL)


@pytest.mark.parametrize("size", [1, 65_535, 1 << 20, (5 << 20) - 1_000])
def test_frames_in_pieces(run: Run, size: int) -> None:
    """Frames of up to the largest size, in small pieces in each direction, close together, arrive unchanged."""

    async def test(there: Served) -> None:
        there.flow.size = 3_001
        messages = [bytes([number]) * (size if number % 2 else 10) for number in range(4)]
        async with (
            client_of(there) as client,
            client.producer(TOPIC) as producer,
            client.subscribe(TOPIC, "s") as consumer,
        ):
            receipts = begin(producer, messages)
            came = [await consumer.receive(timeout=patience(5)) for _ in messages]
            assert [message.data for message in came] == messages
            await asyncio.gather(*receipts, *(message.ack() for message in came))

    run(test, buffer_bytes=16 * SMALL)


@pytest.mark.slow
def test_a_frame_that_is_never_finished(run: Run) -> None:
    """Half a frame and then silence: the broker counts as gone; its message comes on the next connection."""

    async def test(there: Served) -> None:
        there.broker.topic(TOPIC).publish(b"x" * 100_000)

        def half_of_it(call: Call) -> None:
            link = call.link.transport
            deliver, whole = link.deliver, bytearray()
            link.deliver = whole.extend  # type: ignore[method-assign,assignment]
            as_usual(call)
            link.deliver = lambda data: None  # type: ignore[method-assign]
            deliver(bytes(whole[: len(whole) // 2]))

        there.broker.next("FLOW", half_of_it)
        options = {"keep_alive": KEEP_ALIVE_S, "backoff_minimum": 0.01, "backoff_maximum": 0.05}
        async with (
            client_of(there, **options) as client,
            client.subscribe(TOPIC, "s", initial_position="earliest") as consumer,
        ):
            message = await consumer.receive(timeout=patience(5))
            assert message.data == b"x" * 100_000
            await message.ack()
        assert len([call for call in there.broker.calls if call.kind == "CONNECT"]) == 2

    run(test, buffer_bytes=SMALL)


@pytest.mark.slow
def test_closing_while_the_way_is_full(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing waits only some seconds for a broker that does not read; pending sends get an error."""
    monkeypatch.setattr("pulsar_nack.wire._connection._connection._CLOSE_TIMEOUT", 0.3)

    async def test(there: Served) -> None:
        loop = asyncio.get_running_loop()
        client = client_of(there, request_timeout=1)
        producer = await client.producer(TOPIC)
        there.flow.stop()
        receipts = begin(producer, payloads(20, 50_000))
        await until(lambda: connection_of(client).writable is not None)
        began = loop.time()
        await client.aclose()
        assert 1.299 < loop.time() - began < patience(1.3)  # uvloop's clock has whole milliseconds
        results = await asyncio.gather(*receipts, return_exceptions=True)
        assert {type(result).__name__ for result in results} == {"ClosedError"}

    run(test, buffer_bytes=SMALL)
