"""Connections over real sockets, on asyncio's own loop and on uvloop, whose transports differ."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pulsar_nack.errors import ConnectionLostError
from pulsar_nack.testing import EmbeddedBroker
from pulsar_nack.wire._connection._address import Address
from pulsar_nack.wire._connection._connection import Connection
from pulsar_nack.wire._connection._context import ClientContext
from pulsar_nack.wire._connection._handlers import Handler
from pulsar_nack.wire._connection._options import ClientOptions
from pulsar_nack.wire._connection._pool import Pool
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from pulsar_nack.wire._protocol._frames import MessageCommand, encode_command
from tests.wire.conftest import Run
from tests.wire.fake_topics import metadata_of
from tests.wire.frames import command, encode_message, read_message
from tests.wire.producing import drained
from tests.wire.served import Served

TOPIC = "persistent://public/default/t"


async def connect(there: Served, **settings: Any) -> Connection:
    """Return an open connection."""
    return await Connection.open(Address("127.0.0.1", there.port), ClientOptions(**settings))


class Entries(Handler):
    """A consumer that notes payloads."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.lost: list[Exception] = []

    def on_message(self, head: MessageCommand, rest: bytes) -> None:
        self.payloads.append(read_message(bytes(rest))[1])

    def on_receipt(self, command: pb.CommandSendReceipt) -> None: ...
    def on_connection_lost(self, error: Exception) -> None:
        self.lost.append(error)


async def request(connection: Connection, kind: str, part: str, **fields: Any) -> pb.BaseCommand:
    """Send a request and return the answer."""
    request_id = connection.request_id()
    asked = command(kind)
    body = getattr(asked, part)
    body.MergeFrom(type(body)(**fields | {"request_id": request_id}))
    return await connection.request(asked, request_id)


def test_messages_of_all_sizes(run: Run) -> None:
    """Messages arrive whole and in order, from nothing to megabytes; senders wait for room now and then."""

    async def test(there: Served) -> None:
        connection = await connect(there, write_buffer_bytes=100_000)
        entries = Entries()
        connection.consumers[1] = entries
        connection.producers[1] = entries
        await request(connection, "SUBSCRIBE", "subscribe", topic=TOPIC, subscription="s", subType=1, consumer_id=1)
        await request(connection, "PRODUCER", "producer", topic=TOPIC, producer_id=1)
        flow = command("FLOW")
        flow.flow.consumer_id, flow.flow.messagePermits = 1, 1_000
        connection.send(encode_command(flow))
        sizes = [0, 1, 100, 65_536, 3_000_000, 10, *range(0, 100_000, 7_919), 5_000_000]
        sent = command("SEND")
        for number, size in enumerate(sizes):
            sent.send.producer_id, sent.send.sequence_id = 1, number
            await drained(connection)
            connection.send(encode_message(sent, metadata_of(), bytes([number]) * size))
        while len(entries.payloads) < len(sizes):
            await asyncio.sleep(0.01)
        assert entries.payloads == [bytes([number]) * size for number, size in enumerate(sizes)]
        await connection.aclose()
        assert len(entries.lost) == 2

    run(test)


def test_the_broker_ends_it(run: Run) -> None:
    """Waiting and later calls notice at once that the broker closed the connection."""

    async def test(there: Served) -> None:
        connection = await connect(there)
        there.broker.next("LOOKUP", lambda call: call.link.transport.cut())
        with pytest.raises(ConnectionLostError):
            await request(connection, "LOOKUP", "lookupTopic", topic=TOPIC)
        assert not connection.is_open
        await connection.aclose()

    run(test)


def test_we_end_it(run: Run) -> None:
    """Bytes written before the end still arrive, and the broker sees the end."""

    async def test(there: Served) -> None:
        connection = await connect(there)
        sent = command("CLOSE_CONSUMER")
        sent.close_consumer.consumer_id, sent.close_consumer.request_id = 5, 1
        connection.send(encode_command(sent))
        await connection.aclose()
        while there.broker.links:
            await asyncio.sleep(0.01)
        assert [each.consumer_id for each in there.broker.commands("CLOSE_CONSUMER")] == [5]

    run(test)


def test_nobody_listens(run: Run) -> None:
    """An address where nothing listens is a lost connection at once; so is an unknown host name."""

    async def test(there: Served) -> None:
        for address in (Address("127.0.0.1", 1), Address("nobody.invalid", there.port)):
            with pytest.raises(ConnectionLostError, match="not reached"):
                await Connection.open(address, ClientOptions())

    run(test)


@pytest.mark.skipif(not EmbeddedBroker.available(), reason="pulsar-lite does not run here")
async def test_an_embedded_broker() -> None:
    """Another implementation of a broker accepts us, and finds topics."""
    async with EmbeddedBroker() as broker:
        pool = Pool(broker.service_url)
        try:
            connection = await ClientContext(pool).broker(TOPIC)
            assert connection.address.url == broker.service_url
            assert await ClientContext(pool).partitions(TOPIC) == 0
        finally:
            await pool.aclose()
