"""The scripted broker itself, where its clients would not notice a fault."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pulsar_nack.errors import BrokerRefusedError
from pulsar_nack.testing import virtual_time
from pulsar_nack.wire._connection._address import Address
from pulsar_nack.wire._connection._connection import Connection
from pulsar_nack.wire._connection._handlers import Handler
from pulsar_nack.wire._connection._options import ClientOptions
from pulsar_nack.wire._protocol import _pulsar_pb2 as pb
from pulsar_nack.wire._protocol._frames import MessageCommand, encode_command
from tests.wire.fake_broker import FakeBroker
from tests.wire.fake_link import Pipe
from tests.wire.frames import command, read_message

TOPIC = "persistent://public/default/t"


class Raw:
    """A connection used directly: sends commands, and collects what arrives for each consumer."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.got: dict[int, list[int]] = {}
        self.told: list[tuple[Any, ...]] = []

    @classmethod
    async def open(cls, broker: FakeBroker) -> Raw:
        """Connect."""
        return cls(await Connection.open(Address.parse(broker.url), ClientOptions(), dial=broker.dial))

    async def ask(self, kind: str, part: str, **fields: Any) -> pb.BaseCommand:
        """Send a request and return the answer."""
        request_id = self.connection.request_id()
        asked = command(kind)
        body = getattr(asked, part)
        body.MergeFrom(type(body)(**fields | {"request_id": request_id}))
        return await self.connection.request(asked, request_id)

    async def subscribe(self, consumer_id: int = 1, **fields: Any) -> None:
        """Subscribe from the earliest message, and give permits."""
        self.got[consumer_id] = []
        self.connection.consumers[consumer_id] = _Events(self, consumer_id)
        usual = {"initialPosition": 1, "topic": TOPIC, "subscription": "s", "subType": pb.CommandSubscribe.Shared}
        await self.ask("SUBSCRIBE", "subscribe", **usual | {"consumer_id": consumer_id} | fields)
        flow = command("FLOW")
        flow.flow.consumer_id, flow.flow.messagePermits = consumer_id, 100
        self.connection.send(encode_command(flow))
        await asyncio.sleep(0.1)

    async def acknowledge(self, entry: int, **fields: Any) -> None:
        """Acknowledge an entry, or a part of it."""
        ids = [pb.MessageIdData(ledgerId=7, entryId=entry, **fields)]
        await self.ask("ACK", "ack", consumer_id=1, ack_type=0, message_id=ids)


class _Events(Handler):
    def __init__(self, raw: Raw, consumer_id: int) -> None:
        self._raw = raw
        self._id = consumer_id

    def on_message(self, head: MessageCommand, rest: bytes) -> None:
        read_message(bytes(rest))
        self._raw.got[self._id].append(head.entry)

    def on_closed_by_broker(self, assigned_url: str | None) -> None:
        self._raw.told.append((self._id, "closed", assigned_url))


@virtual_time
async def test_starts_at_each_position() -> None:
    """A subscription begins at the end, at the beginning, or after a message."""
    broker = FakeBroker()
    topic, raw = broker.topic(TOPIC), await Raw.open(broker)
    for number in range(4):
        topic.publish(b"%d" % number)
    await raw.subscribe(1, subscription="latest", initialPosition=0)
    await raw.subscribe(2, subscription="earliest")
    await raw.subscribe(3, subscription="after", start_message_id=pb.MessageIdData(ledgerId=7, entryId=1))
    assert [raw.got[number] for number in (1, 2, 3)] == [[], [0, 1, 2, 3], [2, 3]]
    await raw.connection.aclose()


@virtual_time
async def test_acknowledges_parts_of_batches() -> None:
    """Acknowledged members are left out of a redelivery; the last one acknowledges the entry."""
    broker = FakeBroker()
    topic, raw = broker.topic(TOPIC), await Raw.open(broker)
    topic.publish_batch([b"a", b"b", b"c"])
    await raw.subscribe()
    await raw.acknowledge(0, ack_set=[0b011])
    subscription = topic.subscriptions["s"]
    assert subscription.unacked_indexes == {(7, 0): [0b011]}
    await raw.acknowledge(0, ack_set=[0b101])
    assert subscription.unacked_indexes == {(7, 0): [0b001]}
    await raw.acknowledge(0, ack_set=[0b110])
    assert (subscription.unacked_indexes, subscription.acked) == ({}, {(7, 0)})
    await raw.connection.aclose()


@virtual_time
async def test_moves_a_topic() -> None:
    """A topic that moves closes its consumers and producers, and is served only by its new node."""
    broker = FakeBroker()
    broker.topic(TOPIC).publish(b"0")
    raw = await Raw.open(broker)
    await raw.subscribe()
    broker.move(TOPIC, "pulsar://second:6650", tell_where=True)
    await asyncio.sleep(0.1)
    assert raw.told == [(1, "closed", "pulsar://second:6650")]
    with pytest.raises(BrokerRefusedError, match="ServiceNotReady"):
        await raw.subscribe()
    await raw.connection.aclose()


@virtual_time
async def test_a_pipe_keeps_order_and_time() -> None:
    """Items leave a pipe in order, each after its latency, with one timer at a time."""
    loop = asyncio.get_running_loop()
    got: list[tuple[float, int]] = []
    pipe: Pipe[int] = Pipe(loop, 2.0, lambda item: got.append((loop.time(), item)))
    for item in range(3):
        pipe.put(item)
    await asyncio.sleep(1)
    pipe.put(3)
    await asyncio.sleep(5)
    assert got == [(2, 0), (2, 1), (2, 2), (3, 3)]


@virtual_time
async def test_nothing_is_carried_out_after_the_end() -> None:
    """Bytes in transit are lost when the broker hangs up; bytes written before the client closes are processed."""
    broker = FakeBroker(latency=0.1)
    raw = await Raw.open(broker)
    sent = command("CLOSE_CONSUMER")
    sent.close_consumer.consumer_id, sent.close_consumer.request_id = 1, 1
    raw.connection.send(encode_command(sent))
    broker.links[0].transport.hang_up()
    await asyncio.sleep(1)
    assert not raw.connection.is_open
    assert broker.commands("CLOSE_CONSUMER") == []
    raw = await Raw.open(broker)
    raw.connection.send(encode_command(sent))
    raw.connection.close()
    await asyncio.sleep(1)
    assert len(broker.commands("CLOSE_CONSUMER")) == 1
    assert broker.links == []
